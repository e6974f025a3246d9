/* Opening an engine from pieces: for any size of the pieces and any order of the answers, it must compute the same as from a complete
 * file. Failures are reported and leave nothing behind.
 *
 *     test_load [cpu|gpu] */

#include "session/session.h"

#include "load_host.h"
#include "model_file.h"
#include "quick_gpu.h"
#include "test.h"

static gm_backend device = GM_BACKEND_CPU;

static const char dense[] = "tests/fixtures/tiny-dense.gguf", moe[] = "tests/fixtures/tiny-moe.gguf",
                  small[] = "tests/fixtures/small-dense-Q4_K_M.gguf";

static const int32_t tokens[] = { 2,   301, 355, 412, 333, 300, 478, 390, 402, 311,
                                  322, 345, 367, 378, 389, 401, 350, 360, 370, 380 };

static buffer whole_file(const char *path) { return model_file_edit(path, NULL, 0); }

static load_host host_of(const buffer *file) {
    return (load_host){ .bytes = { (const uint8_t *)file->data }, .sizes = { file->length }, .parts = 1 };
}

static gm_engine_options options_of(void) {
    return (gm_engine_options){ .backend = device, .threads = 1, .precise = true };
}

/* What an engine over the whole file has: logits, and the digest by which snapshots know the model. */
typedef struct {
    const char *path;
    float       logits[640];
    char        digest[65];
} expectation;

static const expectation *expect_logits(const char *path, const buffer *file) {
    static expectation known[4];
    size_t             i = 0;
    while (known[i].path && strcmp(known[i].path, path) != 0) i++;
    if (known[i].path) return &known[i];
    char              why[400] = "";
    gm_engine        *engine = NULL;
    gm_session       *s = NULL;
    gm_engine_options options = options_of();
    options.data = file->data;
    options.data_size = file->length;
    CHECK_MESSAGE(!gm_engine_open(&options, &engine, why, sizeof why), "%s", why);
    if (engine) CHECK(!gm_session_new(engine, NULL, &s, why, sizeof why));
    while (s && gm_session_set(s, tokens, COUNT_OF(tokens), why, sizeof why) == GM_AGAIN) {}
    CHECK_MESSAGE(s && gm_session_logits(s), "%s", why);
    if (s && gm_session_logits(s)) memcpy(known[i].logits, gm_session_logits(s), sizeof known[i].logits);
    if (engine) memcpy(known[i].digest, engine->digest, sizeof known[i].digest);
    known[i].path = path;
    gm_session_free(s);
    gm_engine_close(engine);
    return &known[i];
}

static void check_expected_logits(load_host *h, gm_engine *engine, const float *want, size_t n) {
    error       e = { 0 };
    gm_session *s = NULL;
    CHECK(!gm_session_new(engine, NULL, &s, e.why, sizeof e.why));
    if (!s) return;
    CHECK_MESSAGE(!load_host_set(h, s, tokens, COUNT_OF(tokens), &e), "%s", e.why);
    CHECK(gm_session_logits(s) && !memcmp(gm_session_logits(s), want, n * sizeof *want));
    gm_session_free(s);
}

static void test_load_pieces(void) {
    static const struct {
        const char *file;
        uint64_t    piece;
        bool        backwards, rows;
        bool        also_on_gpu; /* which takes seconds to open */
    } cases[] = {
        { dense, 0, false, false, true },     { dense, 1009, false, false, false }, { dense, 4096, true, false, false },
        { dense, 100000, true, true, false }, { dense, 7, false, true, true },      { moe, 0, false, false, false },
        { moe, 333, true, false, true },      { small, 65536, false, false, true },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (device == GM_BACKEND_GPU && !cases[i].also_on_gpu) continue;
        TEST("%s in pieces of %llu%s%s", cases[i].file, (unsigned long long)cases[i].piece,
             cases[i].backwards ? ", backwards" : "", cases[i].rows ? ", rows as they are needed" : "");
        buffer            file = whole_file(cases[i].file);
        load_host         h = host_of(&file);
        gm_engine_options options = options_of();
        engine_load      *load = NULL;
        gm_engine        *engine = NULL;
        error             e = { 0 };
        h.backwards = cases[i].backwards;
        const expectation *want = expect_logits(cases[i].file, &file);
        /* A limit below what all weights take makes the CPU leave the table outside, and the GPU, too. */
        load_options how = { .engine = &options, .memory = cases[i].rows ? file.length - 200000 : 0 };
        if (cases[i].rows) options.gpu_memory = 5200000;
        CHECK_MESSAGE(!load_host_start(&h, &how, cases[i].piece, &load, &e), "%s", e.why);
        if (load) CHECK_MESSAGE(!load_host_run(&h, load, &engine, &e), "%s", e.why);
        if (engine && cases[i].rows && device == GM_BACKEND_CPU) CHECK(!engine->weights.per_layer_token_embd.data);
        if (engine) {
            const size_t before = h.answered;
            check_expected_logits(&h, engine, want->logits, COUNT_OF(want->logits));
            CHECK((h.answered > before) == cases[i].rows);
            CHECK(strlen(want->digest) == 64 && !strcmp(engine->digest, want->digest));
        }
        gm_engine_close(engine);
        buffer_free(&file);
    }
}

