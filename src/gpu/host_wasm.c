/* The GPU host of WebAssembly: every call is an import that the page implements (web/src/core/gpu_host.ts). The page
 * opens the device before the engine asks for it, and holds objects, ids and lists; this file keeps what the engine
 * needs at hand.
 *
 * A browser reports failures later. gpu_host_problem reports an object that could not be created, and until the outcome
 * of every large buffer is known, no read-back arrives and the queue does not become idle. Sizes and offsets are passed
 * as doubles, which are exact up to 2^53. */

#include "gpu/features.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#define IMPORT(name) __attribute__((import_module("gpu"), import_name(#name))) extern

/* clang-format off */
IMPORT(open)          int32_t  page_open(void); /* 0: already in use */
IMPORT(close)         void     page_close(void); /* frees everything created since page_open */
/* Returns the length of a JSON text, and writes it unless that exceeds the capacity. 0: no GPU. */
IMPORT(describe)      size_t   page_describe(char *out, size_t capacity);
IMPORT(problem)       int32_t  page_problem(char *why, size_t capacity); /* a gm_status */
IMPORT(why)           int32_t  page_why(char *why, size_t capacity); /* gm_status and reason of the last failed call */
IMPORT(buffer_new)    gpu_id   page_buffer_new(double bytes);
IMPORT(buffer_free)   double   page_buffer_free(gpu_id buffer); /* the bytes freed */
IMPORT(buffer_write)  int32_t  page_buffer_write(gpu_id buffer, double offset, const void *data, double bytes);
IMPORT(source_new)    gpu_id   page_source_new(const uint32_t *tickets, size_t count); /* all have arrived */
IMPORT(source_free)   void     page_source_free(gpu_id from);
IMPORT(source_write)  int32_t  page_source_write(gpu_id from, double first, gpu_id buffer, double offset, double bytes);
IMPORT(pipeline_new)  gpu_id   page_pipeline_new(const char *label, size_t label_length, const char *wgsl, size_t wgsl_length,
                                                 const gpu_constant *constants, size_t count);
IMPORT(pipelines)     size_t   page_pipelines(void);
IMPORT(pipelines_pending) size_t page_pipelines_pending(void);
IMPORT(group_new)     gpu_id   page_group_new(gpu_id pipeline, const gpu_binding *bindings, size_t count);
IMPORT(group_free)    void     page_group_free(gpu_id group);
IMPORT(submit)        int32_t  page_submit(const uint32_t *words, size_t count);
IMPORT(ticket_new)    uint32_t page_ticket_new(void);
IMPORT(ticket_bytes)  double   page_ticket_bytes(uint32_t ticket); /* -1: not arrived */
IMPORT(ticket_take)   void     page_ticket_take(uint32_t ticket, void *out);
IMPORT(ticket_done)   void     page_ticket_done(uint32_t ticket);
IMPORT(idle)          int32_t  page_idle(void);
IMPORT(submitted)     double   page_submitted(void);
IMPORT(passed)        int32_t  page_passed(double submitted);
IMPORT(wait)          void     page_wait(uint32_t milliseconds);
/* clang-format on */

/* The page reads these structs directly from memory. */
_Static_assert(sizeof(gpu_constant) == 16 && offsetof(gpu_constant, value) == 8, "as gpu_host.ts reads it");
_Static_assert(sizeof(gpu_binding) == 24 && offsetof(gpu_binding, offset) == 8, "as gpu_host.ts reads it");

enum { DESCRIPTION = 4096, SLOT_BITS = 18 }; /* an id's low bits are its slot */

/* Bytes that were read back: kept from the first look at them until gpu_ticket_done. */
typedef struct {
    void    *data;
    uint64_t bytes;
    uint32_t ticket;
} arrival;

struct gpu_host {
    gpu_info info;
    uint64_t bytes, most;
    arrival *arrivals; /* by the slot of their ticket */
    size_t   arrival_capacity;
    error    problem; /* raised on this side, for gpu_host_problem */
};

static gm_status refused(error *e) {
    char          why[sizeof e->why];
    const int32_t status = page_why(why, sizeof why);
    return fail(e, (gm_status)status, "%s", why);
}

/* ---- describing the GPU ---- */

