/* Decoding must not take more memory over time: compares private and GPU memory after 1,000 and 10,000 tokens. Needs a WebGPU library
 * and a Vulkan driver, like test_gpu_host. */

#include "test.h"

#include "gpu/host_native.h"
#include "gpu/pipeline.h"
#include "session/session.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#if SANITIZED
#include <sanitizer/allocator_interface.h>
#endif

enum { PROMPT = 4, ANSWER = 120 };

static char why[400];

/* A GPU in software lives in this process: SwiftShader runs what meets at a barrier on fibers, and makes more of them, each with
 * a stack, whenever more of its work happens to overlap. Work that overlaps as much as any can makes them all beforehand. */
static const char crowd[] =
    "@group(0) @binding(0) var<storage, read_write> sums: array<u32>;\n"
    "var<workgroup> meeting: array<u32, 256>;\n"
    "@compute @workgroup_size(256)\n"
    "fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {\n"
    "    var mine: array<u32, 1024>;\n"
    "    for (var i = 0u; i < 1024u; i++) { mine[i] = i * thread; }\n"
    "    for (var i = 0u; i < 8u; i++) {\n"
    "        meeting[thread] = mine[(i * 131u + thread) % 1024u];\n"
    "        workgroupBarrier();\n"
    "        mine[i * 17u + thread] += meeting[(thread + 1u) % 256u];\n"
    "        workgroupBarrier();\n"
    "    }\n"
    "    sums[at.x * 256u + thread] = mine[thread * 3u];\n"
    "}\n";

static void crowd_the_gpu(gpu_host *h) {
    enum { GROUPS = 64, TIMES = 20, BYTES = GROUPS * 256 * 4 };
    error        e = { 0 };
    const gpu_id sums = gpu_buffer_new(h, BYTES, &e), pipeline = gpu_pipeline_new(h, "crowd", crowd, NULL, 0, &e);
    const gpu_id group = gpu_group_new(h, pipeline, &(gpu_binding){ 0, sums, 0, BYTES }, 1, &e);
    gpu_words    list = { 0 };
    gpu_words_begin(&list);
    for (int i = 0; i < TIMES; i++) gpu_words_dispatch(&list, pipeline, group, GROUPS, 1, 1);
    CHECK_MESSAGE(!gpu_submit(h, list.data, list.count, &e), "%s", e.why);
    while (!gpu_idle(h)) gpu_host_wait(h, 100);
    free(list.data);
    gpu_group_free(h, group);
    gpu_pipeline_free(h, pipeline);
    gpu_buffer_free(h, sums);
}

/* Without those stacks: they take a mebibyte and more, and such blocks are told apart (FIBER_STACK); what of them is really
 * used, and any large block of ours, shows in the private pages. */
enum { FIBER_STACK = 1 << 20 };

static uint64_t allocated_bytes(void) {
#if SANITIZED
    return __sanitizer_get_current_allocated_bytes();
#else
    return mallinfo2().uordblks;
#endif
}

typedef struct {
    uint64_t host, resident, device, groups; /* bytes allocated here, private pages, bytes on the GPU, bind groups */
} usage;

static usage usage_now(const gm_engine *engine) {
    malloc_trim(0); /* what was freed is no longer in use */
    char     line[200];
    uint64_t kilobytes = 0;
    FILE    *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "RssAnon: %" SCNu64, &kilobytes);
    if (file) fclose(file);
    return (usage){ allocated_bytes(), kilobytes * 1024, gpu_host_bytes(engine->gpu.host),
                    engine->gpu.host->groups.count };
}

static void check_equal(uint64_t early, uint64_t late, uint64_t tolerance, const char *what) {
    CHECK_MESSAGE(early && fabs((double)early - (double)late) <= (double)tolerance, "%s: %llu, then %llu", what,
                  (unsigned long long)early, (unsigned long long)late);
}

/* One answer to a prompt of its own; returns how many tokens it had. Notes the usage once `early` tokens are there in all. */
static size_t write_answer(gm_session *s, uint32_t turn, size_t before, size_t early, usage *noted) {
    gm_sampling    sampling;
    int32_t        prompt[PROMPT];
    gm_reply      *reply = NULL;
    gm_reply_stats stats = { 0 };
    gm_piece       piece;
    gm_status      status;
    gm_sampling_default(s->engine, &sampling);
    sampling.temperature = 0;
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(300 + (i * 37 + turn * 11) % 300);
    const gm_reply_options options = { .sampling = &sampling, .max_tokens = ANSWER };
    CHECK_MESSAGE(!gm_reply_start_tokens(s, prompt, PROMPT, &options, &reply, why, sizeof why), "%s", why);
    if (!reply) return 0;
    while ((status = gm_reply_next(reply, &piece, why, sizeof why)) <= GM_AGAIN) {
        gm_reply_get_stats(reply, &stats);
        if (!noted->host && before + stats.reply_tokens >= early) *noted = usage_now(s->engine);
    }
    CHECK_MESSAGE(status == GM_DONE, "%s", why);
    gm_reply_get_stats(reply, &stats);
    gm_reply_free(reply);
    return status == GM_DONE ? stats.reply_tokens : 0;
}

int main(void) {
    mallopt(M_MMAP_THRESHOLD, FIBER_STACK);
    const size_t early = SANITIZED ? 300 : 1000, late = SANITIZED ? 1000 : 10000;
    TEST("memory after %zu and after %zu tokens", early, late);
    const gm_engine_options options = { .model = "tests/fixtures/tiny-dense.gguf", .backend = GM_BACKEND_GPU };
    gm_engine              *engine = NULL;
    gm_session             *s = NULL;
    size_t                  tokens = 0, empty = 0;
    usage                   noted = { 0, 0, 0, 0 };
    CHECK_MESSAGE(!gm_engine_open(&options, &engine, why, sizeof why), "%s", why);
    if (engine) crowd_the_gpu(engine->gpu.host);
    if (engine)
        CHECK_MESSAGE(!gm_session_new(engine, &(gm_session_options){ .context = PROMPT + ANSWER }, &s, why, sizeof why),
                      "%s", why);
    for (uint32_t turn = 0; s && tokens < late && empty < 10; turn++) { /* an answer may well begin with its end */
        const size_t more = write_answer(s, turn, tokens, early, &noted);
        tokens += more;
        empty = more ? 0 : empty + 1;
    }
    CHECK_MESSAGE(tokens >= late, "%zu tokens", tokens);
    if (s) {
        const usage now = usage_now(engine);
        CHECK(session_dispatches(s) > 0);
        check_equal(noted.device, now.device, 1 << 20, "bytes on the GPU");
        check_equal(noted.groups, now.groups, 0, "bind groups");
        check_equal(noted.host, now.host, 1 << 20, "bytes allocated");
        /* Fibers go deeper into their stacks now and then; a sanitizer keeps what is freed. */
        if (!SANITIZED) check_equal(noted.resident, now.resident, 4 << 20, "private bytes");
        printf("%zu tokens: %llu bytes allocated, then %llu; %llu private, then %llu; on the GPU %llu, then %llu\n",
               tokens, (unsigned long long)noted.host, (unsigned long long)now.host, (unsigned long long)noted.resident,
               (unsigned long long)now.resident, (unsigned long long)noted.device, (unsigned long long)now.device);
    }
    gm_session_free(s);
    gm_engine_close(engine);
    return test_end();
}
