/* Decoding takes no more memory over time. Counts exactly: the engine asks for no memory while an answer is written, and after each
 * answer as much memory, as many objects of the WebGPU library and as many bytes on the GPU are in use as after the one before.
 *
 *     test_gpu_steady [long]
 *
 * `long` also watches what cannot be counted, the memory of the library and its driver: the private memory of the process after
 * 1,000 and after 10,000 tokens. Needs a WebGPU library and a Vulkan driver, like test_gpu_host. */

#include "test.h"

#include "gpu/host_native.h"
#include "gpu/pipeline.h"
#include "session/session.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>

enum { PROMPT = 4, ANSWER = 120 };

static char why[400];

/* ---- what the engine asks for: the linker puts these between it and the allocator ---- */

static struct {
    long requests, blocks; /* so far, and in use */
} heap;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
void  __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);
void  __wrap_free(void *p);

static void *heap_count(void *p) {
    heap.requests++;
    if (p) heap.blocks++;
    return p;
}

void *__wrap_malloc(size_t n) { return heap_count(__real_malloc(n)); }
void *__wrap_calloc(size_t n, size_t size) { return heap_count(__real_calloc(n, size)); }
void *__wrap_aligned_alloc(size_t alignment, size_t n) { return heap_count(__real_aligned_alloc(alignment, n)); }

void *__wrap_realloc(void *p, size_t n) {
    if (p) heap.blocks--;
    return heap_count(__real_realloc(p, n));
}

void __wrap_free(void *p) {
    if (p) heap.blocks--;
    __real_free(p);
}

/* ---- objects of the library: these come between the host and it ---- */

static long       objects;
static webgpu_api library;

static void *object_count(void *object) {
    if (object) objects++;
    return object;
}

#define COUNTED_NEW(result, name, parameters, ...)                                                                     \
    static result counted_##name parameters { return object_count(library.name(__VA_ARGS__)); }
#define COUNTED_RELEASE(type, name)                                                                                    \
    static void counted_##name(type object) {                                                                          \
        objects--;                                                                                                     \
        library.name(object);                                                                                          \
    }
COUNTED_NEW(WGPUBuffer, DeviceCreateBuffer, (WGPUDevice d, const WGPUBufferDescriptor *x), d, x)
COUNTED_NEW(WGPUBindGroup, DeviceCreateBindGroup, (WGPUDevice d, const WGPUBindGroupDescriptor *x), d, x)
COUNTED_NEW(WGPUCommandEncoder, DeviceCreateCommandEncoder, (WGPUDevice d, const void *x), d, x)
COUNTED_NEW(WGPUComputePassEncoder, CommandEncoderBeginComputePass, (WGPUCommandEncoder e, const void *x), e, x)
COUNTED_NEW(WGPUCommandBuffer, CommandEncoderFinish, (WGPUCommandEncoder e, const void *x), e, x)
COUNTED_RELEASE(WGPUBuffer, BufferRelease)
COUNTED_RELEASE(WGPUBindGroup, BindGroupRelease)
COUNTED_RELEASE(WGPUCommandEncoder, CommandEncoderRelease)
COUNTED_RELEASE(WGPUComputePassEncoder, ComputePassEncoderRelease)
COUNTED_RELEASE(WGPUCommandBuffer, CommandBufferRelease)

static void count_objects(webgpu_api *api) {
    library = *api;
#define COUNT(name) api->name = counted_##name
    COUNT(DeviceCreateBuffer);
    COUNT(DeviceCreateBindGroup);
    COUNT(DeviceCreateCommandEncoder);
    COUNT(CommandEncoderBeginComputePass);
    COUNT(CommandEncoderFinish);
    COUNT(BufferRelease);
    COUNT(BindGroupRelease);
    COUNT(CommandEncoderRelease);
    COUNT(ComputePassEncoderRelease);
    COUNT(CommandBufferRelease);
#undef COUNT
}

/* ---- the process, for `long` ---- */

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
    gm_status status;
    while ((status = gpu_submit(h, list.data, list.count, &e)) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK_MESSAGE(!status, "%s", e.why);
    while (!gpu_idle(h)) gpu_host_wait(h, 100);
    free(list.data);
    gpu_group_free(h, group);
    gpu_buffer_free(h, sums);
}

/* Without those stacks: they take a mebibyte and more, and such blocks are told apart (FIBER_STACK); what of them is really
 * used, and any large block of ours, shows in the private pages. */
enum { FIBER_STACK = 1 << 20 };

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
    return (usage){ mallinfo2().uordblks, kilobytes * 1024, gpu_host_bytes(engine->gpu.host),
                    engine->gpu.host->groups.count };
}

static void check_equal(uint64_t early, uint64_t late, uint64_t tolerance, const char *what) {
    CHECK_MESSAGE(early && fabs((double)early - (double)late) <= (double)tolerance, "%s: %llu, then %llu", what,
                  (unsigned long long)early, (unsigned long long)late);
}

/* ---- answers ---- */