static const struct {
    const char *name;
    size_t      offset, size;
} texts[] = {
    { "name", offsetof(gpu_info, name), sizeof((gpu_info *)0)->name },
    { "vendor", offsetof(gpu_info, vendor), sizeof((gpu_info *)0)->vendor },
    { "backend", offsetof(gpu_info, backend), sizeof((gpu_info *)0)->backend },
    { "driver", offsetof(gpu_info, driver), sizeof((gpu_info *)0)->driver },
};

static const struct {
    const char *name;
    size_t      offset;
} numbers[] = {
    { "max_storage_buffers", offsetof(gpu_info, max_storage_buffers) },
    { "max_invocations", offsetof(gpu_info, max_invocations) },
    { "max_workgroups", offsetof(gpu_info, max_workgroups) },
    { "max_workgroup_bytes", offsetof(gpu_info, max_workgroup_bytes) },
    { "alignment", offsetof(gpu_info, alignment) },
    { "subgroup_min", offsetof(gpu_info, subgroup_min) },
    { "subgroup_max", offsetof(gpu_info, subgroup_max) },
    { "matrix_rows", offsetof(gpu_info, matrix_rows) },
    { "matrix_columns", offsetof(gpu_info, matrix_columns) },
    { "matrix_depth", offsetof(gpu_info, matrix_depth) },
};

static uint64_t whole_number(const json *object, const char *key, uint64_t most) {
    int64_t value = 0;
    if (!json_integer(json_get(object, key), &value) || value < 0) return 0;
    return (uint64_t)value < most ? (uint64_t)value : most;
}

static void fill(gpu_info *out, const json *from) {
    char *base = (char *)out;
    *out = (gpu_info){ 0 };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        const str    text = json_string(json_get(from, texts[i].name), "");
        const size_t length = min_size(text.length, texts[i].size - 1);
        memcpy(base + texts[i].offset, text.data, length);
    }
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        const uint32_t value = (uint32_t)whole_number(from, numbers[i].name, UINT32_MAX);
        memcpy(base + numbers[i].offset, &value, sizeof value);
    }
    out->software = json_is(json_get(from, "software"), JSON_TRUE);
    for (size_t i = 0; i < GPU_FEATURES; i++)
        *gpu_feature_field(out, (gpu_feature)i) =
            i >= GPU_DEVICE_FEATURES || json_is(json_get(from, gpu_feature_names[i]), JSON_TRUE);
    out->max_buffer = whole_number(from, "max_buffer", UINT64_MAX);
    out->max_binding = whole_number(from, "max_binding", UINT64_MAX);
    out->main_memory = whole_number(from, "main_memory", UINT64_MAX);
}

static gm_status host_describe(gpu_info *out, error *e) {
    char         text[DESCRIPTION];
    const size_t length = page_describe(text, sizeof text);
    arena        memory = { 0 };
    json        *value = NULL;
    if (!length) {
        return fail(
            e, GM_NO_DEVICE,
            "there is no WebGPU here: it needs a browser with WebGPU and a graphics driver that the browser trusts");
    }
    if (length > sizeof text)
        return fail(e, GM_BAD_ARGUMENT, "the GPU's description has %zu bytes: at most %zu", length, sizeof text);
    const gm_status status = json_parse((str){ text, length }, &memory, &value, e);
    if (!status) fill(out, value);
    arena_free(&memory);
    return status;
}

/* Removes disabled features ("subgroups,dot4"), and those that depend on them. */
static gm_status disable(gpu_info *info, const char *list, error *e) {
    bool disabled[GPU_FEATURES];
    TRY(gpu_features_read(list, disabled, e));
    for (size_t i = 0; i < GPU_FEATURES; i++) {
        if (disabled[i]) *gpu_feature_field(info, (gpu_feature)i) = false;
    }
    if (!info->subgroups) info->subgroup_min = info->subgroup_max = 0;
    if (!info->subgroups || !info->f16) info->subgroup_matrix = false;
    if (!info->subgroup_matrix) info->matrix_rows = info->matrix_columns = info->matrix_depth = 0;
    return GM_OK;
}

gm_status gpu_host_list(gpu_info *out, size_t capacity, size_t *count, error *e) {
    gpu_info info;
    *count = 0;
    TRY(host_describe(&info, e));
    *count = 1;
    if (capacity) *out = info;
    return GM_OK;
}

