/* The native GPU host on a real WebGPU (SwiftShader will do): things, command lists, read-backs, refusals, loss. Without a
 * WebGPU library or a Vulkan driver the test fails: GEMMULE_WEBGPU and VK_ICD_FILENAMES name them (tools/test.sh). */

#include "test.h"

#include "base/clock.h"
#include "base/pool.h"
#include "gpu/host_native.h"

#include <stdlib.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER
#endif
#if defined(ADDRESS_SANITIZER)
size_t __sanitizer_get_current_allocated_bytes(void); /* gcc has no header for it */
#endif

/* ---- helpers ---- */

static gpu_host *open_host(const char *disable) {
    error     e = { 0 };
    gpu_host *h = NULL;
    CHECK_MESSAGE(gpu_host_open(&(gpu_options){ .adapter = -1, .disable = disable }, &h, &e) == GM_OK, "%s", e.why);
    return h;
}

/* Closes the host and expects no unreported refusals. */
static void close_host(gpu_host *h) {
    error e = { 0 };
    CHECK_MESSAGE(gpu_host_problem(h, &e) == GM_OK, "%s", e.why);
    gpu_host_close(h);
}

enum { MOST_WORDS = 8192 };

typedef struct {
    uint32_t words[MOST_WORDS];
    size_t   count;
} list;

static void list_start(list *l) {
    l->words[0] = GPU_LIST_VERSION;
    l->count = 1;
}

static void list_add(list *l, uint32_t op, const uint32_t *words, uint32_t length) {
    l->words[l->count++] = op | length << 16;
    for (uint32_t i = 0; i < length; i++) l->words[l->count++] = words[i];
}