/* Every read may fail, and the job may be abandoned after every answer. */
static void test_failing_reads(void) {
    quick_gpu_checks = true; /* the self-check reads, too */
    buffer            file = whole_file(dense);
    gm_engine_options options = options_of();
    load_options      how = { .engine = &options };
    load_host         counted = host_of(&file);
    engine_load      *load = NULL;
    gm_engine        *engine = NULL;
    error             e = { 0 };
    TEST("each read may fail");
    CHECK(!load_host_start(&counted, &how, 50000, &load, &e) && !load_host_run(&counted, load, &engine, &e));
    gm_engine_close(engine);
    CHECK(counted.answered > 50);
    for (size_t i = 1; i <= counted.answered; i += device == GM_BACKEND_GPU ? 13 : 1) {
        load_host h = host_of(&file);
        h.fail_at = i;
        e = (error){ 0 };
        engine = NULL;
        CHECK(!load_host_start(&h, &how, 50000, &load, &e));
        const gm_status status = load_host_run(&h, load, &engine, &e);
        CHECK_MESSAGE(status == GM_IO && strstr(e.why, "the cable was pulled"), "read %zu: %d %s", i, status, e.why);
    }
    TEST("the job may be given up after each answer");
    for (size_t i = 0; i < counted.answered; i += device == GM_BACKEND_GPU ? 13 : 3) {
        load_host h = host_of(&file);
        gm_status status = GM_AGAIN;
        e = (error){ 0 };
        CHECK(!load_host_start(&h, &how, 50000, &load, &e));
        while (h.answered < i && (status = engine_load_step(load, &e)) == GM_AGAIN) {
            if (!load_host_answer(&h, engine_load_reads(load), engine_load_file(load), load->engine->gpu.host))
                engine_load_wait(load);
        }
        CHECK_MESSAGE(status == GM_AGAIN, "%d %s", status, e.why);
        engine_load_free(load);
    }
    quick_gpu_checks = false;
    buffer_free(&file);
}

/* Sets a session's tokens, and gives up when it has waited a minute without asking for a read: it waits for nothing. */
static gm_status set_unless_stuck(load_host *h, gm_session *s, error *e) {
    gm_status status = GM_AGAIN;
    double    asked = clock_seconds();
    while (clock_seconds() < asked + 60 && (status = session_set(s, tokens, COUNT_OF(tokens), e)) == GM_AGAIN) {
        if (load_host_answer(h, s->engine->reads, s->engine->file, s->engine->gpu.host)) asked = clock_seconds();
    }
    return status;
}

/* A session stops halfway through a tile of a streamed weight, and is continued only after another session of the engine. */
static void check_stopped(load_host *h, gm_engine *engine, bool read_fails, const float *want, size_t n) {
    error       e = { 0 };
    gm_session *stopped = NULL, *other = NULL;
    CHECK(!gm_session_new(engine, NULL, &stopped, e.why, sizeof e.why));
    CHECK(!gm_session_new(engine, NULL, &other, e.why, sizeof e.why));
    while (stopped && other && !engine->gpu.slot_for &&
           session_set(stopped, tokens, COUNT_OF(tokens), &e) == GM_AGAIN && !engine->gpu.slot_for)
        load_host_answer(h, engine->reads, engine->file, engine->gpu.host);
    CHECK_MESSAGE(engine->gpu.slot_for, "no tile was on its way: %s", e.why);
    if (engine->gpu.slot_for) {
        if (read_fails) h->fail_at = h->answered + 1;
        gm_status status = set_unless_stuck(h, other, &e);
        CHECK_MESSAGE(!status, "the other session: %d %s", status, e.why);
        CHECK(!status && !memcmp(gm_session_logits(other), want, n * sizeof *want));
        CHECK(!read_fails || h->answered > h->fail_at);
        status = set_unless_stuck(h, stopped, &e);
        CHECK_MESSAGE(!status, "the stopped session: %d %s", status, e.why);
        CHECK(!status && !memcmp(gm_session_logits(stopped), want, n * sizeof *want));
    }
    gm_session_free(stopped);
    gm_session_free(other);
}

