/* The towers on an engine: soft tokens against the fixtures, from their patches or mel features and from the picture or the sound, for both
 * flavours of files; batches, cancelling, releasing, and files that do not fit.
 *
 *     test_towers [cpu|gpu] */

#include "distance.h"
#include "load_host.h"
#include "media/picture.h"
#include "media/sound.h"
#include "session/gpu_memory.h"
#include "session/tower.h"
#include "read_file.h"
#include "sessions.h"

#include <stdlib.h>

static gm_backend device = GM_BACKEND_CPU;

enum { SOFT_WIDTH = 64, SOFT_TOKENS = 60 };

/* On the GPU keys and values are f16 unless the engine is precise. */
static double soft_tolerance(bool precise) { return device == GM_BACKEND_CPU || precise ? 1e-5 : 5e-3; }

static const char *fixture(char path[80], const char *name) {
    snprintf(path, 80, "tests/fixtures/%s", name);
    return path;
}

static gm_engine *open_with(const char *text, const char *projector, bool precise) {
    char                    first[80], second[80];
    const gm_engine_options options = { .model = fixture(first, text),
                                        .mmproj = projector ? fixture(second, projector) : NULL,
                                        .threads = 2,
                                        .backend = device,
                                        .precise = precise };
    return open_engine(&options);
}

/* The fixture's picture in the size that 70 tokens allow. */
static picture load_fixture(void) {
    error   e = { 0 };
    picture raw = { 0 }, out = { 0 };
    buffer  bytes = file_read("tests/fixtures/tiny-mm.png");
    CHECK_MESSAGE(!picture_decode(bytes.data, bytes.length, &raw, &e) && !picture_fitted(&raw, 70, &out, &e), "%s",
                  e.why);
    picture_free(&raw);
    buffer_free(&bytes);
    return out;
}

static tower_picture whole(const picture *p) {
    return (tower_picture){ .width = p->width, .height = p->height, .pixels = p->pixels };
}

/* The file keeps them. */
static const float *expected(const gguf *file, const char *name, size_t *count) {
    const gguf_tensor *t = file ? gguf_find_tensor(file, name) : NULL;
    CHECK(t);
    *count = t ? (size_t)t->count : 0;
    return t ? (const float *)(const void *)gguf_tensor_data(file, t) : NULL;
}

/* ---- jobs ---- */

static gm_status job_step(gm_engine *engine, tower_job *job, error *e) {
    engine_enter(engine);
    const gm_status status = tower_job_step(job, e);
    engine_leave(engine);
    return status;
}

/* Encodes all pictures in one job; NULL if that fails, with the reason in `e`. */
static tower_job *encode_all(gm_engine *engine, const tower_picture *pictures, size_t count, size_t *turns_taken,
                             error *e) {
    tower_job *job = NULL;
    gm_status  status;
    engine_enter(engine);
    status = tower_encode_pictures(engine, pictures, count, &job, e);
    engine_leave(engine);
    size_t turns_used = 0;
    if (!status)
        while ((status = job_step(engine, job, e)) == GM_AGAIN) turns_used++;
    if (turns_taken) *turns_taken = turns_used;
    if (!status) return job;
    tower_job_free(job);
    return NULL;
}

/* The same for sounds. */
static tower_job *encode_heard(gm_engine *engine, const tower_sound *sounds, size_t count, error *e) {
    tower_job *job = NULL;
    engine_enter(engine);
    gm_status status = tower_encode_sounds(engine, sounds, count, &job, e);
    engine_leave(engine);
    if (!status)
        while ((status = job_step(engine, job, e)) == GM_AGAIN) {}
    if (!status) return job;
    tower_job_free(job);
    return NULL;
}

static void job_expect(const tower_job *job, size_t item, const float *want, double tolerance) {
    size_t       count = 0;
    const float *rows = job ? tower_job_rows(job, item, &count) : NULL;
    CHECK_MESSAGE(rows && count == SOFT_TOKENS, "item %zu has %zu soft tokens", item, count);
    if (!rows || !want || count != SOFT_TOKENS) return;
    const double off = distance(rows, want, count * SOFT_WIDTH);
    CHECK_MESSAGE(off <= tolerance, "item %zu: relative error %g, at most %g allowed", item, off, tolerance);
}