/* ---- opening and closing ---- */

gm_status gpu_host_open(const gpu_options *options, gpu_host **out, error *e) {
    *out = NULL;
    gpu_host *h = calloc(1, sizeof *h);
    if (!h) return fail_memory(e, "the GPU host", sizeof *h);
    gm_status status = host_describe(&h->info, e);
    if (status == GM_OK) status = disable(&h->info, options ? options->disable : NULL, e);
    if (status == GM_OK && options && options->adapter > 0)
        status = fail(e, GM_NO_DEVICE, "there is no GPU %d: a page has one, which is 0", (int)options->adapter);
    if (status == GM_OK && !page_open()) status = refused(e);
    if (status != GM_OK) {
        free(h);
        return status;
    }
    h->most = options ? options->memory : 0;
    *out = h;
    return GM_OK;
}

void gpu_host_close(gpu_host *h) {
    if (!h) return;
    page_close();
    for (size_t i = 0; i < h->arrival_capacity; i++) free(h->arrivals[i].data);
    free(h->arrivals);
    free(h);
}

const gpu_info *gpu_host_info(const gpu_host *h) { return &h->info; }
void            gpu_host_be_exact(gpu_host *h) { gpu_features_be_exact(&h->info); }
uint64_t        gpu_host_bytes(const gpu_host *h) { return h->bytes; }
uint64_t        gpu_host_limit(const gpu_host *h) { return h->most; }

gm_status gpu_host_problem(gpu_host *h, error *e) {
    char          why[sizeof e->why];
    const int32_t status = page_problem(why, sizeof why);
    const error   own = h->problem;
    if (status != GM_OK) return fail(e, (gm_status)status, "%s", why);
    h->problem = (error){ 0 };
    return own.status == GM_OK ? GM_OK : fail(e, own.status, "%s", own.why);
}

/* ---- buffers, pipelines and bind groups ---- */

gpu_id gpu_buffer_new(gpu_host *h, uint64_t bytes, error *e) {
    if (!bytes) return fail(e, GM_BAD_ARGUMENT, "a GPU buffer cannot have 0 bytes"), 0;
    if (bytes > h->info.max_buffer) {
        fail(e, GM_NO_MEMORY, "a GPU buffer of %llu bytes is too large: %s allows %llu", (unsigned long long)bytes,
             h->info.name, (unsigned long long)h->info.max_buffer);
        return 0;
    }
    const uint64_t size = round_up(bytes, 4);
    if (h->most && (h->bytes > h->most || size > h->most - h->bytes)) {
        fail(e, GM_NO_MEMORY, "a GPU buffer of %llu bytes does not fit: %llu are in use, and the budget is %llu",
             (unsigned long long)bytes, (unsigned long long)h->bytes, (unsigned long long)h->most);
        return 0;
    }
    const gpu_id id = page_buffer_new((double)size);
    if (!id) return refused(e), 0;
    h->bytes += size;
    return id;
}

void gpu_buffer_free(gpu_host *h, gpu_id id) { h->bytes -= (uint64_t)page_buffer_free(id); }

gm_status gpu_buffer_write(gpu_host *h, gpu_id id, uint64_t offset, const void *data, uint64_t bytes, error *e) {
    (void)h;
    const int32_t status = page_buffer_write(id, (double)offset, data, (double)bytes);
    return status == GM_OK || status == GM_AGAIN ? (gm_status)status : refused(e);
}

gm_status gpu_source_new(gpu_host *h, const uint32_t *tickets, size_t count, gpu_id *out, error *e) {
    (void)h;
    for (size_t i = 0; i < count; i++) {
        if (page_ticket_bytes(tickets[i]) < 0) return GM_AGAIN;
    }
    *out = page_source_new(tickets, count);
    return *out ? GM_OK : refused(e);
}

void gpu_source_free(gpu_host *h, gpu_id from) {
    (void)h;
    page_source_free(from);
}

gm_status gpu_source_write(gpu_host *h, gpu_id from, uint64_t first, gpu_id buffer, uint64_t offset, uint64_t bytes,
                           error *e) {
    (void)h;
    const int32_t status = page_source_write(from, (double)first, buffer, (double)offset, (double)bytes);
    return status == GM_OK || status == GM_AGAIN ? (gm_status)status : refused(e);
}