#define ADD(list, op, ...)                                                                                             \
    list_add(list, op, (const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static bool submit_list(gpu_host *h, const list *l) {
    error     e = { 0 };
    gm_status status;
    while ((status = gpu_submit(h, l->words, l->count, &e)) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK_MESSAGE(status == GM_OK, "%s", e.why);
    return status == GM_OK;
}

static void wait_for_pipelines(gpu_host *h) {
    while (gpu_pipelines_pending(h) && !h->lost) gpu_host_wait(h, 100);
}

static const double patience = 120; /* seconds after which something that does not happen will not happen */

static const void *wait_for_ticket(gpu_host *h, uint32_t ticket, uint64_t *bytes) {
    const double deadline = clock_seconds() + patience;
    const void  *data;
    while (!(data = gpu_ticket_data(h, ticket, bytes)) && clock_seconds() < deadline) gpu_host_wait(h, 100);
    return data;
}

static bool wait_until_idle(gpu_host *h) {
    const double deadline = clock_seconds() + patience;
    while (!gpu_idle(h) && clock_seconds() < deadline) gpu_host_wait(h, 100);
    return gpu_idle(h);
}

static void wait_for_problem(gpu_host *h) {
    const double deadline = clock_seconds() + patience;
    while (!h->problem.status && !h->lost && clock_seconds() < deadline) gpu_host_wait(h, 10);
}

static void wait_for_loss(gpu_host *h) {
    const double deadline = clock_seconds() + patience;
    while (!h->lost && clock_seconds() < deadline) gpu_host_wait(h, 10);
}

/* Reads words of a buffer back. */
static bool read_words(gpu_host *h, gpu_id buffer, uint64_t offset, uint32_t *out, uint32_t count) {
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

static gpu_id new_buffer(gpu_host *h, uint64_t bytes) {
    error        e = { 0 };
    const gpu_id id = gpu_buffer_new(h, bytes, &e);
    CHECK_MESSAGE(id, "%s", e.why);
    return id;
}

static void write_words(gpu_host *h, gpu_id buffer, uint64_t offset, const uint32_t *words, uint32_t count) {
    error e = { 0 };
    CHECK_MESSAGE(gpu_buffer_write(h, buffer, offset, words, count * 4, &e) == GM_OK, "%s", e.why);
}

/* The address sanitizer quarantines freed memory, so we count allocated bytes there instead of resident ones. */
static long memory_kib(void) {
#if defined(ADDRESS_SANITIZER)
    return (long)(__sanitizer_get_current_allocated_bytes() / 1024);
#else
    FILE *f = fopen("/proc/self/statm", "r");
    long  size = 0, resident = 0;
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) CHECK(!"/proc/self/statm can be read");
    if (f) fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
#endif
}

/* y[i] = x[i] * SCALE + ADD for i < COUNT */
static const char *const scale_shader = "override COUNT: u32; override SCALE: u32 = 1u; override ADD: u32;\n"
                                        "@group(0) @binding(0) var<storage, read> x: array<u32>;\n"
                                        "@group(0) @binding(1) var<storage, read_write> y: array<u32>;\n"
                                        "@compute @workgroup_size(64)\n"
                                        "fn main(@builtin(global_invocation_id) id: vec3u) {\n"
                                        "    if (id.x < COUNT) { y[id.x] = x[id.x] * SCALE + ADD; }\n"
                                        "}\n";

static gpu_id scale_pipeline(gpu_host *h, uint32_t count, uint32_t scale, uint32_t add) {
    error              e = { 0 };
    const gpu_constant constants[] = { { "COUNT", count }, { "SCALE", scale }, { "ADD", add } };
    const gpu_id       id = gpu_pipeline_new(h, "scale", scale_shader, constants, COUNT_OF(constants), &e);
    CHECK_MESSAGE(id, "%s", e.why);
    return id;
}

static gpu_id scale_group(gpu_host *h, gpu_id pipeline, gpu_id x, gpu_id y, uint64_t bytes) {
    error             e = { 0 };
    const gpu_binding bindings[] = { { 0, x, 0, bytes }, { 1, y, 0, bytes } };
    const gpu_id      id = gpu_group_new(h, pipeline, bindings, COUNT_OF(bindings), &e);
    CHECK_MESSAGE(id, "%s", e.why);
    return id;
}

/* ---- opening ---- */

static void check_info(const gpu_info *info) {
    CHECK(info->name[0] && info->backend[0]);
    CHECK_MESSAGE(info->max_buffer >= 256 << 20, "%llu", (unsigned long long)info->max_buffer);
    CHECK(info->max_binding >= 128 << 20 && info->max_binding <= info->max_buffer);
    CHECK(info->max_storage_buffers >= 8 && info->max_invocations >= 256 && info->max_workgroups >= 65535);
    CHECK(info->max_workgroup_bytes >= 16384 && info->alignment >= 4 && info->alignment <= 256);
    CHECK(info->subgroups == (info->subgroup_min > 0) && info->subgroup_min <= info->subgroup_max);
    CHECK(info->dot4);
}

static void test_command_list(void) {
    gpu_info all[8];
    error    e = { 0 };
    size_t   count = 0;
    TEST("the list of adapters");
    CHECK_MESSAGE(gpu_host_list(all, COUNT_OF(all), &count, &e) == GM_OK, "%s", e.why);
    CHECK(count >= 1);
    for (size_t i = 0; i < count && i < COUNT_OF(all); i++) {
        printf("adapter %zu: %s (%s, %s): subgroups %u to %u, f16 %d, dot4 %d, timestamps %d\n", i, all[i].name,
               all[i].backend, all[i].driver, all[i].subgroup_min, all[i].subgroup_max, all[i].f16, all[i].dot4,
               all[i].timestamps);
        check_info(&all[i]);
    }

    TEST("the list with no room says how many there are");
    size_t again = 0;
    CHECK(gpu_host_list(NULL, 0, &again, &e) == GM_OK && again == count);

    TEST("each adapter can be opened by its number, and the one behind the last is refused");
    for (size_t i = 0; i <= count; i++) {
        gpu_host *h = NULL;
        e = (error){ 0 };
        const gm_status status = gpu_host_open(&(gpu_options){ .adapter = (int32_t)i }, &h, &e);
        CHECK_MESSAGE(status == (i < count ? GM_OK : GM_NO_DEVICE), "%zu: %s", i, e.why);
        if (h && i < COUNT_OF(all)) CHECK(!strcmp(gpu_host_info(h)->name, all[i].name));
        gpu_host_close(h);
    }
}

static void test_info(gpu_host *h) {
    TEST("the device's facts");
    check_info(gpu_host_info(h));
    CHECK(gpu_host_bytes(h) == 0);
    CHECK(gpu_idle(h));
}

static void test_disable(const gpu_info *with) {
    static const char *const lists[] = { "subgroups", "f16", "dot4", "timestamps", "subgroups,dot4,f16" };
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        TEST("disabled: %s", lists[i]);
        gpu_host *h = open_host(lists[i]);
        if (!h) continue;
        const gpu_info *info = gpu_host_info(h);
        CHECK(info->subgroups == (with->subgroups && !strstr(lists[i], "subgroups")));
        CHECK(info->f16 == (with->f16 && !strstr(lists[i], "f16")));
        CHECK(info->dot4 == (with->dot4 && !strstr(lists[i], "dot4")));
        CHECK(info->timestamps == (with->timestamps && !strstr(lists[i], "timestamps")));
        error none = { 0 };
        CHECK(info->timestamps || (gpu_clock_start(h, &none) == GM_UNSUPPORTED && strstr(none.why, "no timestamps")));
        CHECK(info->subgroups || !info->subgroup_max);
        if (!info->subgroups) { /* really not asked for: a shader cannot use it */
            error e = { 0 };
            CHECK(
                !gpu_pipeline_new(h, "s", "enable subgroups;\n@compute @workgroup_size(1) fn main() {}", NULL, 0, &e));
        }
        close_host(h);
    }
    TEST("a feature that is none");
    error     e = { 0 };
    gpu_host *h = NULL;
    CHECK(gpu_host_open(&(gpu_options){ .adapter = -1, .disable = "dot4,warp" }, &h, &e) == GM_BAD_ARGUMENT && !h);
    CHECK_MESSAGE(strstr(e.why, "'warp'"), "%s", e.why);

    TEST("a library that is none");
    char saved[4096];
    snprintf(saved, sizeof saved, "%s", getenv("GEMMULE_WEBGPU") ? getenv("GEMMULE_WEBGPU") : "");
    static const char *const wrong[] = { "/no/such/library.so", "libm.so.6" };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        e = (error){ 0 };
        setenv("GEMMULE_WEBGPU", wrong[i], 1);
        CHECK(gpu_host_open(NULL, &h, &e) == GM_NO_DEVICE && !h);
        CHECK_MESSAGE(strstr(e.why, wrong[i]), "%s", e.why);
    }
    if (*saved) setenv("GEMMULE_WEBGPU", saved, 1);
    else unsetenv("GEMMULE_WEBGPU");
}

/* ---- buffers ---- */

static void test_buffers(gpu_host *h) {
    uint32_t     in[100], out[100] = { 0 };
    list         l;
    const gpu_id a = new_buffer(h, 400), b = new_buffer(h, 400);
    for (uint32_t i = 0; i < 100; i++) in[i] = i * 2654435761u;

    TEST("a new buffer is zero");
    CHECK(gpu_host_bytes(h) == 800);
    memset(out, 1, sizeof out);
    read_words(h, a, 0, out, 100);
    for (uint32_t i = 0; i < 100; i++) CHECK(out[i] == 0);

    TEST("write, copy, clear, read back");
    write_words(h, a, 0, in, 100);
    list_start(&l);
    ADD(&l, GPU_COPY, a, 40, 0, b, 80, 0, 200, 0);
    ADD(&l, GPU_CLEAR, a, 0, 0, 20, 0);
    submit_list(h, &l);
    read_words(h, b, 0, out, 100);
    for (uint32_t i = 0; i < 100; i++) CHECK(out[i] == (i >= 20 && i < 70 ? in[i - 10] : 0));
    read_words(h, a, 0, out, 100);
    for (uint32_t i = 0; i < 100; i++) CHECK(out[i] == (i < 5 ? 0 : in[i]));

    TEST("a write of the list comes before all of its commands");
    list_start(&l);
    ADD(&l, GPU_COPY, a, 396, 0, b, 396, 0, 4, 0);
    ADD(&l, GPU_WRITE, a, 392, 0, 7, 8);
    submit_list(h, &l);
    read_words(h, b, 396, out, 1);
    CHECK(out[0] == 8);

    TEST("parts of a buffer come back from where they are");
    read_words(h, a, 28, out, 3);
    CHECK(out[0] == in[7] && out[1] == in[8] && out[2] == in[9]);

    TEST("writes out of a buffer are refused");
    static const struct {
        uint64_t offset, bytes;
    } wrong[] = { { 2, 4 }, { 0, 3 }, { 400, 4 }, { 0, 404 }, { UINT64_MAX - 3, 8 }, { 4, UINT64_MAX - 3 } };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        error e = { 0 };
        CHECK(gpu_buffer_write(h, a, wrong[i].offset, in, wrong[i].bytes, &e) == GM_BAD_ARGUMENT);
    }

    TEST("a freed buffer is dead, also when its place is used again");
    error e = { 0 };
    gpu_buffer_free(h, a);
    gpu_buffer_free(h, a);
    const gpu_id c = new_buffer(h, 6);
    CHECK(c != a && gpu_host_bytes(h) == 408);
    CHECK(gpu_buffer_write(h, a, 0, in, 4, &e) == GM_BAD_ARGUMENT);
    CHECK(gpu_buffer_write(h, 0, 0, in, 4, &(error){ 0 }) == GM_BAD_ARGUMENT);
    gpu_buffer_free(h, b);
    gpu_buffer_free(h, c);
    CHECK(gpu_host_bytes(h) == 0);
}

