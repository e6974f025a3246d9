#include "cli/bench_media.h"

#include "cli/interrupt.h"

#include "base/clock.h"
#include "base/random.h"
#include "media/picture.h"
#include "media/sound.h"
#include "session/tower.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKEN_PIXELS = 48 };

/* What the towers get: BENCH_BATCH pictures or sounds of noise. */
typedef struct {
    gm_engine    *engine;
    bool          sound;
    tower_picture picture;
    tower_sound   heard;
    uint8_t      *pixels;
    float        *samples;
} medium_input;

/* The number of squares along the shorter side of a picture of so many: no rectangle of them is closer to a square. */
static size_t shorter_side(size_t squares) {
    size_t side = 1;
    for (size_t i = 1; i * i <= squares; i++) {
        if (squares % i == 0) side = i;
    }
    return side;
}

static gm_status input_make(medium_input *in, size_t size, error *e) {
    const size_t   side = in->sound ? 0 : shorter_side(size);
    const size_t   count = in->sound ? size * SOUND_RATE : size * TOKEN_PIXELS * TOKEN_PIXELS * 3;
    const uint32_t key[2] = { 2, 0 };
    if (in->sound) in->samples = malloc(count * sizeof *in->samples);
    else in->pixels = malloc(count);
    if (!in->samples && !in->pixels) return fail_memory(e, "a picture or sound", count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        uint32_t words[4];
        philox((uint32_t[]){ (uint32_t)i, 0, 0, 0 }, key, words);
        if (in->sound) in->samples[i] = (float)(words[0] >> 8) / (1 << 24) - 0.5f;
        else in->pixels[i] = (uint8_t)words[0];
    }
    in->heard = (tower_sound){ .samples = in->samples, .count = in->sound ? count : 0 };
    if (in->sound) return GM_OK;
    in->picture = (tower_picture){ .width = (uint32_t)(size / side * TOKEN_PIXELS),
                                   .height = (uint32_t)(side * TOKEN_PIXELS),
                                   .pixels = in->pixels };
    return GM_OK;
}

/* Encodes `count` of them in one job; *tokens gets the soft tokens of one. */
static gm_status encode_once(const medium_input *in, size_t count, size_t *tokens, double *seconds, error *e) {
    tower_picture pictures[BENCH_BATCH];
    tower_sound   sounds[BENCH_BATCH];
    tower_job    *job = NULL;
    for (size_t i = 0; i < count; i++) {
        pictures[i] = in->picture;
        sounds[i] = in->heard;
    }
    const double start = clock_seconds();
    engine_enter(in->engine);
    gm_status status = in->sound ? tower_encode_sounds(in->engine, sounds, count, &job, e)
                                 : tower_encode_pictures(in->engine, pictures, count, &job, e);
    while (!status && (status = tower_job_step(job, e)) == GM_AGAIN && !interrupted()) status = GM_OK;
    if (status == GM_AGAIN) status = fail(e, GM_CANCELLED, "interrupted");
    *seconds = clock_seconds() - start;
    if (!status) tower_job_rows(job, 0, tokens);
    tower_job_free(job);
    engine_leave(in->engine);
    return status;
}

/* The best of the repeats, after a warm-up: a GPU raises its clocks slowly. */
static gm_status encode_best(const medium_input *in, size_t count, size_t repeats, size_t *tokens, double *best,
                             error *e) {
    const double start = clock_seconds(), enough = in->engine->on_gpu ? 1 : 0;
    double       seconds = 0;
    do TRY(encode_once(in, count, tokens, &seconds, e));
    while (clock_seconds() - start < enough);
    for (size_t i = 0; i < repeats; i++) {
        TRY(encode_once(in, count, tokens, &seconds, e));
        if (!i || seconds < *best) *best = seconds;
    }
    return GM_OK;
}

static gm_status encode_timed(const medium_input *in, bench_medium *m, gpu_profile *profile, error *e) {
    double seconds;
    error  ignored = { 0 };
    TRY(gpu_profile_start(profile, &in->engine->gpu, e));
    const gm_status status = encode_once(in, 1, &m->tokens, &seconds, e);
    const gm_status ended = gpu_profile_end(profile, status ? &ignored : e);
    return status ? status : ended;
}

gm_status bench_medium_measure(bench_medium *m, gm_engine *engine, bool heard, size_t repeats, gpu_profile *profile,
                               error *e) {
    medium_input in = { .engine = engine, .sound = heard };
    gm_status    status = input_make(&in, m->size, e);
    if (!status) status = encode_once(&in, 1, &m->tokens, &m->load_seconds, e);
    if (!status) status = encode_best(&in, 1, repeats, &m->tokens, &m->one, e);
    if (!status) status = encode_best(&in, BENCH_BATCH, repeats, &m->tokens, &m->batch, e);
    if (!status && profile) status = encode_timed(&in, m, profile, e);
    free(in.pixels);
    free(in.samples);
    return status;
}

void bench_medium_print(const bench_medium *m, bool heard) {
    if (!m->size) return;
    printf("%s   %.2f ms (%zu tokens%s), %d in %.2f ms (%.2f times one); the first took %.3f s\n",
           heard ? "sound  " : "picture", m->one * 1e3, m->tokens, heard ? "" : " of 48 × 48 pixels", BENCH_BATCH,
           m->batch * 1e3, m->batch / m->one, m->load_seconds);
}

void bench_medium_report(report *r, const bench_medium *m, bool heard) {
    if (!m->size) return;
    report_open(r, heard ? "audio" : "image", '{');
    if (heard) report_count(r, "length_seconds", m->size);
    report_count(r, "tokens", m->tokens);
    report_number(r, "seconds", m->one);
    report_number(r, "batch_of_4_seconds", m->batch);
    report_number(r, "first_seconds", m->load_seconds);
    report_close(r, '}');
}
