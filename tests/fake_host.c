/* A host (gpu/host.h) for a GPU that computes nothing: it claims the features it is told to, and writes every shader text that it
 * should compile into a folder. Test programs linked with it instead of the native host plan as usual, so all their shaders are
 * written, also those for GPUs that no test machine has (f16, for example). All results are zeros, so the programs' own verdicts mean
 * nothing. tests/test_shaders.mjs checks the texts. The library itself needs no hook for this.
 *
 *     FAKE_GPU="subgroups dot4 f16 subgroup_matrix small"    what it has (small: matrices of 8 × 8; old: old kernels); may be empty
 *     FAKE_GPU_SHADERS=folder                                 where the texts go, one file each: label.digest.wgsl */

#include "fake_host.h"

#include "base/sha256.h"
#include "gpu/features.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TICKETS = 256, MOST_TEXTS = 2048 };

typedef struct {
    char    label[64];
    uint8_t digest[32];
    bool    dispatched;
} fake_text;

struct gpu_host {
    gpu_info info;
    gpu_id   next;                  /* above MOST_TEXTS: the id of a pipeline is 1 + the number of its text */
    void    *tickets[MOST_TICKETS]; /* zeros that have "arrived" */
    uint64_t bytes[MOST_TICKETS];
    bool     taken[MOST_TICKETS];

    fake_text texts[MOST_TEXTS];
    size_t    text_count;
};

static bool has(const char *feature) {
    const char *all = getenv("FAKE_GPU");
    return all && strstr(all, feature);
}

static gpu_info fake_info(void) {
    const bool subgroups = has("subgroups");
    return (gpu_info){ .name = "a GPU that computes nothing",
                       .vendor = "tests",
                       .backend = "none",
                       .driver = "none",
                       .software = true,
                       .max_buffer = UINT64_C(1) << 40,
                       .max_binding = UINT64_C(1) << 31,
                       .max_storage_buffers = 8,
                       .max_invocations = 256,
                       .max_workgroups = 65535,
                       .max_workgroup_bytes = !has("subgroup_matrix") ? 16384
                                              : has("small")          ? 32768
                                                                      : 49152,
                       .alignment = 256,
                       .subgroup_min = subgroups ? 32 : 0,
                       .subgroup_max = subgroups ? 32 : 0,
                       .subgroups = subgroups,
                       .f16 = has("f16"),
                       .dot4 = has("dot4"),
                       .subgroup_matrix = has("subgroup_matrix"),
                       .matrix_rows = has("small") ? 8 : 16,
                       .matrix_columns = has("small") ? 8 : 16,
                       .matrix_depth = has("small") ? 8 : 16,
                       .blocks = !has("old"),
                       .matrix_attention = !has("old"),
                       .bands = !has("old"),
                       .double_buffers = !has("old"),
                       .deep_splits = !has("old") };
}

gm_status gpu_host_list(gpu_info *out, size_t capacity, size_t *count, error *e) {
    (void)e;
    if (capacity) *out = fake_info();
    *count = 1;
    return GM_OK;
}

gm_status gpu_host_open(const gpu_options *options, gpu_host **out, error *e) {
    (void)options;
    *out = calloc(1, sizeof **out);
    if (!*out) return fail_memory(e, "a host", sizeof **out);
    (*out)->info = fake_info();
    (*out)->next = MOST_TEXTS;
    return GM_OK;
}

void gpu_host_close(gpu_host *h) {
    for (size_t i = 0; h && i < MOST_TICKETS; i++) free(h->tickets[i]);
    free(h);
}

const gpu_info *gpu_host_info(const gpu_host *h) { return &h->info; }
void            gpu_host_be_exact(gpu_host *h) { gpu_features_be_exact(&h->info); }

gm_status gpu_host_problem(gpu_host *h, error *e) {
    (void)h, (void)e;
    return GM_OK;
}

uint64_t gpu_host_bytes(const gpu_host *h) {
    (void)h;
    return 0;
}

uint64_t gpu_host_limit(const gpu_host *h) {
    (void)h;
    return 0;
}

/* ---- objects ---- */

gpu_id gpu_buffer_new(gpu_host *h, uint64_t bytes, error *e) {
    if (!bytes) return fail(e, GM_BAD_ARGUMENT, "a GPU buffer cannot have 0 bytes"), 0;
    return ++h->next;
}

void gpu_buffer_free(gpu_host *h, gpu_id buffer) { (void)h, (void)buffer; }

gm_status gpu_buffer_write(gpu_host *h, gpu_id buffer, uint64_t offset, const void *data, uint64_t bytes, error *e) {
    (void)h, (void)buffer, (void)offset, (void)data, (void)bytes, (void)e;
    return GM_OK;
}

gm_status gpu_source_new(gpu_host *h, const uint32_t *tickets, size_t count, gpu_id *out, error *e) {
    (void)tickets, (void)count, (void)e;
    *out = ++h->next;
    return GM_OK;
}

void gpu_source_free(gpu_host *h, gpu_id from) { (void)h, (void)from; }

gm_status gpu_source_write(gpu_host *h, gpu_id from, uint64_t first, gpu_id buffer, uint64_t offset, uint64_t bytes,
                           error *e) {
    (void)h, (void)from, (void)first, (void)buffer, (void)offset, (void)bytes, (void)e;
    return GM_OK;
}