static void test_generations(gpu_host *h) {
    TEST("an old ticket never lives again");
    const uint32_t first = gpu_ticket_new(h);
    bool           seen = false;
    gpu_ticket_done(h, first);
    for (int i = 0; i < 10000; i++) {
        const uint32_t ticket = gpu_ticket_new(h);
        seen = seen || ticket == first || !ticket;
        gpu_ticket_done(h, ticket);
    }
    CHECK(!seen);
}

static void test_too_large(gpu_host *h) {
    error e = { 0 };
    TEST("a buffer beyond the limit is refused");
    CHECK(!gpu_buffer_new(h, gpu_host_info(h)->max_buffer + 4, &e) && e.status == GM_NO_MEMORY);
    CHECK(!gpu_buffer_new(h, UINT64_MAX, &(error){ 0 }));
    CHECK(!gpu_buffer_new(h, 0, &(error){ 0 }));

    TEST("buffers up to the end of memory: an error, and the host can go on");
    /* SwiftShader refuses a buffer of its own limit; real GPUs have an end as well, but not a cheap one. */
    if (gpu_host_info(h)->software) {
        e = (error){ 0 };
        CHECK(!gpu_buffer_new(h, gpu_host_info(h)->max_buffer, &e));
        CHECK_MESSAGE(e.status == GM_NO_MEMORY, "%d %s", e.status, e.why);
    }
    const gpu_id   fine = new_buffer(h, 16);
    const uint32_t in[] = { 1, 2, 3, 4 };
    uint32_t       out[4] = { 0 };
    write_words(h, fine, 0, in, 4);
    read_words(h, fine, 0, out, 4);
    CHECK(!memcmp(in, out, sizeof in));
    CHECK(gpu_host_bytes(h) == 16);
    gpu_buffer_free(h, fine);
}

/* Keeps a software GPU busy for some hundred milliseconds. */
static void slow_work(gpu_host *h, gpu_id buffer) {
    static const char *const wgsl = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n"
                                    "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {\n"
                                    "    var a = id.x;\n"
                                    "    for (var i = 0u; i < 1500u; i++) { a = a * 1664525u + x[a % 64u]; }\n"
                                    "    x[64u + id.x] = a;\n"
                                    "}\n";
    error                    e = { 0 };
    list                     l;
    const gpu_id             pipeline = gpu_pipeline_new(h, "slow", wgsl, NULL, 0, &e);
    const gpu_binding        binding = { 0, buffer, 0, 1 << 20 };
    const gpu_id             group = gpu_group_new(h, pipeline, &binding, 1, &e);
    CHECK_MESSAGE(group, "%s", e.why);
    list_start(&l);
    ADD(&l, GPU_DISPATCH, pipeline, group, 256, 1, 1);
    submit_list(h, &l);
    gpu_group_free(h, group);
}

static void test_write_limit(gpu_host *h) {
    enum { PIECE = 8 << 20 };
    TEST("at most 64 MiB of writes are in flight, and waiting makes room");
    error        e = { 0 };
    char        *data = calloc(1, PIECE);
    const gpu_id buffer = new_buffer(h, PIECE);
    int          taken = 0, again = 0;
    uint32_t     last = 0;
    slow_work(h, buffer); /* the writes queue up behind it */
    for (uint32_t i = 1; i <= 40 && data; i++) {
        memcpy(data, &i, 4);
        gm_status status;
        while ((status = gpu_buffer_write(h, buffer, 0, data, PIECE, &e)) == GM_AGAIN) {
            again++;
            CHECK(h->write_bytes > (64 << 20) - PIECE && h->write_bytes <= 64 << 20);
            gpu_host_wait(h, 1000);
        }
        CHECK_MESSAGE(status == GM_OK, "%s", e.why);
        taken += status == GM_OK;
    }
    CHECK(taken == 40 && (again > 0 || !gpu_host_info(h)->software));
    read_words(h, buffer, 0, &last, 1);
    CHECK(last == 40);
    CHECK(wait_until_idle(h) && h->write_bytes == 0);
    CHECK(gpu_buffer_write(h, buffer, 0, data, (64 << 20) + 4, &e) == GM_BAD_ARGUMENT);
    free(data);
    gpu_buffer_free(h, buffer);
}

