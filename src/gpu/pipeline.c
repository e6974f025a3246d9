#include "gpu/pipeline.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

gm_status gpu_kernel_text(const gpu_info *info, const gpu_kernel *k, buffer *out, error *e) {
    const struct {
        const char *name;
        bool        on;
    } features[] = { { "SUBGROUPS", info->subgroups },
                     { "F16", info->f16 },
                     { "DOT4", info->dot4 },
                     { "SUBGROUP_MATRIX", info->subgroup_matrix },
                     { "EXACT", info->exact } };
    shader_define defines[KERNEL_DEFINES + COUNT_OF(features)];
    memcpy(defines, k->defines, k->define_count * sizeof *defines);
    for (size_t i = 0; i < COUNT_OF(features); i++) {
        defines[k->define_count + i] = (shader_define){ features[i].name, features[i].on ? "1" : "0" };
    }
    return shader_text(k->file, defines, k->define_count + COUNT_OF(features), out, e);
}

/* Makes `main` return at once if the run has no tokens. Every thread reads the same word, so barriers after it stay allowed. */
static gm_status kernel_guard(const gpu_kernel *k, buffer *text, error *e) {
    const char *main = strstr(text->data, "fn main("), *body = main ? strchr(main, '{') : NULL;
    buffer      out = { 0 };
    if (!body) return fail(e, GM_BAD_ARGUMENT, "%s has no function main to guard", k->file);
    buffer_append(&out, text->data, (size_t)(body + 1 - text->data));
    buffer_text(&out, " if (guard.x == 0u) { return; }");
    buffer_text(&out, body + 1);
    buffer_printf(&out, "@group(0) @binding(%zu) var<uniform> guard: vec4<u32>;\n", k->bind_count - 1);
    buffer_free(text);
    *text = out;
    return out.failed ? fail_memory(e, "a shader's text", out.length) : GM_OK;
}

gpu_id gpu_kernel_pipeline(gpu_host *h, const gpu_kernel *k, error *e) {
    buffer    text = { 0 };
    gpu_id    pipeline = 0;
    gm_status status = gpu_kernel_text(gpu_host_info(h), k, &text, e);
    if (!status && k->guarded) status = kernel_guard(k, &text, e);
    if (!status) pipeline = gpu_pipeline_new(h, k->file, text.data, k->constants, k->constant_count, e);
    buffer_free(&text);
    return pipeline;
}

/* A kernel's strings are constants of the program, so comparing pointers and numbers is enough. */
static uint64_t hash_words(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3;
    return hash;
}

uint64_t gpu_kernel_hash(const gpu_kernel *k) {
    uint64_t hash = hash_words(0xcbf29ce484222325, &k->file, sizeof k->file);
    for (size_t i = 0; i < k->define_count; i++) {
        hash = hash_words(hash, &k->defines[i].name, sizeof k->defines[i].name);
        hash = hash_words(hash, k->defines[i].value, strlen(k->defines[i].value) + 1);
    }
    for (size_t i = 0; i < k->constant_count; i++) {
        hash = hash_words(hash, &k->constants[i].name, sizeof k->constants[i].name);
        hash = hash_words(hash, &k->constants[i].value, sizeof k->constants[i].value);
    }
    return hash_words(hash, &k->guarded, sizeof k->guarded);
}

/* ---- lists of kernels ---- */

gm_status gpu_kernel_list_add(gpu_kernel_list *l, const gpu_kernel *k, error *e) {
    const uint64_t hash = gpu_kernel_hash(k);
    for (size_t i = 0; i < l->count; i++) {
        if (l->data[i].hash == hash) return GM_OK;
    }
    if (l->count == l->capacity) {
        const size_t capacity = l->capacity ? 2 * l->capacity : 64;
        void        *data = realloc(l->data, capacity * sizeof *l->data);
        if (!data) return fail_memory(e, "a list of kernels", capacity * sizeof *l->data);
        l->data = data;
        l->capacity = capacity;
    }
    l->data[l->count].hash = hash;
    l->data[l->count++].kernel = *k;
    return GM_OK;
}

gm_status gpu_kernel_list_compile(gpu_kernel_list *l, gpu_host *h, double deadline, error *e) {
    while (l->started < l->count) {
        const gpu_id pipeline = gpu_kernel_pipeline(h, &l->data[l->started].kernel, e);
        if (!pipeline) return e->status;
        l->started++;
        if (clock_seconds() > deadline) return l->started < l->count ? GM_AGAIN : GM_OK;
    }
    return GM_OK;
}

void gpu_kernel_list_free(gpu_kernel_list *l) {
    free(l->data);
    *l = (gpu_kernel_list){ 0 };
}

/* ---- command lists ---- */

static void words_append(gpu_words *w, const uint32_t *words, size_t n) {
    if (w->count + n > w->capacity) {
        const size_t capacity = max_size(2 * w->capacity, w->count + n + 64);
        uint32_t    *data = w->failed ? NULL : realloc(w->data, capacity * sizeof *data);
        if (!data) {
            w->failed = true;
            return;
        }
        w->data = data;
        w->capacity = capacity;
    }
    memcpy(w->data + w->count, words, n * sizeof *words);
    w->count += n;
}

static void words_record(gpu_words *w, gpu_op op, const uint32_t *words, size_t n) {
    words_append(w, &(uint32_t){ (uint32_t)op | (uint32_t)n << 16 }, 1);
    words_append(w, words, n);
}

void gpu_words_begin(gpu_words *w) { words_append(w, &(uint32_t){ GPU_LIST_VERSION }, 1); }

void gpu_words_append(gpu_words *w, const uint32_t *records, size_t n) { words_append(w, records, n); }

void gpu_words_copy(gpu_words *w, gpu_id source, uint64_t offset, gpu_id target, uint64_t target_offset,
                    uint64_t bytes) {
    words_record(w, GPU_COPY,
                 (uint32_t[]){ source, (uint32_t)offset, (uint32_t)(offset >> 32), target, (uint32_t)target_offset,
                               (uint32_t)(target_offset >> 32), (uint32_t)bytes, (uint32_t)(bytes >> 32) },
                 8);
}

void gpu_words_dispatch(gpu_words *w, gpu_id pipeline, gpu_id group, uint32_t x, uint32_t y, uint32_t z) {
    words_record(w, GPU_DISPATCH, (uint32_t[]){ pipeline, group, x, y, z }, 5);
}

void gpu_words_clear(gpu_words *w, gpu_id target, uint64_t offset, uint64_t bytes) {
    words_record(
        w, GPU_CLEAR,
        (uint32_t[]){ target, (uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)bytes, (uint32_t)(bytes >> 32) },
        5);
}

size_t gpu_words_write(gpu_words *w, gpu_id target, uint64_t offset, const uint32_t *words, size_t n) {
    words_append(w, &(uint32_t){ (uint32_t)GPU_WRITE | (uint32_t)(n + 3) << 16 }, 1);
    words_append(w, (uint32_t[]){ target, (uint32_t)offset, (uint32_t)(offset >> 32) }, 3);
    words_append(w, words, n);
    return w->count - n;
}

size_t gpu_words_read(gpu_words *w, gpu_id source, uint64_t offset, uint64_t bytes) {
    words_record(
        w, GPU_READ,
        (uint32_t[]){ source, (uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)bytes, (uint32_t)(bytes >> 32), 0 },
        6);
    return w->count - 1;
}