static gm_session *open_steady_session(gm_engine **engine) {
    const gm_engine_options options = { .model = "tests/fixtures/tiny-dense.gguf", .backend = GM_BACKEND_GPU };
    gm_session             *s = NULL;
    *engine = NULL;
    CHECK_MESSAGE(!gm_engine_open(&options, engine, why, sizeof why), "%s", why);
    if (*engine)
        CHECK_MESSAGE(
            !gm_session_new(*engine, &(gm_session_options){ .context = PROMPT + ANSWER }, &s, why, sizeof why), "%s",
            why);
    return s;
}

/* One answer to a prompt of its own; returns how many tokens it had. `asked`: how often the engine asked for memory between the
 * fourth token and the last. */
static size_t write_answer(gm_session *s, uint32_t turn, long *asked) {
    gm_sampling    sampling;
    int32_t        prompt[PROMPT];
    gm_reply      *reply = NULL;
    gm_reply_stats stats = { 0 };
    gm_piece       piece;
    gm_status      status;
    long           before = -1;
    gm_sampling_default(s->engine, &sampling);
    sampling.temperature = 0;
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(300 + (i * 37 + turn * 11) % 300);
    const gm_reply_options options = { .sampling = &sampling, .max_tokens = ANSWER };
    CHECK_MESSAGE(!gm_reply_start_tokens(s, prompt, PROMPT, &options, &reply, why, sizeof why), "%s", why);
    if (!reply) return 0;
    while ((status = gm_reply_next(reply, &piece, why, sizeof why)) <= GM_AGAIN) {
        gm_reply_get_stats(reply, &stats);
        if (before < 0 && stats.reply_tokens >= 4) before = heap.requests;
    }
    *asked = before < 0 ? 0 : heap.requests - before;
    CHECK_MESSAGE(status == GM_DONE, "%s", why);
    gm_reply_get_stats(reply, &stats);
    gm_reply_free(reply);
    return status == GM_DONE ? stats.reply_tokens : 0;
}

static void test_counts(void) {
    TEST("what is in use after each answer");
    gm_engine  *engine;
    gm_session *s = open_steady_session(&engine);
    size_t      tokens = 0, longest = 0;
    long        asked, blocks = 0, held = 0;
    uint64_t    bytes = 0;
    if (s) count_objects(&engine->gpu.host->api);
    for (uint32_t turn = 0; s && turn < 12 && tokens < 240; turn++) {
        const size_t more = write_answer(s, turn, &asked);
        while (!gpu_idle(engine->gpu.host)) gpu_host_wait(engine->gpu.host, 100);
        if (blocks) {
            CHECK_MESSAGE(!asked, "answer %u: memory was asked for %ld times", turn, asked);
            CHECK_MESSAGE(heap.blocks == blocks, "answer %u: %ld blocks of memory, %ld before", turn, heap.blocks,
                          blocks);
            CHECK_MESSAGE(objects == held, "answer %u: %ld objects of the library, %ld before", turn, objects, held);
            CHECK_MESSAGE(gpu_host_bytes(engine->gpu.host) == bytes, "answer %u: %llu bytes on the GPU, %llu before",
                          turn, (unsigned long long)gpu_host_bytes(engine->gpu.host), (unsigned long long)bytes);
            tokens += more;
        }
        if (more > longest) longest = more;
        if (longest < ANSWER) continue; /* what the longest answer needs is there after it */
        blocks = heap.blocks;
        held = objects;
        bytes = gpu_host_bytes(engine->gpu.host);
    }
    CHECK_MESSAGE(tokens >= 240 && session_dispatches(s) > 0, "%zu tokens", tokens);
    gm_session_free(s);
    gm_engine_close(engine);
}

static void test_process(void) {
    enum { EARLY = 1000, LATE = 10000 };
    TEST("memory after %d and after %d tokens", EARLY, LATE);
    mallopt(M_MMAP_THRESHOLD, FIBER_STACK);
    gm_engine  *engine;
    gm_session *s = open_steady_session(&engine);
    size_t      tokens = 0, empty = 0;
    usage       noted = { 0, 0, 0, 0 };
    long        asked;
    if (s) crowd_the_gpu(engine->gpu.host);
    for (uint32_t turn = 0; s && tokens < LATE && empty < 10; turn++) { /* an answer may well begin with its end */
        const size_t more = write_answer(s, turn, &asked);
        tokens += more;
        empty = more ? 0 : empty + 1;
        if (!noted.host && tokens >= EARLY) noted = usage_now(engine);
    }
    CHECK_MESSAGE(tokens >= LATE, "%zu tokens", tokens);
    if (s) {
        const usage now = usage_now(engine);
        check_equal(noted.device, now.device, 1 << 20, "bytes on the GPU");
        check_equal(noted.groups, now.groups, 0, "bind groups");
        check_equal(noted.host, now.host, 1 << 20, "bytes allocated");
        check_equal(noted.resident, now.resident, 4 << 20, "private bytes"); /* fibers go deeper now and then */
        printf("%zu tokens: %llu bytes allocated, then %llu; %llu private, then %llu; on the GPU %llu, then %llu\n",
               tokens, (unsigned long long)noted.host, (unsigned long long)now.host, (unsigned long long)noted.resident,
               (unsigned long long)now.resident, (unsigned long long)noted.device, (unsigned long long)now.device);
    }
    gm_session_free(s);
    gm_engine_close(engine);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "long")) test_process();
    else test_counts();
    return test_end();
}