/* ---- kernels ---- */

static void test_kernels(gpu_host *h) {
    static const uint32_t sizes[] = { 1, 3, 63, 64, 65, 127, 1000, 4099 };
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        const uint32_t n = sizes[s];
        TEST("a kernel over %u values", n);
        uint32_t    *in = calloc(n, 4), *out = calloc(n + 1, 4);
        const gpu_id x = new_buffer(h, n * 4), y = new_buffer(h, (n + 1) * 4);
        const gpu_id pipeline = scale_pipeline(h, n, 3, 5), group = scale_group(h, pipeline, x, y, n * 4);
        list         l;
        if (!in || !out) exit(1);
        for (uint32_t i = 0; i < n; i++) in[i] = i + 7;
        write_words(h, x, 0, in, n);
        list_start(&l);
        ADD(&l, GPU_DISPATCH, pipeline, group, (n + 63) / 64, 1, 1);
        submit_list(h, &l);
        bool right = read_words(h, y, 0, out, n + 1) && out[n] == 0;
        for (uint32_t i = 0; i < n; i++) right = right && out[i] == in[i] * 3 + 5;
        CHECK(right);
        gpu_group_free(h, group);
        gpu_buffer_free(h, x);
        gpu_buffer_free(h, y);
        free(in);
        free(out);
    }
}

static void test_chain(gpu_host *h) {
    TEST("dispatches of a list see what those before wrote, over passes and inside one");
    list           l;
    uint32_t       out[4] = { 0 };
    const uint32_t in[] = { 1, 2, 3, 4 };
    const gpu_id   x = new_buffer(h, 16), y = new_buffer(h, 16);
    const gpu_id   twice = scale_pipeline(h, 4, 2, 0), more = scale_pipeline(h, 4, 1, 1);
    const gpu_id   forth = scale_group(h, twice, x, y, 16), back = scale_group(h, more, y, x, 16);
    list_start(&l);
    ADD(&l, GPU_WRITE, x, 0, 0, in[0], in[1], in[2], in[3]);
    for (int i = 0; i < 3; i++) { /* x = 2 x + 1 */
        ADD(&l, GPU_DISPATCH, twice, forth, 1, 1, 1);
        if (i == 1) list_add(&l, GPU_END_PASS, NULL, 0);
        ADD(&l, GPU_DISPATCH, more, back, 1, 1, 1);
    }
    submit_list(h, &l);
    read_words(h, x, 0, out, 4);
    for (uint32_t i = 0; i < 4; i++) CHECK(out[i] == in[i] * 8 + 7);

    TEST("indirect dispatch");
    const gpu_id   counts = new_buffer(h, 64);
    const uint32_t groups[] = { 0, 1, 1, 1, 0, 1 }; /* from word 1: one group; from word 3: none */
    write_words(h, counts, 0, groups, 6);
    list_start(&l);
    ADD(&l, GPU_INDIRECT, twice, forth, counts, 4, 0);
    ADD(&l, GPU_INDIRECT, more, back, counts, 12, 0);
    submit_list(h, &l);
    read_words(h, y, 0, out, 4);
    for (uint32_t i = 0; i < 4; i++) CHECK(out[i] == (in[i] * 8 + 7) * 2);
    read_words(h, x, 0, out, 4);
    for (uint32_t i = 0; i < 4; i++) CHECK(out[i] == in[i] * 8 + 7);

    TEST("the same text and constants are the same pipeline");
    const size_t count = gpu_pipelines(h);
    CHECK(scale_pipeline(h, 4, 2, 0) == twice && more != twice && gpu_pipelines(h) == count);
    gpu_group_free(h, forth);
    gpu_group_free(h, back);
    gpu_buffer_free(h, x);
    gpu_buffer_free(h, y);
    gpu_buffer_free(h, counts);
}

/* Callbacks run only in calls that process events, so a pipeline is pending until the first of those. */
/* ---- timing ---- */

/* Times of `count` dispatches, which alternate between two groups. */
static void check_times(gpu_host *h, const gpu_id groups[2], size_t count) {
    gpu_time times[100];
    size_t   taken = 0;
    double   seconds = 0;
    bool     right = true;
    for (int round = 0; taken < count && round < 10000; round++) {
        const size_t n = gpu_clock_take(h, times, COUNT_OF(times));
        for (size_t i = 0; i < n; i++) {
            right = right && times[i].group == groups[(taken + i) % 2] && times[i].seconds >= 0;
            seconds += times[i].seconds;
        }
        taken += n;
        if (!n) gpu_host_wait(h, 10);
    }
    CHECK_MESSAGE(taken == count && right, "%zu of %zu", taken, count);
    CHECK_MESSAGE(seconds > 0 && seconds < 60, "%g seconds", seconds);
    CHECK(gpu_clock_take(h, times, COUNT_OF(times)) == 0);
}