static void test_stopped_stream(void) {
    if (device != GM_BACKEND_GPU) return;
    buffer             file = whole_file(dense);
    load_host          h = host_of(&file);
    gm_engine_options  options = options_of();
    engine_load       *load = NULL;
    gm_engine         *engine = NULL;
    error              e = { 0 };
    const expectation *want = expect_logits(dense, &file);
    options.gpu_memory = 4900000; /* one layer stays outside */
    TEST("a session that stopped while a weight is uploaded does not block another");
    CHECK(!load_host_start(&h, &(load_options){ .engine = &options }, 0, &load, &e));
    CHECK_MESSAGE(load && !load_host_run(&h, load, &engine, &e), "%s", e.why);
    if (engine) {
        engine->turn_seconds = 0.001; /* a turn waits for reads, which are answered between turns */
        check_stopped(&h, engine, false, want->logits, COUNT_OF(want->logits));
        TEST("a read that fails for the stopped session is not the other's failure");
        check_stopped(&h, engine, true, want->logits, COUNT_OF(want->logits));
    }
    gm_engine_close(engine);
    buffer_free(&file);
}

/* Impossible options are refused before weights are read. */
static void test_load_refusals(void) {
    static const struct {
        const char *what;
        edit        edit;
        uint64_t    cut, memory;
        size_t      parts;
        gm_status   status;
        const char *says;
    } cases[] = {
        { "a file that is cut off", { 0 }, 1000, 0, 1, GM_BAD_FILE, "the file is cut off" },
        { "a model beyond the memory", { 0 }, 0, 100000, 1, GM_NO_MEMORY, "GiB of memory" },
        { "a lost tensor", { DROP_TENSOR, "blk.1.attn_q.weight", 0, 0, 0 }, 0, 0, 1, GM_BAD_FILE, "blk.1.attn_q" },
        { "a part too many", { 0 }, 0, 0, 2, GM_BAD_ARGUMENT, "2 parts were given" },
        { "a part too few", { SET_U32, "split.count", 3, 0, 0 }, 0, 0, 1, GM_BAD_ARGUMENT, "split into 3 parts" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (cases[i].memory && device == GM_BACKEND_GPU) continue;
        TEST("refused from the header: %s", cases[i].what);
        buffer            file = model_file_edit(dense, &cases[i].edit, 1);
        load_host         h = host_of(&file);
        gm_engine_options options = options_of();
        engine_load      *load = NULL;
        gm_engine        *engine = NULL;
        error             e = { 0 };
        h.sizes[0] -= cases[i].cut;
        h.parts = cases[i].parts;
        h.bytes[1] = h.bytes[0];
        h.sizes[1] = h.sizes[0];
        CHECK(!load_host_start(&h, &(load_options){ .engine = &options, .memory = cases[i].memory }, 4096, &load, &e));
        const gm_status status = load_host_run(&h, load, &engine, &e);
        CHECK_MESSAGE(status == cases[i].status && strstr(e.why, cases[i].says), "%d %s", status, e.why);
        CHECK_MESSAGE(h.read < 100000, "%llu bytes were read", (unsigned long long)h.read);
        buffer_free(&file);
    }
}

/* The repack kernel reports damaged weights, although they never pass through our memory. */
static void test_damage(void) {
    static const struct {
        const char *file, *tensor;
        uint32_t    at;
        const char *says;
    } cases[] = {
        { dense, "blk.0.attn_q.weight", 0, "tensor 'blk.0.attn_q.weight' (F16) holds NaN or an infinity in block 0:" },
        { dense, "blk.1.attn_k.weight", 130,
          "tensor 'blk.1.attn_k.weight' (F16) holds NaN or an infinity in block 65:" },
        { small, "blk.0.ffn_gate.weight", 0,
          "tensor 'blk.0.ffn_gate.weight' (Q4_K) holds NaN or an infinity in block 0:" },
        { small, "blk.1.ffn_up.weight", 146,
          "tensor 'blk.1.ffn_up.weight' (Q4_K) holds NaN or an infinity in block 1:" },
        { small, "token_embd.weight", 210 * 5 + 208, "(Q6_K) holds NaN or an infinity in block 5:" },
    };
    if (device != GM_BACKEND_GPU) return;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TEST("damage on its way to the GPU: %s at %u", cases[i].tensor, cases[i].at);
        const edit        poison = { POISON_TENSOR, cases[i].tensor, cases[i].at, 0, 0 };
        buffer            file = model_file_edit(cases[i].file, &poison, 1);
        load_host         h = host_of(&file);
        gm_engine_options options = options_of();
        engine_load      *load = NULL;
        gm_engine        *engine = NULL;
        error             e = { 0 };
        CHECK(!load_host_start(&h, &(load_options){ .engine = &options }, 0, &load, &e));
        const gm_status status = load_host_run(&h, load, &engine, &e);
        CHECK_MESSAGE(status == GM_BAD_FILE && strstr(e.why, cases[i].says), "%d %s", status, e.why);
        gm_engine_close(engine);
        buffer_free(&file);
    }
}

