/* Command lists of the native GPU host: kernels, their times, pipelines that compile in the background, and what is refused: shaders,
 * groups of bindings, lists. Runs as test_gpu_host.c does. */

#include "base/pool.h"
#include "gpu_lists.h"

#include <stdlib.h>

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

int main(void) {
    TEST("open");
    gpu_host *h = open_host(NULL);
    if (!h) return test_end();
    test_kernels(h);
    test_chain(h);
    test_clock(h);
    test_compiling(h);
    test_bad_shaders(h);
    test_bad_groups(h);
    test_bad_lists(h);
    TEST("everything was given back");
    CHECK(gpu_host_bytes(h) == 0);
    close_host(h);
    return test_end();
}