gpu_id gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants, size_t count,
                        error *e) {
    (void)h;
    const gpu_id id = page_pipeline_new(label, strlen(label), wgsl, strlen(wgsl), constants, count);
    if (!id) refused(e);
    return id;
}

size_t gpu_pipelines(const gpu_host *h) {
    (void)h;
    return page_pipelines();
}

size_t gpu_pipelines_pending(const gpu_host *h) {
    (void)h;
    return page_pipelines_pending();
}

gpu_id gpu_group_new(gpu_host *h, gpu_id pipeline, const gpu_binding *bindings, size_t count, error *e) {
    for (size_t i = 0; i < count; i++) {
        const gpu_binding *b = &bindings[i];
        if (b->bytes && b->bytes % 4 == 0 && b->offset % h->info.alignment == 0 && b->bytes <= h->info.max_binding)
            continue;
        fail(
            e, GM_BAD_ARGUMENT,
            "binding %u takes %llu bytes at %llu of a GPU buffer: an offset that is a multiple of %u, and at most %llu "
            "bytes are allowed",
            b->binding, (unsigned long long)b->bytes, (unsigned long long)b->offset, h->info.alignment,
            (unsigned long long)h->info.max_binding);
        return 0;
    }
    const gpu_id id = page_group_new(pipeline, bindings, count);
    if (!id) refused(e);
    return id;
}

void gpu_group_free(gpu_host *h, gpu_id group) {
    (void)h;
    page_group_free(group);
}

/* ---- lists and read-backs ---- */

gm_status gpu_submit(gpu_host *h, const uint32_t *words, size_t count, error *e) {
    (void)h;
    const int32_t status = page_submit(words, count);
    return status == GM_OK || status == GM_AGAIN ? (gm_status)status : refused(e);
}

static size_t slot_of(uint32_t ticket) { return ticket & ((1u << SLOT_BITS) - 1); }

uint32_t gpu_ticket_new(gpu_host *h) {
    const uint32_t ticket = page_ticket_new();
    const size_t   slot = slot_of(ticket);
    if (!ticket || slot < h->arrival_capacity) return ticket;
    const size_t capacity = max_size(2 * h->arrival_capacity, slot + 16);
    arrival     *more = realloc(h->arrivals, capacity * sizeof *more);
    if (!more) {
        page_ticket_done(ticket);
        return 0;
    }
    memset(more + h->arrival_capacity, 0, (capacity - h->arrival_capacity) * sizeof *more);
    h->arrivals = more;
    h->arrival_capacity = capacity;
    return ticket;
}

const void *gpu_ticket_data(gpu_host *h, uint32_t ticket, uint64_t *bytes) {
    const size_t slot = slot_of(ticket);
    const double there = page_ticket_bytes(ticket);
    if (there < 0 || slot >= h->arrival_capacity) return NULL;
    arrival *a = &h->arrivals[slot];
    if (!a->data) {
        a->data = malloc((size_t)there);
        if (!a->data) {
            fail_memory(&h->problem, "what came back from the GPU", (uint64_t)there);
            return NULL;
        }
        a->bytes = (uint64_t)there;
        a->ticket = ticket;
        page_ticket_take(ticket, a->data);
    }
    if (bytes) *bytes = a->bytes;
    return a->data;
}

void gpu_ticket_done(gpu_host *h, uint32_t ticket) {
    const size_t slot = slot_of(ticket);
    if (ticket && slot < h->arrival_capacity && h->arrivals[slot].ticket == ticket) {
        free(h->arrivals[slot].data);
        h->arrivals[slot] = (arrival){ 0 };
    }
    page_ticket_done(ticket);
}

bool gpu_idle(gpu_host *h) {
    (void)h;
    return page_idle();
}

uint64_t gpu_submitted(const gpu_host *h) {
    (void)h;
    return (uint64_t)page_submitted();
}

bool gpu_passed(gpu_host *h, uint64_t submitted) {
    (void)h;
    return page_passed((double)submitted);
}

void gpu_host_wait(gpu_host *h, uint32_t milliseconds) {
    (void)h;
    page_wait(milliseconds);
}
