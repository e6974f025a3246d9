/* For tests of the native GPU host: command lists, buffers that are written and read back, waiting, and a small kernel. */

#ifndef GM_GPU_LISTS_H
#define GM_GPU_LISTS_H

#include "base/clock.h"
#include "gpu/host_native.h"
#include "test.h"

static inline gpu_host *open_host(const char *disable) {
    error     e = { 0 };
    gpu_host *h = NULL;
    CHECK_MESSAGE(gpu_host_open(&(gpu_options){ .adapter = -1, .disable = disable }, &h, &e) == GM_OK, "%s", e.why);
    return h;
}

/* Closes the host and expects no unreported refusals. */
static inline void close_host(gpu_host *h) {
    error e = { 0 };
    CHECK_MESSAGE(gpu_host_problem(h, &e) == GM_OK, "%s", e.why);
    gpu_host_close(h);
}

enum { MOST_WORDS = 8192 };

typedef struct {
    uint32_t words[MOST_WORDS];
    size_t   count;
} list;

static inline void list_start(list *l) {
    l->words[0] = GPU_LIST_VERSION;
    l->count = 1;
}

static inline void list_add(list *l, uint32_t op, const uint32_t *words, uint32_t length) {
    l->words[l->count++] = op | length << 16;
    for (uint32_t i = 0; i < length; i++) l->words[l->count++] = words[i];
}

#define ADD(list, op, ...)                                                                                             \
    list_add(list, op, (const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static inline bool submit_list(gpu_host *h, const list *l) {
    error     e = { 0 };
    gm_status status;
    while ((status = gpu_submit(h, l->words, l->count, &e)) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK_MESSAGE(status == GM_OK, "%s", e.why);
    return status == GM_OK;
}

static inline void wait_for_pipelines(gpu_host *h) {
    while (gpu_pipelines_pending(h) && !h->lost) gpu_host_wait(h, 100);
}

static const double patience = 120; /* seconds after which something that does not happen will not happen */

static const void *wait_for_ticket(gpu_host *h, uint32_t ticket, uint64_t *bytes) {
    const double deadline = clock_seconds() + patience;
    const void  *data;
    while (!(data = gpu_ticket_data(h, ticket, bytes)) && clock_seconds() < deadline) gpu_host_wait(h, 100);
    return data;
}

static inline bool wait_until_idle(gpu_host *h) {
    const double deadline = clock_seconds() + patience;
    while (!gpu_idle(h) && clock_seconds() < deadline) gpu_host_wait(h, 100);
    return gpu_idle(h);
}

static inline void wait_for_problem(gpu_host *h) {
    const double deadline = clock_seconds() + patience;
    while (!h->problem.status && !h->lost && clock_seconds() < deadline) gpu_host_wait(h, 10);
}

static inline void wait_for_loss(gpu_host *h) {
    const double deadline = clock_seconds() + patience;
    while (!h->lost && clock_seconds() < deadline) gpu_host_wait(h, 10);
}

/* Reads words of a buffer back. */
static inline bool read_words(gpu_host *h, gpu_id buffer, uint64_t offset, uint32_t *out, uint32_t count) {
    list           l;
    uint64_t       bytes = 0;
    const uint32_t ticket = gpu_ticket_new(h);
    list_start(&l);
    ADD(&l, GPU_READ, buffer, (uint32_t)offset, 0, count * 4, 0, ticket);
    if (!submit_list(h, &l)) return false;
    const void *data = wait_for_ticket(h, ticket, &bytes);
    CHECK(data && bytes == count * 4);
    if (data) memcpy(out, data, count * 4);
    gpu_ticket_done(h, ticket);
    CHECK(!gpu_ticket_data(h, ticket, NULL));
    return data;
}

static inline gpu_id new_buffer(gpu_host *h, uint64_t bytes) {
    error        e = { 0 };
    const gpu_id id = gpu_buffer_new(h, bytes, &e);
    CHECK_MESSAGE(id, "%s", e.why);
    return id;
}

static inline void write_words(gpu_host *h, gpu_id buffer, uint64_t offset, const uint32_t *words, uint32_t count) {
    error e = { 0 };
    CHECK_MESSAGE(gpu_buffer_write(h, buffer, offset, words, count * 4, &e) == GM_OK, "%s", e.why);
}

/* y[i] = x[i] * SCALE + ADD for i < COUNT */
static const char *const scale_shader = "override COUNT: u32; override SCALE: u32 = 1u; override ADD: u32;\n"
                                        "@group(0) @binding(0) var<storage, read> x: array<u32>;\n"
                                        "@group(0) @binding(1) var<storage, read_write> y: array<u32>;\n"
                                        "@compute @workgroup_size(64)\n"
                                        "fn main(@builtin(global_invocation_id) id: vec3u) {\n"
                                        "    if (id.x < COUNT) { y[id.x] = x[id.x] * SCALE + ADD; }\n"
                                        "}\n";

static inline gpu_id scale_pipeline(gpu_host *h, uint32_t count, uint32_t scale, uint32_t add) {
    error              e = { 0 };
    const gpu_constant constants[] = { { "COUNT", count }, { "SCALE", scale }, { "ADD", add } };
    const gpu_id       id = gpu_pipeline_new(h, "scale", scale_shader, constants, COUNT_OF(constants), &e);
    CHECK_MESSAGE(id, "%s", e.why);
    return id;
}

static inline gpu_id scale_group(gpu_host *h, gpu_id pipeline, gpu_id x, gpu_id y, uint64_t bytes) {
    error             e = { 0 };
    const gpu_binding bindings[] = { { 0, x, 0, bytes }, { 1, y, 0, bytes } };
    const gpu_id      id = gpu_group_new(h, pipeline, bindings, COUNT_OF(bindings), &e);
    CHECK_MESSAGE(id, "%s", e.why);
    return id;
}

#endif