/* ---- against the reference ---- */

static void test_soft_tokens(const char *text, const char *projector, const char *expect, bool precise) {
    TEST("%s%s%s: soft tokens of the picture%s", text, projector ? " with " : "", projector ? projector : "",
         precise ? ", precise" : "");
    error      e = { 0 };
    char       path[80];
    gguf      *file = NULL;
    size_t     values = 0;
    gm_engine *engine = open_with(text, projector, precise);
    picture    p = load_fixture();
    CHECK(!gguf_open_file(fixture(path, expect), &file, &e));
    const float *want = expected(file, "image.soft_tokens", &values);
    CHECK(values == SOFT_TOKENS * SOFT_WIDTH);
    const tower_picture shown = whole(&p);
    tower_job          *job = engine ? encode_all(engine, &shown, 1, NULL, &e) : NULL;
    CHECK_MESSAGE(job, "%s", e.why);
    job_expect(job, 0, want, soft_tolerance(precise));
    tower_job_free(job);
    const bool given_all = file && !gguf_find_tensor(file, "image.patch_rows");
    if (given_all && device == GM_BACKEND_CPU) { /* once is enough where it takes seconds */
        const float        *patches = expected(file, "image.patches", &values);
        const tower_picture given = { .width = p.width, .height = p.height, .patches = patches };
        CHECK(values == (size_t)p.width * p.height * 3);
        job = engine ? encode_all(engine, &given, 1, NULL, &e) : NULL;
        job_expect(job, 0, want, soft_tolerance(precise));
        tower_job_free(job);
    }
    picture_free(&p);
    gguf_free(file);
    gm_engine_close(engine);
}

/* ---- sounds ---- */

static sound load_wav(void) {
    error  e = { 0 };
    sound  out = { 0 };
    buffer bytes = file_read("tests/fixtures/tiny-mm.wav");
    CHECK_MESSAGE(!sound_decode(bytes.data, bytes.length, &out, &e), "%s", e.why);
    buffer_free(&bytes);
    return out;
}

static void sound_expect(gm_engine *engine, const tower_sound *heard, const float *want, size_t values,
                         double tolerance) {
    error        e = { 0 };
    size_t       count = 0;
    tower_job   *job = engine ? encode_heard(engine, heard, 1, &e) : NULL;
    const float *rows = job ? tower_job_rows(job, 0, &count) : NULL;
    CHECK_MESSAGE(rows && count * SOFT_WIDTH == values, "%zu soft tokens; %s", count, e.why);
    const double off = rows && want && count * SOFT_WIDTH == values ? distance(rows, want, values) : 0;
    CHECK_MESSAGE(off <= tolerance, "relative error %g, at most %g allowed", off, tolerance);
    tower_job_free(job);
}

static void test_sound_tokens(const char *text, const char *projector, const char *expect, bool precise) {
    TEST("%s%s%s: soft tokens of the sound%s", text, projector ? " with " : "", projector ? projector : "",
         precise ? ", precise" : "");
    error      e = { 0 };
    char       path[80];
    gguf      *file = NULL;
    size_t     values = 0, mel_values = 0, mask_values = 0;
    gm_engine *engine = open_with(text, projector, precise);
    sound      s = load_wav();
    CHECK(!gguf_open_file(fixture(path, expect), &file, &e));
    const float *want = expected(file, "audio.soft_tokens", &values);
    CHECK(values);
    sound_expect(engine, &(tower_sound){ .samples = s.samples, .count = s.count }, want, values,
                 soft_tolerance(precise));
    if (file && gguf_find_tensor(file, "audio.mel")) {
        const float   *mel = expected(file, "audio.mel", &mel_values);
        const int32_t *mask = (const int32_t *)(const void *)expected(file, "audio.mel_mask", &mask_values);
        size_t         frames = 0;
        while (frames < mask_values && mask[frames]) frames++;
        sound_expect(engine, &(tower_sound){ .mel = mel, .frames = frames }, want, values, soft_tolerance(precise));
    }
    sound_free(&s);
    gguf_free(file);
    gm_engine_close(engine);
}