static void test_fit(void) {
    TEST("what a model takes, from its header alone");
    buffer            file = whole_file(dense);
    load_host         h = host_of(&file);
    gm_engine_options options = options_of();
    engine_load      *load = NULL;
    error             e = { 0 };
    load_fit          fit;
    gm_status         status;
    CHECK(!load_host_start(&h, &(load_options){ .engine = &options, .memory = 1000 }, 4096, &load, &e));
    while ((status = engine_load_header(load, &e)) == GM_AGAIN)
        CHECK(load_host_answer(&h, engine_load_reads(load), engine_load_file(load), NULL));
    CHECK_MESSAGE(!status && !engine_load_fit(load, 0, &fit, &e), "%s", e.why);
    CHECK_MESSAGE(h.read < 100000, "%llu bytes were read", (unsigned long long)h.read);
    CHECK(fit.config.layers == 6 && fit.parameters > 500000 && fit.bytes > 500000 && fit.kv_bytes_per_token > 0);
    CHECK(fit.fits == (device == GM_BACKEND_GPU) && !fit.why[0] == fit.fits);
    engine_load_free(load);
    buffer_free(&file);
}

static void test_reads(void) {
    TEST("reads: tickets, generations, and late answers");
    reads           *r = NULL;
    source          *s = NULL;
    error            e = { 0 };
    uint8_t          memory[4];
    read_order       out;
    const read_order order = { .offset = 7, .length = 4, .memory = memory };
    CHECK(!reads_new(&r, &e) && !source_pieces(100, &s, &e));
    const uint32_t first = reads_ask(r, &order), second = reads_ask(r, &order);
    CHECK(first && second && first != second && !reads_order(r, first));
    CHECK(reads_take(r, first, &e) == GM_AGAIN && reads_next(r, &out) == first && out.offset == 7);
    CHECK(reads_order(r, first) && !reads_order(r, second));
    reads_drop(r, first);
    reads_answer(r, first, GM_OK, NULL); /* too late */
    const uint32_t third = reads_ask(r, &order);
    CHECK(third != first && !reads_order(r, first) && reads_next(r, &out) == second && reads_next(r, &out) == third);
    CHECK(!reads_next(r, &out));
    reads_answer(r, first, GM_IO, "late"); /* somebody else has its slot */
    CHECK(reads_take(r, third, &e) == GM_AGAIN);
    reads_answer(r, third, GM_IO, "no");
    CHECK(reads_take(r, third, &e) == GM_IO && !strcmp(e.why, "no"));
    reads_answer(r, second, GM_OK, NULL);
    CHECK(reads_take(r, second, NULL) == GM_OK);
    for (size_t i = 0; i < READS_MOST; i++) CHECK(reads_ask(r, &order));
    CHECK(!reads_ask(r, &order));
    reads_free(r);
    source_free(s);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    test_reads();
    test_load_pieces();
    test_failing_reads();
    test_stopped_stream();
    test_load_refusals();
    test_damage();
    test_fit();
    return test_end();
}