static void test_clock(gpu_host *h) {
    TEST("times of dispatches, more than a query set holds");
    error        e = { 0 };
    list         l;
    uint32_t     out[4] = { 0 };
    const gpu_id x = new_buffer(h, 16), y = new_buffer(h, 16), pipeline = scale_pipeline(h, 4, 1, 1);
    const gpu_id groups[2] = { scale_group(h, pipeline, x, y, 16), scale_group(h, pipeline, y, x, 16) };
    list_start(&l);
    for (int i = 0; i < 1100; i++) ADD(&l, GPU_DISPATCH, pipeline, groups[i % 2], 1, 1, 1);
    CHECK(gpu_clock_start(h, &e) == GM_OK);
    submit_list(h, &l);
    list_start(&l);
    ADD(&l, GPU_DISPATCH, pipeline, groups[0], 1, 1, 1);
    ADD(&l, GPU_COPY, y, 0, 0, x, 0, 0, 16, 0);
    ADD(&l, GPU_DISPATCH, pipeline, groups[1], 1, 1, 1);
    submit_list(h, &l);
    check_times(h, groups, 1102);
    CHECK(read_words(h, x, 0, out, 4) && out[0] == 1102 && out[3] == 1102);

    TEST("no times after the clock was stopped");
    gpu_time time;
    submit_list(h, &l);
    gpu_clock_stop(h); /* with times in the air */
    submit_list(h, &l);
    CHECK(wait_until_idle(h) && gpu_clock_take(h, &time, 1) == 0);
    gpu_group_free(h, groups[0]);
    gpu_group_free(h, groups[1]);
    gpu_buffer_free(h, x);
    gpu_buffer_free(h, y);
}

static void test_compiling(gpu_host *h) {
    enum { MANY = 24 };
    TEST("pipelines compile in the background");
    list         l;
    gpu_id       pipelines[MANY], groups[MANY];
    const gpu_id x = new_buffer(h, 16), y = new_buffer(h, 16);
    write_words(h, x, 0, (const uint32_t[]){ 1, 2, 3, 4 }, 4);
    for (uint32_t i = 0; i < MANY; i++) {
        pipelines[i] = scale_pipeline(h, 4, 1, 1000 + i);
        groups[i] = scale_group(h, pipelines[i], x, y, 16);
    }
    CHECK(gpu_pipelines_pending(h) == MANY && h->compiling && h->compiling <= 2 * usable_processors());
    list_start(&l);
    ADD(&l, GPU_DISPATCH, pipelines[MANY - 1], groups[MANY - 1], 1, 1, 1);
    CHECK(gpu_submit(h, l.words, l.count, &(error){ 0 }) == GM_AGAIN);
    for (uint32_t i = 0; i < MANY; i++) { /* each is there when its list is taken, and is the right one */
        uint32_t out = 0;
        list_start(&l);
        ADD(&l, GPU_DISPATCH, pipelines[i], groups[i], 1, 1, 1);
        submit_list(h, &l);
        read_words(h, y, 0, &out, 1);
        CHECK_MESSAGE(out == 1001 + i, "%u", out);
    }
    CHECK(!gpu_pipelines_pending(h) && !h->compiling && !h->module_count);

    TEST("a bind group whose buffer is freed before its pipeline is ready");
    const gpu_id doomed = new_buffer(h, 16), late = scale_pipeline(h, 4, 1, 2000);
    const gpu_id group = scale_group(h, late, x, doomed, 16);
    gpu_buffer_free(h, doomed);
    wait_for_pipelines(h);
    list_start(&l);
    ADD(&l, GPU_DISPATCH, late, group, 1, 1, 1);
    CHECK(gpu_submit(h, l.words, l.count, &(error){ 0 }) == GM_BAD_ARGUMENT);
    gpu_group_free(h, group);
    for (uint32_t i = 0; i < MANY; i++) gpu_group_free(h, groups[i]);
    gpu_buffer_free(h, x);
    gpu_buffer_free(h, y);
}

/* The error of a shader that does not compile: from the call, or later as a problem of the host. */
static void refuse_shader(gpu_host *h, const char *name, const char *wgsl, size_t constants, error *e) {
    const gpu_constant constant = { "NOTHING", 1 };
    const gpu_id       pipeline = gpu_pipeline_new(h, name, wgsl, &constant, constants, e);
    if (!pipeline) return;
    wait_for_pipelines(h);
    gpu_host_problem(h, e);
    error again = { 0 }; /* the same shader is refused for the same reason, and cannot be bound */
    CHECK(!gpu_pipeline_new(h, name, wgsl, &constant, constants, &again) && !strcmp(again.why, e->why));
    CHECK(!gpu_group_new(h, pipeline, NULL, 0, &(error){ 0 }));
}