/* Sounds of many lengths, down to one token, give in one batch what each gives alone. A later sound never reaches into one before. */
static void test_sound_batch(void) {
    TEST("sounds of several lengths in one batch");
    static const size_t lengths[] = { 161, 801, 27200, 5441 };
    error               e = { 0 };
    gm_engine          *engine = open_with("tiny-mm.gguf", "tiny-mm.mmproj.gguf", false);
    sound               s = load_wav();
    tower_sound         heard[COUNT_OF(lengths)];
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        heard[i] = (tower_sound){ .samples = s.samples + (27200 - lengths[i]) / 2, .count = lengths[i] };
    tower_job *job = engine ? encode_heard(engine, heard, COUNT_OF(lengths), &e) : NULL;
    CHECK_MESSAGE(job, "%s", e.why);
    for (size_t i = 0; i < COUNT_OF(lengths) && job; i++) {
        size_t       count = 0;
        const float *rows = tower_job_rows(job, i, &count);
        CHECK_MESSAGE(count == mel_tokens(mel_valid(lengths[i])), "%zu soft tokens", count);
        sound_expect(engine, &heard[i], rows, count * SOFT_WIDTH, 1e-3);
    }
    tower_job_free(job);
    sound_free(&s);
    gm_engine_close(engine);
}

static void expect_no_sound(gm_engine *engine, const tower_sound *heard, const char *says) {
    error      e = { 0 };
    tower_job *job = encode_heard(engine, heard, 1, &e);
    CHECK_MESSAGE(!job && strstr(e.why, says), "\"%s\" does not say \"%s\"", e.why, says);
    tower_job_free(job);
}

static void test_sound_misfits(void) {
    TEST("sounds that do not fit");
    static float samples[SOUND_PIECE + 1];
    gm_engine   *text = open_with("tiny-dense.gguf", NULL, false);
    gm_engine   *engine = open_with("tiny-mm.gguf", "tiny-mm.mmproj.gguf", false);
    gm_engine   *raw = open_with("tiny-unified.gguf", "tiny-unified.mmproj.gguf", false);
    if (text) expect_no_sound(text, &(tower_sound){ .samples = samples, .count = 1600 }, "cannot hear sounds");
    if (engine) {
        expect_no_sound(engine, &(tower_sound){ .samples = samples, .count = 160 },
                        "takes 161 to 480000 samples at once, not 160");
        expect_no_sound(engine, &(tower_sound){ .samples = samples, .count = SOUND_PIECE + 1 }, "not 480001");
        expect_no_sound(engine, &(tower_sound){ .mel = samples, .frames = 3000 }, "1 to 2999 mel frames, not 3000");
    }
    if (raw) {
        expect_no_sound(raw, &(tower_sound){ .samples = samples, .count = 0 }, "takes 1 to 480000");
        expect_no_sound(raw, &(tower_sound){ .mel = samples, .frames = 3 }, "reads samples, not mel features");
    }
    gm_engine_close(text);
    gm_engine_close(engine);
    gm_engine_close(raw);
}

/* ---- from files in pieces, as in a browser ---- */

static uint8_t *read_fixture(const char *name, uint64_t *size) {
    char     path[80];
    FILE    *file = fopen(fixture(path, name), "rb");
    uint8_t *bytes = malloc(2 << 20);
    CHECK(file && bytes);
    *size = file ? fread(bytes, 1, 2 << 20, file) : 0;
    if (file) fclose(file);
    return bytes;
}

/* Reads what the job wants, at once or backwards. */
static gm_status drive_job(load_host *h, gm_engine *engine, tower_job *job, error *e) {
    gm_status status;
    while ((status = job_step(engine, job, e)) == GM_AGAIN) {
        gpu_host *gpu = engine->gpu.host;
        if (!load_host_answer(h, engine->reads, engine->file, gpu) && gpu) gpu_host_wait(gpu, 10);
    }
    return status;
}

