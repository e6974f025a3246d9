/* The native GPU host on a real WebGPU (SwiftShader will do): opening, buffers, many submits, closing, loss. Without a WebGPU library or a
 * Vulkan driver the test fails: GEMMULE_WEBGPU and VK_ICD_FILENAMES name them (tools/test.sh). test_gpu_lists.c is about kernels. */

#include "gpu_lists.h"

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

/* Writes of all sizes, small and large, with lists between them: each must come after all before it. */
static void test_write_order(gpu_host *h) {
    enum { WORDS = 3 << 20, ROUNDS = 60 };
    TEST("writes through staging memory keep their order with small writes and lists");
    const bool software = h->info.software;
    h->info.software = false; /* several threads copy, as for a real GPU */
    error        e = { 0 };
    uint32_t    *expected = calloc(WORDS, sizeof *expected), *found = calloc(WORDS, sizeof *found);
    const gpu_id x = new_buffer(h, WORDS * 4), y = new_buffer(h, WORDS * 4);
    uint32_t     random = 1;
    for (uint32_t i = 0; i < ROUNDS && expected && found; i++) {
        const uint32_t sizes[] = { 1, 16 << 10, (16 << 10) + 1, 1 << 20, (1 << 20) + 3, WORDS - 7 };
        random = random * 1664525 + 1013904223;
        const uint32_t count = sizes[i % COUNT_OF(sizes)], at = (random >> 8) % (WORDS - count);
        for (uint32_t j = 0; j < count; j++) expected[at + j] = i * WORDS + j;
        gm_status status;
        while ((status = gpu_buffer_write(h, x, at * 4, expected + at, count * 4, &e)) == GM_AGAIN)
            gpu_host_wait(h, 1000);
        CHECK_MESSAGE(status == GM_OK, "%s", e.why);
        if (i % 4) continue;
        list l;
        list_start(&l);
        ADD(&l, GPU_COPY, x, 0, 0, y, 0, 0, WORDS * 4, 0);
        ADD(&l, GPU_CLEAR, x, 64, 0, 128 << 10, 0);
        submit_list(h, &l);
        if (i % 16 == 0) read_words(h, y, 0, found, WORDS);
        CHECK(i % 16 != 0 || !memcmp(found, expected, WORDS * sizeof *found));
        memset(expected + 16, 0, 128 << 10);
    }
    if (found) read_words(h, x, 0, found, WORDS);
    CHECK(found && !memcmp(found, expected, WORDS * sizeof *found));
    size_t made = 0;
    for (size_t i = 0; i < UPLOAD_PIECES; i++) made += h->uploads.pieces[i].buffer != NULL;
    CHECK_MESSAGE(made > 1 && h->uploads.threads && !h->uploads.refused, "%zu pieces", made);
    h->info.software = software;

    TEST("a buffer may be freed right after a large write");
    CHECK(gpu_buffer_write(h, y, 0, expected, WORDS * 4, &e) == GM_OK);
    gpu_buffer_free(h, y);
    CHECK_MESSAGE(wait_until_idle(h) && gpu_host_problem(h, &e) == GM_OK, "%s", e.why);

    TEST("without staging memory, large writes go through the queue");
    h->uploads.refused = true;
    if (expected) memset(expected, 7, WORDS * sizeof *expected);
    CHECK(gpu_buffer_write(h, x, 0, expected, WORDS * 4, &e) == GM_OK);
    if (found) read_words(h, x, 0, found, WORDS);
    CHECK(found && !memcmp(found, expected, WORDS * sizeof *found));
    h->uploads.refused = false;
    free(expected);
    free(found);
    gpu_buffer_free(h, x);
}

static void test_source(gpu_host *h) {
    TEST("a source keeps what tickets brought, and writes parts of it");
    const uint32_t in[] = { 1, 2, 3, 4 }, nines[] = { 9, 9, 9, 9 };
    const gpu_id   x = new_buffer(h, 16), y = new_buffer(h, 16);
    const uint32_t tickets[] = { gpu_ticket_new(h), gpu_ticket_new(h) };
    uint32_t       out[4] = { 0 };
    gpu_id         made = 0;
    error          e = { 0 };
    list           l;
    write_words(h, x, 0, in, 4);
    list_start(&l);
    ADD(&l, GPU_READ, x, 8, 0, 8, 0, tickets[0]);
    ADD(&l, GPU_READ, x, 0, 0, 8, 0, tickets[1]);
    CHECK(gpu_source_new(h, tickets, 2, &made, &e) == GM_AGAIN && !made);
    submit_list(h, &l);
    for (size_t i = 0; i < 2; i++) CHECK(wait_for_ticket(h, tickets[i], NULL));
    CHECK(!gpu_source_new(h, tickets, 2, &made, &e) && made);
    for (size_t i = 0; i < 2; i++) gpu_ticket_done(h, tickets[i]);
    write_words(h, x, 0, nines, 4);
    CHECK(!gpu_source_write(h, made, 0, y, 0, 12, &e) && !gpu_source_write(h, made, 8, x, 12, 4, &e));
    read_words(h, y, 0, out, 4);
    CHECK(out[0] == 3 && out[1] == 4 && out[2] == 1 && out[3] == 0);
    read_words(h, x, 0, out, 4);
    CHECK(out[0] == 9 && out[3] == 1);
    CHECK(gpu_source_write(h, made, 8, y, 0, 12, &e) == GM_BAD_ARGUMENT && strstr(e.why, "which has 16"));
    CHECK(gpu_source_write(h, made, 0, y, 8, 12, &(error){ 0 }) == GM_BAD_ARGUMENT);
    gpu_source_free(h, made);
    CHECK(gpu_source_write(h, made, 0, y, 0, 4, &(error){ 0 }) == GM_BAD_ARGUMENT);
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
    test_write_order(h);
    test_source(h);
    test_write_limit(h);
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