static void test_bad_shaders(gpu_host *h) {
    static const struct {
        const char *name, *wgsl, *expect;
        size_t      constants;
    } rows[] = {
        { "syntax", "@compute @workgroup_size(1)\nfn main() {\n    let x = ;\n}\n", "syntax:3:", 0 },
        { "unknown name", "@compute @workgroup_size(1)\nfn main() { let x = nothing; }\n", "unknown name:2:", 0 },
        { "no entry point", "fn other() {}\n", "no entry point", 0 },
        { "unknown constant", "@compute @workgroup_size(1) fn main() {}\n", "unknown constant", 1 },
        { "constant that is missing", "override N: u32; @compute @workgroup_size(N) fn main() {}\n",
          "constant that is missing", 0 },
        { "too many invocations", "@compute @workgroup_size(1 << 20) fn main() {}\n", "too many invocations", 0 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("broken shader: %s", rows[i].name);
        error e = { 0 };
        refuse_shader(h, rows[i].name, rows[i].wgsl, rows[i].constants, &e);
        CHECK_MESSAGE(e.status == GM_BAD_ARGUMENT && strstr(e.why, rows[i].expect), "%d %s", e.status, e.why);
    }
}

/* ---- refusals ---- */

static void test_bad_groups(gpu_host *h) {
    TEST("bindings that do not fit are refused");
    const gpu_id      x = new_buffer(h, 1024), y = new_buffer(h, 1024), dead = new_buffer(h, 1024);
    const gpu_id      pipeline = scale_pipeline(h, 4, 1, 0);
    const gpu_binding good[2] = { { 0, x, 0, 16 }, { 1, y, 256, 16 } };
    gpu_buffer_free(h, dead);
    const gpu_binding wrong[] = {
        { 1, dead, 0, 16 }, { 1, 0, 0, 16 }, { 1, pipeline, 0, 16 },          { 1, y, 2, 16 }, { 1, y, 0, 2000 },
        { 1, y, 1024, 16 }, { 1, y, 0, 0 },  { 1, y, UINT64_MAX - 255, 512 }, { 2, y, 0, 16 }, { 0, y, 0, 16 },
    };
    wait_for_pipelines(h); /* bindings that its shader does not have are refused once it is ready */
    const gpu_id fine = gpu_group_new(h, pipeline, good, 2, &(error){ 0 });
    CHECK(fine);
    gpu_group_free(h, fine);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        error             e = { 0 };
        const gpu_binding bindings[] = { good[0], wrong[i] };
        CHECK_MESSAGE(!gpu_group_new(h, pipeline, bindings, 2, &e) && e.status == GM_BAD_ARGUMENT, "row %zu", i);
    }
    CHECK(!gpu_group_new(h, pipeline, good, 1, &(error){ 0 }));
    CHECK(!gpu_group_new(h, x, good, 2, &(error){ 0 }));
    gpu_buffer_free(h, x);
    gpu_buffer_free(h, y);
}

static void test_bad_lists(gpu_host *h) {
    const gpu_id   x = new_buffer(h, 64), y = new_buffer(h, 64), dead = new_buffer(h, 64);
    const gpu_id   pipeline = scale_pipeline(h, 4, 1, 0), other = scale_pipeline(h, 4, 1, 1);
    const gpu_id   group = scale_group(h, pipeline, x, y, 64), doomed = scale_group(h, pipeline, x, dead, 64);
    const uint32_t ticket = gpu_ticket_new(h), used = gpu_ticket_new(h);
    gpu_buffer_free(h, dead);
    gpu_ticket_done(h, used);
    const uint32_t many = gpu_host_info(h)->max_workgroups + 1;
#define HEAD(op, length) GPU_LIST_VERSION, (op) | (length) << 16
    const struct {
        const char *name;
        uint32_t    count, words[24];
    } rows[] = {
        { "no words", 0, { 0 } },
        { "another version", 1, { GPU_LIST_VERSION + 1 } },
        { "op 0", 2, { HEAD(0, 0) } },
        { "an op too high", 2, { HEAD(8, 0) } },
        { "cut off", 3, { HEAD(GPU_DISPATCH, 5), pipeline } },
        { "too short", 6, { HEAD(GPU_DISPATCH, 4), pipeline, group, 1, 1 } },
        { "too long", 8, { HEAD(GPU_DISPATCH, 6), pipeline, group, 1, 1, 1, 1 } },
        { "no pipeline", 7, { HEAD(GPU_DISPATCH, 5), 0, group, 1, 1, 1 } },
        { "no group", 7, { HEAD(GPU_DISPATCH, 5), pipeline, 0, 1, 1, 1 } },
        { "a buffer as group", 7, { HEAD(GPU_DISPATCH, 5), pipeline, x, 1, 1, 1 } },
        { "a group of another pipeline", 7, { HEAD(GPU_DISPATCH, 5), other, group, 1, 1, 1 } },
        { "a group with a dead buffer", 7, { HEAD(GPU_DISPATCH, 5), pipeline, doomed, 1, 1, 1 } },
        { "too many workgroups", 7, { HEAD(GPU_DISPATCH, 5), pipeline, group, 1, many, 1 } },
        { "indirect behind the end", 7, { HEAD(GPU_INDIRECT, 5), pipeline, group, x, 56, 0 } },
        { "indirect of a dead buffer", 7, { HEAD(GPU_INDIRECT, 5), pipeline, group, dead, 0, 0 } },
        { "copy into itself", 10, { HEAD(GPU_COPY, 8), x, 0, 0, x, 32, 0, 16, 0 } },
        { "copy from behind the end", 10, { HEAD(GPU_COPY, 8), x, 60, 0, y, 0, 0, 8, 0 } },
        { "copy far behind the end", 10, { HEAD(GPU_COPY, 8), x, 0xfffffffc, 0xffffffff, y, 0, 0, 8, 0 } },
        { "copy to a dead buffer", 10, { HEAD(GPU_COPY, 8), x, 0, 0, dead, 0, 0, 8, 0 } },
        { "clear of 2 bytes", 7, { HEAD(GPU_CLEAR, 5), x, 0, 0, 2, 0 } },
        { "clear of nothing", 7, { HEAD(GPU_CLEAR, 5), x, 0, 0, 0, 0 } },
        { "clear of too much", 7, { HEAD(GPU_CLEAR, 5), x, 0, 0, 0, 1 } },
        { "write of nothing", 5, { HEAD(GPU_WRITE, 3), x, 0, 0 } },
        { "write behind the end", 7, { HEAD(GPU_WRITE, 5), x, 60, 0, 1, 2 } },
        { "read without ticket", 8, { HEAD(GPU_READ, 6), x, 0, 0, 16, 0, 0 } },
        { "read with an old ticket", 8, { HEAD(GPU_READ, 6), x, 0, 0, 16, 0, used } },
        { "read behind the end", 8, { HEAD(GPU_READ, 6), x, 52, 0, 16, 0, ticket } },
        { "two reads with one ticket",
          15,
          { HEAD(GPU_READ, 6), x, 0, 0, 16, 0, ticket, GPU_READ | 6 << 16, x, 0, 0, 16, 0, ticket } },
        { "good, then bad", 9, { HEAD(GPU_WRITE, 4), x, 0, 0, 77, GPU_CLEAR | 5 << 16, x, 0 } },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("bad list: %s", rows[i].name);
        error e = { 0 };
        CHECK(gpu_submit(h, rows[i].words, rows[i].count, &e) == GM_BAD_ARGUMENT && e.why[0]);
    }

    TEST("refused lists changed nothing");
    uint32_t out[16];
    memset(out, 1, sizeof out);
    CHECK(read_words(h, x, 0, out, 16) && out[0] == 0);
    list l;
    list_start(&l);
    ADD(&l, GPU_READ, x, 0, 0, 16, 0, ticket);
    CHECK(submit_list(h, &l) && wait_for_ticket(h, ticket, NULL));
    gpu_ticket_done(h, ticket);

    TEST("what only the GPU itself can refuse comes as a problem");
    error        e = { 0 };
    const gpu_id both = scale_group(h, pipeline, x, y, 64);
    list_start(&l);
    ADD(&l, GPU_INDIRECT, pipeline, both, y, 0, 0); /* read for the counts and written by the shader */
    gpu_submit(h, l.words, l.count, &e);
    wait_for_problem(h);
    CHECK_MESSAGE(gpu_host_problem(h, &e) == GM_BAD_ARGUMENT && e.why[0], "%s", e.why);
    CHECK(gpu_host_problem(h, &(error){ 0 }) == GM_OK);

    const gpu_id groups[] = { group, doomed, both };
    for (size_t i = 0; i < COUNT_OF(groups); i++) gpu_group_free(h, groups[i]);
    gpu_buffer_free(h, x);
    gpu_buffer_free(h, y);
}