/* The tower has weights that are needed in memory also on a GPU. */
static void sound_in_pieces(load_host *h, gm_engine *engine) {
    error      e = { 0 };
    char       path[80];
    sound      s = load_wav();
    tower_job *job = NULL;
    gguf      *expect = NULL;
    size_t     values = 0, count = 0;
    CHECK(!gguf_open_file(fixture(path, "tiny-mm.expect.gguf"), &expect, &e));
    CHECK(!tower_encode_sounds(engine, &(tower_sound){ .samples = s.samples, .count = s.count }, 1, &job, &e));
    CHECK_MESSAGE(job && drive_job(h, engine, job, &e) == GM_OK, "%s", e.why);
    const float *want = expected(expect, "audio.soft_tokens", &values),
                *rows = job ? tower_job_rows(job, 0, &count) : NULL;
    CHECK(rows && count * SOFT_WIDTH == values && distance(rows, want, values) <= soft_tolerance(false));
    tower_job_free(job);
    gguf_free(expect);
    sound_free(&s);
}

/* A tower that is released leaves none of its bytes in memory. */
static void tower_is_forgotten(gm_engine *engine) {
    const gguf *file = engine->projector ? engine->projector : engine->file;
    size_t      held[2] = { 0, 0 };
    for (int released = 0; released < 2; released++) {
        engine_enter(engine);
        if (released) CHECK(engine_release_towers(engine));
        for (size_t i = 0; i < gguf_tensor_count(file); i++) {
            const gguf_tensor *t = gguf_tensor_at(file, i);
            if (model_part_of(t->name) == PART_VISION)
                held[released] += source_held(gguf_source(file, t->part), t->offset, t->bytes) != NULL;
        }
        engine_leave(engine);
    }
    CHECK_MESSAGE(held[0] > 10 && !held[1], "%zu tensors in memory, %zu after the release", held[0], held[1]);
}

static void test_tower_in_pieces(const char *text, const char *projector, bool read_fails) {
    TEST("%s%s%s in pieces%s", text, projector ? " with " : "", projector ? projector : "",
         read_fails ? ": a read fails" : "");
    error     e = { 0 };
    load_host h = { .parts = 1, .backwards = projector != NULL };
    uint8_t  *files[2] = { read_fixture(text, &h.sizes[0]), NULL };
    h.bytes[0] = files[0];
    if (projector) h.projector = files[1] = read_fixture(projector, &h.projector_size);
    const gm_engine_options options = { .backend = device, .threads = 2 };
    engine_load            *load = NULL;
    gm_engine              *engine = NULL;
    CHECK_MESSAGE(!load_host_start(&h, &(load_options){ .engine = &options }, 50000, &load, &e), "%s", e.why);
    if (load) CHECK_MESSAGE(!load_host_run(&h, load, &engine, &e), "%s", e.why);
    const uint64_t before = h.read;
    picture        p = load_fixture();
    tower_picture  shown = whole(&p);
    gm_engine     *reference = open_with(text, projector, false);
    size_t         count = 0, want_count = 0;
    shown.width = shown.height = 96;
    tower_job   *job = reference ? encode_all(reference, &shown, 1, NULL, &e) : NULL;
    const float *want = job ? tower_job_rows(job, 0, &want_count) : NULL;
    for (int round = read_fails ? 0 : 1; round < 2 && engine && want; round++) {
        tower_job *other = NULL;
        h.fail_at = round ? 0 : h.answered + 3;
        CHECK(!tower_encode_pictures(engine, &shown, 1, &other, &e));
        CHECK_MESSAGE((drive_job(&h, engine, other, &e) == GM_OK) == (round == 1), "%s", e.why);
        const float *rows = tower_job_rows(other, 0, &count);
        if (round) CHECK(rows && count == want_count && distance(rows, want, count * SOFT_WIDTH) < 1e-6);
        else CHECK(strstr(e.why, "the cable was pulled"));
        tower_job_free(other);
        e = (error){ 0 };
    }
    tower_job_free(job);
    gm_engine_close(reference);
    if (engine && h.read > before) tower_is_forgotten(engine);
    if (engine) sound_in_pieces(&h, engine);
    CHECK_MESSAGE(h.read > before + 200000, "only %llu bytes were read for the tower",
                  (unsigned long long)(h.read - before));
    picture_free(&p);
    gm_engine_close(engine);
    free(files[0]);
    free(files[1]);
}

