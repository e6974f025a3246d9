#include "base/free_memory.h"

#ifdef __linux__

#include <stdio.h>

/* The number in a file of one number; 0: there is none, or it is "max". */
static uint64_t cgroup_number(const char *path) {
    unsigned long long value = 0;
    FILE              *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%llu", &value) != 1) value = 0;
    fclose(file);
    return value;
}

uint64_t free_memory(void) {
    const uint64_t     limit = cgroup_number("/sys/fs/cgroup/memory.max");
    const uint64_t     taken = limit ? cgroup_number("/sys/fs/cgroup/memory.current") : 0;
    unsigned long long kilobytes = 0;
    char               line[200];
    FILE              *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1) break;
    }
    if (file) fclose(file);
    const uint64_t all = (uint64_t)kilobytes * 1024, left = limit > taken ? limit - taken : 0;
    return limit && (!all || left < all) ? left : all;
}

#else

uint64_t free_memory(void) { return 0; }

#endif