/* ---- many submits ---- */

static void test_in_flight(gpu_host *h) {
    enum { MANY = 40 };
    TEST("%d submits in flight, answered in any order, some dropped", MANY);
    list         l;
    uint32_t     tickets[MANY], out = 0;
    const gpu_id x = new_buffer(h, 16), y = new_buffer(h, 16);
    const gpu_id more = scale_pipeline(h, 4, 1, 1), forth = scale_group(h, more, x, y, 16);
    for (uint32_t i = 0; i < MANY; i++) {
        tickets[i] = gpu_ticket_new(h);
        list_start(&l);
        ADD(&l, GPU_DISPATCH, more, forth, 1, 1, 1);
        ADD(&l, GPU_COPY, y, 0, 0, x, 0, 0, 16, 0);
        ADD(&l, GPU_READ, x, 0, 0, 4 * (1 + i % 4), 0, tickets[i]);
        submit_list(h, &l);
        if (i % 5 == 4) gpu_ticket_done(h, tickets[i]);
    }
    for (uint32_t i = MANY; i-- > 0;) {
        if (i % 5 == 4) continue;
        uint64_t    bytes = 0;
        const void *data = wait_for_ticket(h, tickets[i], &bytes);
        CHECK(data && bytes == 4 * (1 + i % 4));
        if (data) memcpy(&out, data, 4);
        CHECK_MESSAGE(out == i + 1, "%u instead of %u", out, i + 1);
    }
    for (uint32_t i = 0; i < MANY; i++) gpu_ticket_done(h, tickets[i]);
    CHECK(wait_until_idle(h));

    TEST("waiting for nothing returns at once");
    const double began = clock_seconds();
    gpu_host_wait(h, 300000);
    CHECK(clock_seconds() - began < patience);
    gpu_group_free(h, forth);
    gpu_buffer_free(h, x);
    gpu_buffer_free(h, y);
}

static void test_buffer_growth(gpu_host *h) {
    TEST("1000 submits need no more memory than the first 200");
    list         l;
    long         before = 0;
    const gpu_id x = new_buffer(h, 4096), y = new_buffer(h, 4096);
    const gpu_id more = scale_pipeline(h, 1024, 1, 1);
    const gpu_id forth = scale_group(h, more, x, y, 4096), back = scale_group(h, more, y, x, 4096);
    uint32_t     staging = 0, out = 0, pending[4] = { 0 };
    for (uint32_t i = 0; i < 1200; i++) {
        if (i == 200) {
            before = memory_kib();
            staging = h->staging_count;
        }
        const uint32_t ticket = gpu_ticket_new(h);
        list_start(&l);
        ADD(&l, GPU_WRITE, y, 4092, 0, i);
        for (int j = 0; j < 4; j++) ADD(&l, GPU_DISPATCH, more, j % 2 ? back : forth, 16, 1, 1);
        ADD(&l, GPU_READ, x, 0, 0, 64, 0, ticket);
        if (!submit_list(h, &l)) break;
        if (pending[i % 4]) {
            const void *data = wait_for_ticket(h, pending[i % 4], NULL);
            if (data) memcpy(&out, data, 4);
            CHECK_MESSAGE(out == (i - 3) * 4, "%u instead of %u", out, (i - 3) * 4);
            gpu_ticket_done(h, pending[i % 4]);
        }
        pending[i % 4] = ticket;
    }
    for (int i = 0; i < 4; i++) gpu_ticket_done(h, pending[i]);
    CHECK(wait_until_idle(h));
    const long after = memory_kib();
    CHECK_MESSAGE(h->staging_count == staging, "%u staging buffers, then %u", staging, h->staging_count);
    CHECK_MESSAGE(after - before <= 1024, "%ld KiB more", after - before);
    gpu_group_free(h, forth);
    gpu_group_free(h, back);
    gpu_buffer_free(h, x);
    gpu_buffer_free(h, y);
}

/* ---- opening and closing hosts ---- */