/* ---- limited GPU memory ---- */

/* Two conversations, one with pictures and one with a sound, each take a step in turn: the towers follow one another. */
static void limited_in_turns(gm_engine *engine, const tower_picture *pictures, size_t count, const tower_sound *heard,
                             const float *want) {
    error      e = { 0 };
    tower_job *jobs[2] = { 0 };
    engine_enter(engine);
    engine_release_towers(engine);
    gm_status status[2] = { tower_encode_pictures(engine, pictures, count, &jobs[0], &e),
                            tower_encode_sounds(engine, heard, 1, &jobs[1], &e) };
    engine_leave(engine);
    for (bool again = !status[0] && !status[1]; again;) {
        again = false;
        for (size_t i = 0; i < 2; i++) {
            status[i] = job_step(engine, jobs[i], &e); /* of a job that is done: nothing */
            again |= status[i] == GM_AGAIN;
        }
        CHECK(!engine->towers[TOWER_VISION].built || !engine->towers[TOWER_AUDIO].built);
    }
    CHECK_MESSAGE(!status[0] && !status[1], "%s", e.why);
    size_t tokens = 0;
    for (size_t i = 0; i < count && !status[0] && want; i++) job_expect(jobs[0], i, want, 1e-6);
    CHECK(!status[1] && tower_job_rows(jobs[1], 0, &tokens) && tokens > 10);
    tower_job_free(jobs[0]);
    tower_job_free(jobs[1]);
}

/* The text's weights leave room for one tower at a time. */
static void test_limited(void) {
    TEST("a tower in limited GPU memory");
    error      e = { 0 };
    gpu_budget b = { 0 };
    gm_engine *whole_engine = open_with("tiny-mm.gguf", "tiny-mm.mmproj.gguf", false);
    picture    p = load_fixture();
    if (!whole_engine) return;
    const tower_picture pictures[3] = { whole(&p), whole(&p), whole(&p) };
    const model_config *c = &whole_engine->weights.config;
    const uint64_t      tower = towers_bytes(whole_engine->file, whole_engine->projector, c->width);
    tower_job          *job = encode_all(whole_engine, pictures, 1, NULL, &e);
    size_t              count = 0;
    const float        *want = job ? tower_job_rows(job, 0, &count) : NULL;
    const gpu_info     *gpu = gpu_host_info(whole_engine->gpu.host);
    CHECK_MESSAGE(!gpu_memory_plan(&whole_engine->text, NULL, c, TYPE_F16, min_size(c->context, GPU_MEMORY_CONTEXT), 0,
                                   0, 0, gpu, &b, &e),
                  "%s", e.why);
    char                    first[80], second[80];
    const gm_engine_options options = { .model = fixture(first, "tiny-mm.gguf"),
                                        .mmproj = fixture(second, "tiny-mm.mmproj.gguf"),
                                        .backend = device,
                                        .gpu_memory = b.total + tower - 100000 };
    gm_engine              *engine = open_engine(&options);
    gm_engine_info          info = { 0 };
    if (engine) gm_engine_get_info(engine, &info);
    CHECK_MESSAGE(*info.note, "some of the text's weights stay outside");
    tower_job *limited = engine ? encode_all(engine, pictures, COUNT_OF(pictures), NULL, &e) : NULL;
    CHECK_MESSAGE(limited, "%s", e.why);
    for (size_t i = 0; i < COUNT_OF(pictures) && limited && want; i++) job_expect(limited, i, want, 1e-6);
    sound      s = load_wav();
    tower_job *heard =
        engine ? encode_heard(engine, &(tower_sound){ .samples = s.samples, .count = s.count }, 1, &e) : NULL;
    CHECK_MESSAGE(heard && !engine->towers[TOWER_VISION].ready, "%s", e.why);
    tower_job_free(heard);
    if (engine)
        limited_in_turns(engine, pictures, COUNT_OF(pictures), &(tower_sound){ .samples = s.samples, .count = s.count },
                         want);
    sound_free(&s);
    tower_job_free(limited);
    tower_job_free(job);
    gpu_budget_free(&b);
    picture_free(&p);
    gm_engine_close(engine);
    gm_engine_close(whole_engine);
}

