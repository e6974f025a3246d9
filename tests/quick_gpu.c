/* Keeps GPUs open for tests of other things than opening. The linker puts these functions in front of the engine's own: a closed host
 * stays open for the next engine, with its compiled shaders, which a driver in software compiles for seconds. Disabled features are
 * hidden, not missing, so that the kernels that need none are compiled once; test_gpu_self_check.c opens a device without them.
 *
 * A host that is closed must have nothing left on it but compiled shaders: what is left ends the test. */

#include "quick_gpu.h"

#include "gpu/features.h"
#include "gpu/host_native.h"
#include "session/load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gm_status __real_gpu_host_open(const gpu_options *options, gpu_host **out, error *e);
void      __real_gpu_host_close(gpu_host *h);
gm_status __wrap_gpu_host_open(const gpu_options *options, gpu_host **out, error *e);
void      __wrap_gpu_host_close(gpu_host *h);

typedef struct {
    gpu_host *host;
    int32_t   adapter;
    bool      hardware, idle;
    gpu_info  info; /* with all features */
} kept_host;

bool quick_gpu_hardware;
void (*quick_gpu_alter)(gpu_options *);

static struct {
    pthread_mutex_t lock;
    kept_host       hosts[8];
    size_t          count;
    bool            closes_at_exit;
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void kept_close(void) {
    while (kept.count) __real_gpu_host_close(kept.hosts[--kept.count].host);
}

static kept_host *kept_find(const gpu_options *o) {
    for (size_t i = 0; i < kept.count; i++) {
        kept_host *k = &kept.hosts[i];
        if (k->idle && k->adapter == o->adapter && k->hardware == o->hardware) return k;
    }
    return NULL;
}

static void hide_features(gpu_info *info, const bool hidden[GPU_FEATURES]) {
    for (size_t i = 0; i < GPU_FEATURES; i++) {
        if (hidden[i]) *gpu_feature_field(info, (gpu_feature)i) = false;
    }
    if (!info->subgroups) info->subgroup_min = info->subgroup_max = 0;
}

gm_status __wrap_gpu_host_open(const gpu_options *options, gpu_host **out, error *e) {
    gpu_options o = options ? *options : (gpu_options){ .adapter = -1 };
    bool        hidden[GPU_FEATURES];
    if (quick_gpu_alter) quick_gpu_alter(&o);
    gm_status status = gpu_features_read(o.disable, hidden, e);
    if (status) return status;
    o.disable = NULL;
    pthread_mutex_lock(&kept.lock);
    kept_host *k = kept_find(&o);
    if (k) {
        k->idle = false;
        k->host->most = o.memory;
        k->host->info = k->info;
        *out = k->host;
    } else {
        status = __real_gpu_host_open(&o, out, e);
        if (!status && kept.count < COUNT_OF(kept.hosts)) {
            if (!kept.closes_at_exit) kept.closes_at_exit = !atexit(kept_close);
            k = &kept.hosts[kept.count++];
            *k = (kept_host){ .host = *out, .adapter = o.adapter, .hardware = o.hardware, .info = (*out)->info };
        }
    }
    if (!status) hide_features(&(*out)->info, hidden);
    if (!status && quick_gpu_hardware) (*out)->info.software = false;
    pthread_mutex_unlock(&kept.lock);
    return status;
}

static uint32_t count_live(slots *s) {
    uint32_t index = 0, count = 0;
    gpu_id   id;
    while (slots_next(s, &index, &id)) count++;
    return count;
}

/* Whether the next engine finds it as if it were new. */
static bool host_is_clean(gpu_host *h) {
    error e = { 0 };
    while (!h->lost && !gpu_idle(h)) gpu_host_wait(h, 100);
    gpu_host_wait(h, 0);
    if (gpu_host_problem(h, &e)) return false;
    if (count_live(&h->buffers) || count_live(&h->groups) || count_live(&h->tickets)) {
        fprintf(stderr, "a closed GPU host has %u buffers, %u groups and %u tickets left\n", count_live(&h->buffers),
                count_live(&h->groups), count_live(&h->tickets));
        abort();
    }
    return true;
}

void __wrap_gpu_host_close(gpu_host *h) {
    bool keep = false;
    pthread_mutex_lock(&kept.lock);
    for (size_t i = 0; h && i < kept.count; i++) {
        kept_host *k = &kept.hosts[i];
        if (k->host != h) continue;
        keep = k->idle = host_is_clean(h);
        if (!keep) *k = kept.hosts[--kept.count];
        break;
    }
    pthread_mutex_unlock(&kept.lock);
    if (!keep) __real_gpu_host_close(h);
}