static void test_two_hosts(void) {
    TEST("two hosts at once");
    gpu_host      *a = open_host(NULL), *b = open_host("subgroups");
    const uint32_t in[] = { 1, 2, 3, 4 };
    uint32_t       out[4] = { 0 };
    if (a && b) {
        const gpu_id x = new_buffer(a, 16), y = new_buffer(b, 16);
        write_words(a, x, 0, in, 4);
        read_words(b, y, 0, out, 4);
        CHECK(out[0] == 0);
        gpu_host_close(b);
        b = NULL;
        read_words(a, x, 0, out, 4);
        CHECK(!memcmp(in, out, sizeof in));
    }
    gpu_host_close(b);
    if (a) close_host(a);
}

static void test_close_with_things_left(void) {
    TEST("close with everything left, read-backs in the air");
    gpu_host *h = open_host(NULL);
    list      l;
    if (!h) return;
    const gpu_id x = new_buffer(h, 1 << 20), y = new_buffer(h, 1 << 20), pipeline = scale_pipeline(h, 1 << 18, 1, 1);
    const gpu_id group = scale_group(h, pipeline, x, y, 1 << 20);
    for (int i = 0; i < 3; i++) {
        list_start(&l);
        ADD(&l, GPU_DISPATCH, pipeline, group, 1 << 12, 1, 1);
        ADD(&l, GPU_READ, y, 0, 0, 1 << 20, 0, gpu_ticket_new(h));
        submit_list(h, &l);
    }
    const uint32_t here = gpu_ticket_new(h);
    list_start(&l);
    ADD(&l, GPU_READ, y, 0, 0, 64, 0, here);
    submit_list(h, &l);
    CHECK(wait_for_ticket(h, here, NULL));
    gpu_ticket_new(h);
    list_start(&l);
    ADD(&l, GPU_DISPATCH, pipeline, group, 1 << 12, 1, 1);
    ADD(&l, GPU_READ, y, 0, 0, 64, 0, gpu_ticket_new(h));
    error e = { 0 };
    CHECK(gpu_clock_start(h, &e) == GM_OK);
    submit_list(h, &l);
    CHECK(!gpu_idle(h) || h->work_done == h->work);
    close_host(h);
    gpu_host_close(NULL);

    TEST("close while pipelines compile, and others wait for it");
    h = open_host(NULL);
    if (!h) return;
    for (uint32_t i = 0; i < 100; i++) scale_pipeline(h, 1 << 18, 1, i);
    CHECK(h->compiling && gpu_pipelines_pending(h) == 100);
    close_host(h);
}

static void test_loss_while_compiling(void) {
    TEST("a device that is lost while pipelines compile");
    gpu_host *h = open_host(NULL);
    error     e = { 0 };
    if (!h) return;
    for (uint32_t i = 0; i < 100; i++) scale_pipeline(h, 4, 2, i);
    CHECK(host_force_loss(h));
    wait_for_loss(h);
    CHECK_MESSAGE(gpu_host_problem(h, &e) == GM_DEVICE_LOST && strstr(e.why, "on purpose"), "%s", e.why);
    CHECK(!gpu_pipeline_new(h, "late", scale_shader, NULL, 0, &(error){ 0 }));
    gpu_host_close(h);
}

static void test_loss(void) {
    TEST("a lost device is told, everything after it refused, and a new host works");
    gpu_host      *h = open_host(NULL);
    list           l;
    error          e = { 0 };
    const uint32_t in[] = { 1, 2, 3, 4 };
    uint32_t       out[4] = { 0 };
    if (!h) return;
    const gpu_id   x = new_buffer(h, 16);
    const uint32_t ticket = gpu_ticket_new(h);
    write_words(h, x, 0, in, 4);
    list_start(&l);
    ADD(&l, GPU_READ, x, 0, 0, 16, 0, ticket);
    submit_list(h, &l);
    CHECK(host_force_loss(h));
    wait_for_loss(h);
    CHECK(!gpu_ticket_data(h, ticket, NULL) && gpu_idle(h));
    for (int i = 0; i < 2; i++) { /* it stays lost */
        e = (error){ 0 };
        CHECK_MESSAGE(gpu_host_problem(h, &e) == GM_DEVICE_LOST && strstr(e.why, "on purpose"), "%s", e.why);
    }
    CHECK(gpu_submit(h, l.words, l.count, &(error){ 0 }) == GM_DEVICE_LOST);
    CHECK(gpu_buffer_write(h, x, 0, in, 16, &(error){ 0 }) == GM_DEVICE_LOST);
    e = (error){ 0 };
    CHECK(!gpu_buffer_new(h, 16, &e) && e.status == GM_DEVICE_LOST);
    gpu_ticket_done(h, ticket);
    gpu_buffer_free(h, x);
    gpu_host_close(h);

    h = open_host(NULL);
    if (!h) return;
    const gpu_id y = new_buffer(h, 16);
    write_words(h, y, 0, in, 4);
    read_words(h, y, 0, out, 4);
    CHECK(!memcmp(in, out, sizeof in));
    close_host(h);
}

int main(void) {
    test_command_list();
    TEST("open");
    gpu_host *h = open_host(NULL);
    if (!h) return test_end();
    const gpu_info info = *gpu_host_info(h);
    test_info(h);
    test_buffers(h);
    test_generations(h);
    test_too_large(h);
    test_write_limit(h);
    test_kernels(h);
    test_chain(h);
    test_clock(h);
    test_compiling(h);
    test_bad_shaders(h);
    test_bad_groups(h);
    test_bad_lists(h);
    test_in_flight(h);
    test_buffer_growth(h);
    TEST("everything was given back");
    CHECK(gpu_host_bytes(h) == 0);
    close_host(h);
    test_disable(&info);
    test_two_hosts();
    test_close_with_things_left();
    test_loss();
    test_loss_while_compiling();
    return test_end();
}
