/* How many processors and cores this process may use. */

#include "base/pool.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__

#include <sched.h>

/* A container's share of processor time, rounded up ("200000 100000" is two processors); `most` when it has no limit. */
static size_t quota(size_t most) {
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file) return most;
    unsigned long long time = 0, period = 0;
    int                fields = fscanf(file, "%llu %llu", &time, &period);
    fclose(file);
    if (fields != 2 || !time || !period) return most;
    unsigned long long processors = (time - 1) / period + 1;
    return processors < most ? (size_t)processors : most;
}

/* The first processor on the same core: threads of a core name the same one. -1 when the system does not say. */
static int first_sibling(int processor) {
    char path[100];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    int first = -1;
    if (fscanf(file, "%d", &first) != 1) first = -1;
    fclose(file);
    return first;
}

size_t usable_processors(void) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online > 0 ? quota((size_t)online) : 1;
    }
    int count = CPU_COUNT(&allowed);
    return quota(count > 0 ? (size_t)count : 1);
}

size_t physical_cores(void) {
    cpu_set_t allowed, counted;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return usable_processors();
    CPU_ZERO(&counted);
    size_t cores = 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &allowed)) continue;
        int core = first_sibling(i);
        if (core < 0 || core >= CPU_SETSIZE) core = i;
        if (CPU_ISSET(core, &counted)) continue;
        CPU_SET(core, &counted);
        cores++;
    }
    return quota(cores ? cores : 1);
}

#elif defined(__wasm__)

size_t usable_processors(void) { return 1; }
size_t physical_cores(void) { return 1; }

#else

size_t usable_processors(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (size_t)online : 1;
}

size_t physical_cores(void) { return usable_processors(); }

#endif