/* ---- batches ---- */

/* Pictures that differ, in one batch, give what each gives alone. */
static void test_batch(void) {
    TEST("pictures of several sizes in one batch");
    enum { COUNT = 7 };
    error         e = { 0 };
    gm_engine    *engine = open_with("tiny-mm.gguf", "tiny-mm.mmproj.gguf", false);
    picture       p = load_fixture();
    tower_picture pictures[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        pictures[i] = whole(&p);
        pictures[i].pixels += (i * 1001 % 5000) * 3;
        pictures[i].width = i % 3 == 1 ? 96 : 48;
        pictures[i].height = i % 4 == 2 ? 96 : 48;
    }
    size_t     count = 0, alone_count = 0;
    tower_job *job = engine ? encode_all(engine, pictures, COUNT, NULL, &e) : NULL;
    CHECK_MESSAGE(job, "%s", e.why);
    for (size_t i = 0; i < COUNT && job; i += 2) {
        tower_job   *alone = encode_all(engine, &pictures[i], 1, NULL, &e);
        const float *rows = tower_job_rows(job, i, &count);
        const float *want = alone ? tower_job_rows(alone, 0, &alone_count) : NULL;
        CHECK(count && count == alone_count && count == (size_t)pictures[i].width * pictures[i].height / (48 * 48));
        if (want && count == alone_count) {
            const double off = distance(rows, want, count * SOFT_WIDTH);
            CHECK_MESSAGE(off < 1e-3, "picture %zu: relative error %g", i, off);
        }
        tower_job_free(alone);
    }
    if (job) CHECK(tower_job_progress(job).phase == TOWER_ENCODING && tower_job_progress(job).done == COUNT);
    tower_job_free(job);
    picture_free(&p);
    gm_engine_close(engine);
}

/* ---- life ---- */

static uint64_t device_bytes(const gm_engine *engine) {
    return engine->on_gpu ? gpu_host_bytes(engine->gpu.host) : plans_count(&engine->plans);
}

/* A job that is dropped after any number of steps leaves nothing that disturbs the next. */
static void test_cancel(void) {
    TEST("a cancelled job, and towers that are released");
    error         e = { 0 };
    gm_engine    *engine = open_with("tiny-mm-ollama.gguf", NULL, false);
    picture       p = load_fixture();
    tower_picture shown = whole(&p);
    shown.width = 96;
    shown.height = 144;
    CHECK(!engine_has_tower(engine, TOWER_VISION, &e));
    CHECK(!gm_engine_release_towers(engine)); /* there is none yet */
    const uint64_t before = device_bytes(engine);
    engine->turn_seconds = 0; /* a turn ends as soon as it can */
    float     *rows = calloc(SOFT_TOKENS * SOFT_WIDTH, sizeof *rows);
    size_t     turns_taken = 0, count = 0;
    tower_job *job = encode_all(engine, &shown, 1, &turns_taken, &e);
    CHECK_MESSAGE(job && turns_taken > 5, "%zu turns; %s", turns_taken, e.why);
    const float *first = job ? tower_job_rows(job, 0, &count) : NULL;
    if (first) memcpy(rows, first, count * SOFT_WIDTH * sizeof *rows);
    tower_job_free(job);
    for (size_t steps = 0; steps < 12; steps += 3) {
        tower_job *dropped = NULL;
        CHECK(!tower_encode_pictures(engine, &shown, 1, &dropped, &e));
        if (steps) CHECK(gm_engine_release_towers(engine) == false);
        for (size_t i = 0; i < steps; i++) job_step(engine, dropped, &e);
        tower_job_free(dropped);
        if (steps == 6) CHECK(gm_engine_release_towers(engine)); /* the next job loads it again */
    }
    job = encode_all(engine, &shown, 1, NULL, &e);
    CHECK_MESSAGE(job, "%s", e.why);
    const float *again = job ? tower_job_rows(job, 0, &count) : NULL;
    CHECK(gm_engine_release_towers(engine) &&
          !gm_engine_release_towers(engine)); /* a job that is done keeps its rows */
    CHECK(again && count == 6 && distance(again, rows, 6 * SOFT_WIDTH) < 1e-6);
    tower_job_free(job);
    CHECK_MESSAGE(device_bytes(engine) == before, "%llu, before %llu", (unsigned long long)device_bytes(engine),
                  (unsigned long long)before);
    free(rows);
    picture_free(&p);
    gm_engine_close(engine);
}