const char *fake_host_text(const gpu_host *h, size_t index, bool *dispatched) {
    if (index >= h->text_count) return NULL;
    *dispatched = h->texts[index].dispatched;
    return h->texts[index].label;
}

bool fake_host_dispatched(const gpu_host *h, const gpu_host *other, size_t index) {
    for (size_t i = 0; i < h->text_count; i++) {
        if (!memcmp(h->texts[i].digest, other->texts[index].digest, 32)) return h->texts[i].dispatched;
    }
    return false;
}

/* The id of a text: the same for the same text. */
static gpu_id text_id(gpu_host *h, const char *label, const uint8_t digest[32], error *e) {
    for (size_t i = 0; i < h->text_count; i++) {
        if (!memcmp(h->texts[i].digest, digest, 32)) return (gpu_id)(i + 1);
    }
    if (h->text_count == MOST_TEXTS) return fail(e, GM_NO_MEMORY, "more than %d shaders", MOST_TEXTS), 0;
    fake_text *t = &h->texts[h->text_count++];
    snprintf(t->label, sizeof t->label, "%s", label);
    memcpy(t->digest, digest, 32);
    return (gpu_id)h->text_count;
}

gpu_id gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants, size_t count,
                        error *e) {
    (void)constants, (void)count;
    const char *folder = getenv("FAKE_GPU_SHADERS");
    char        path[1000];
    sha256      s;
    uint8_t     digest[32];
    if (!folder) return fail(e, GM_BAD_ARGUMENT, "FAKE_GPU_SHADERS names no folder"), 0;
    sha256_start(&s);
    sha256_add(&s, wgsl, strlen(wgsl));
    sha256_end(&s, digest);
    snprintf(path, sizeof path, "%s/%s.%02x%02x%02x%02x%02x%02x.wgsl", folder, label, digest[0], digest[1], digest[2],
             digest[3], digest[4], digest[5]);
    FILE *file = fopen(path, "wx");
    if (!file && errno == EEXIST) return text_id(h, label, digest, e);
    const bool written = file && fputs(wgsl, file) >= 0;
    if ((file && fclose(file)) || !written) return fail(e, GM_IO, "cannot write %s", path), 0;
    return text_id(h, label, digest, e);
}

size_t gpu_pipelines(const gpu_host *h) { return h->text_count; }

size_t gpu_pipelines_pending(const gpu_host *h) {
    (void)h;
    return 0;
}

gpu_id gpu_group_new(gpu_host *h, gpu_id pipeline, const gpu_binding *bindings, size_t count, error *e) {
    (void)pipeline, (void)bindings, (void)e;
    return count <= h->info.max_storage_buffers
               ? ++h->next
               : (fail(e, GM_BAD_ARGUMENT, "%zu storage buffers: a plain GPU has 8", count), 0);
}

void gpu_group_free(gpu_host *h, gpu_id group) { (void)h, (void)group; }

/* ---- lists ---- */

gm_status gpu_submit(gpu_host *h, const uint32_t *words, size_t count, error *e) {
    for (size_t at = 1; at < count; at += 1 + (words[at] >> 16)) {
        const uint32_t pipeline = words[at + 1];
        if ((words[at] & 0xffff) == GPU_DISPATCH && pipeline && pipeline <= h->text_count)
            h->texts[pipeline - 1].dispatched = true;
        if ((words[at] & 0xffff) != GPU_READ) continue;
        const uint32_t ticket = words[at + 6];
        const uint64_t bytes = words[at + 4] | (uint64_t)words[at + 5] << 32;
        if (!ticket || ticket > MOST_TICKETS || !h->taken[ticket - 1])
            return fail(e, GM_BAD_ARGUMENT, "a command list reads into ticket %u, which does not exist", ticket);
        free(h->tickets[ticket - 1]);
        h->tickets[ticket - 1] = calloc(1, bytes + 1);
        h->bytes[ticket - 1] = bytes;
        if (!h->tickets[ticket - 1]) return fail_memory(e, "what is read back", bytes);
    }
    return GM_OK;
}

uint32_t gpu_ticket_new(gpu_host *h) {
    for (uint32_t i = 0; i < MOST_TICKETS; i++) {
        if (h->taken[i]) continue;
        h->taken[i] = true;
        return i + 1;
    }
    return 0;
}

const void *gpu_ticket_data(gpu_host *h, uint32_t ticket, uint64_t *bytes) {
    if (!ticket || ticket > MOST_TICKETS || !h->taken[ticket - 1]) return NULL;
    if (bytes) *bytes = h->bytes[ticket - 1];
    return h->tickets[ticket - 1];
}

void gpu_ticket_done(gpu_host *h, uint32_t ticket) {
    if (!ticket || ticket > MOST_TICKETS) return;
    free(h->tickets[ticket - 1]);
    h->tickets[ticket - 1] = NULL;
    h->taken[ticket - 1] = false;
}

bool gpu_idle(gpu_host *h) {
    (void)h;
    return true;
}

uint64_t gpu_submitted(const gpu_host *h) {
    (void)h;
    return 0;
}

bool gpu_passed(gpu_host *h, uint64_t submitted) {
    (void)h, (void)submitted;
    return true;
}

void gpu_host_wait(gpu_host *h, uint32_t milliseconds) { (void)h, (void)milliseconds; }