/* Takes all GPU memory but a few kB, with a tower loaded. */
static gpu_id fill_memory(gm_engine *engine, const tower_picture *shown) {
    error      e = { 0 };
    gpu_host  *h = engine->gpu.host;
    tower_job *job = encode_all(engine, shown, 1, NULL, &e);
    CHECK_MESSAGE(job && engine->towers[TOWER_VISION].ready, "%s", e.why);
    tower_job_free(job);
    const gpu_id filler = gpu_buffer_new(h, (gpu_host_limit(h) - gpu_host_bytes(h) - 4096) / 16 * 16, &e);
    CHECK_MESSAGE(filler, "%s", e.why);
    return filler;
}

/* Plans, and keys and values, that find no memory take that of a tower. */
static void test_short_memory(void) {
    TEST("a conversation takes the memory of a tower");
    enum { FIRST = 16, MORE = 60, SLOTS = 900 };
    error                   e = { 0 };
    char                    path[80];
    int32_t                 tokens[FIRST + MORE];
    const gm_engine_options options = { .model = fixture(path, "tiny-mm-ollama.gguf"),
                                        .backend = GM_BACKEND_GPU,
                                        .gpu_memory = 12 << 20 };
    gm_engine              *engine = open_engine(&options);
    gm_session             *session = open_session(engine, GM_KV_F32, 4000);
    picture                 p = load_fixture();
    tower_picture           shown = whole(&p);
    shown.width = shown.height = 96;
    make_tokens(tokens, FIRST + MORE, 1);
    if (session && !set_tokens(session, tokens, FIRST)) {
        gpu_id filler = fill_memory(engine, &shown);
        CHECK_MESSAGE(!append_tokens(session, tokens + FIRST, MORE), "%s", why); /* makes a plan */
        CHECK(!engine->towers[TOWER_VISION].ready);
        gpu_buffer_free(engine->gpu.host, filler);
        filler = fill_memory(engine, &shown);
        kv_extent *more = kv_store_take(session->kv.store, KV_FULL, SLOTS, &e);
        CHECK_MESSAGE(more && !engine->towers[TOWER_VISION].ready, "%s", e.why);
        kv_store_release(session->kv.store, KV_FULL, more);
        gpu_buffer_free(engine->gpu.host, filler);
    } else CHECK_MESSAGE(false, "%s", why);
    picture_free(&p);
    gm_session_free(session);
    gm_engine_close(engine);
}

/* ---- what does not fit ---- */

static void expect_refused(const char *text, const char *projector, const char *says) {
    char                    first[80], second[80];
    gm_engine              *engine = NULL;
    const gm_engine_options options = { .model = fixture(first, text), .mmproj = fixture(second, projector) };
    CHECK(gm_engine_open(&options, &engine, why, sizeof why) != GM_OK);
    CHECK_MESSAGE(strstr(why, says), "\"%s\" does not say \"%s\"", why, says);
    gm_engine_close(engine);
}

static void expect_no_picture(gm_engine *engine, const tower_picture *shown, const char *says) {
    error      e = { 0 };
    tower_job *job = encode_all(engine, shown, 1, NULL, &e);
    CHECK_MESSAGE(!job && strstr(e.why, says), "\"%s\" does not say \"%s\"", e.why, says);
    tower_job_free(job);
}

static void test_misfits(void) {
    TEST("projectors and pictures that do not fit");
    expect_refused("odd-dense.gguf", "tiny-mm.mmproj.gguf",
                   "makes rows of 64 values, but the text model's width is 50");
    expect_refused("tiny-mm.gguf", "tiny-mm.gguf", "has no tower");
    expect_refused("tiny-mm.gguf", "tiny-mm.png", "not a GGUF file");
    static uint8_t pixels[48 * 3120 * 3];
    gm_engine     *text = open_with("tiny-dense.gguf", NULL, false);
    gm_engine     *engine = open_with("tiny-mm.gguf", "tiny-mm.mmproj.gguf", false);
    if (text) expect_no_picture(text, &(tower_picture){ 48, 48, .pixels = pixels }, "cannot see pictures");
    if (engine) {
        expect_no_picture(engine, &(tower_picture){ 48, 50, .pixels = pixels }, "a multiple of 48 pixels, not 48 × 50");
        expect_no_picture(engine, &(tower_picture){ 0, 48, .pixels = pixels }, "not 0 × 48");
        expect_no_picture(engine, &(tower_picture){ 48, 3120, .pixels = pixels }, "the vision tower has 64 positions");
    }
    gm_engine_close(text);
    gm_engine_close(engine);
}

/* Bytes of the header are damaged, one at a time: what is wrong is refused, and nothing else happens. */
static void test_damaged_header(const char *name, size_t step) {
    TEST("%s with a damaged header", name);
    uint64_t size = 0;
    uint8_t *bytes = read_fixture(name, &size);
    gguf    *whole_file = NULL;
    error    e = { 0 };
    size_t   opened = 0, refused = 0;
    CHECK(!gguf_open_memory(bytes, size, &whole_file, &e));
    const uint64_t head = whole_file ? gguf_head_bytes(whole_file) : 0;
    gguf_free(whole_file);
    for (uint64_t at = 24; at < head; at += step) {
        const uint8_t  was = bytes[at];
        gguf          *file = NULL;
        vision_weights w = { 0 };
        error          problem = { 0 };
        bytes[at] ^= (uint8_t)(1 << at % 8);
        if (!gguf_open_memory(bytes, size, &file, &problem)) {
            opened++;
            if (vision_load(file, SOFT_WIDTH, &w, &problem)) {
                refused++;
                CHECK(problem.why[0]);
            }
            vision_free(&w);
            gguf_free(file);
        }
        bytes[at] = was;
    }
    CHECK_MESSAGE(opened > 100 && refused > 20 && refused < opened, "%zu opened, %zu refused", opened, refused);
    free(bytes);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    for (int precise = 0; precise < 2; precise++) {
        if (!precise || device == GM_BACKEND_CPU)
            test_soft_tokens("tiny-mm.gguf", "tiny-mm.mmproj.gguf", "tiny-mm.expect.gguf", precise);
        if (!precise) test_soft_tokens("tiny-mm-ollama.gguf", NULL, "tiny-mm.expect.gguf", precise);
        test_soft_tokens("tiny-unified.gguf", "tiny-unified.mmproj.gguf", "tiny-unified.expect.gguf", precise);
        if (precise && device == GM_BACKEND_GPU) continue;
        test_sound_tokens("tiny-mm.gguf", "tiny-mm.mmproj.gguf", "tiny-mm.expect.gguf", precise);
        if (!precise && device == GM_BACKEND_CPU)
            test_sound_tokens("tiny-mm-ollama.gguf", NULL, "tiny-mm.expect.gguf", precise);
        test_sound_tokens("tiny-unified.gguf", "tiny-unified.mmproj.gguf", "tiny-unified.expect.gguf", precise);
    }
    test_tower_in_pieces("tiny-mm-ollama.gguf", NULL, true);
    test_tower_in_pieces("tiny-mm.gguf", "tiny-mm.mmproj.gguf", false);
    test_batch();
    test_cancel();
    test_misfits();
    if (device == GM_BACKEND_GPU) test_short_memory(), test_limited();
    else {
        test_damaged_header("tiny-mm.mmproj.gguf", 5);
        test_damaged_header("tiny-unified.mmproj.gguf", 1);
    }
    test_sound_batch();
    test_sound_misfits();
    return test_end();
}
