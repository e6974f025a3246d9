/* Expectations with pictures and sounds: soft tokens of the towers, and logits of prompts that have them. */

#include "cli/check.h"

#include "cli/input.h"
#include "media/picture.h"
#include "media/sound.h"
#include "session/session.h"
#include "session/tower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "image.soft_tokens"; the next call with the same buffer overwrites it. */
typedef struct {
    char text[80];
} tensor_name;

static const char *media_tensor(tensor_name *n, const char *kind, const char *what) {
    snprintf(n->text, sizeof n->text, "%s.%s", kind, what);
    return n->text;
}

/* ---- pictures ---- */

/* The grid that positions (x, y of each patch, row by row) cover. */
static gm_status find_grid(check_state *c, uint32_t *columns, uint32_t *rows, error *e) {
    const gguf_tensor *t = gguf_find_tensor(c->expect, "image.positions");
    const int32_t     *xy = t && t->type == TYPE_I32 && t->ne[0] == 2 ? check_values_of(c->expect, t) : NULL;
    if (!xy) return fail(e, GM_BAD_ARGUMENT, "%s has no image.positions of type I32 [2, patches]", c->expect_path);
    const uint64_t count = t->count / 2;
    const int32_t  last_x = count ? xy[2 * count - 2] : -1, last_y = count ? xy[2 * count - 1] : -1;
    bool           fits = last_x >= 0 && last_y >= 0 && ((uint64_t)last_x + 1) * ((uint64_t)last_y + 1) == count;
    for (uint64_t i = 0; fits && i < count; i++)
        fits = xy[2 * i] == (int32_t)(i % ((uint64_t)last_x + 1)) &&
               xy[2 * i + 1] == (int32_t)(i / ((uint64_t)last_x + 1));
    if (!fits) return fail(e, GM_BAD_ARGUMENT, "image.positions is not a grid, row by row");
    *columns = (uint32_t)last_x + 1;
    *rows = (uint32_t)last_y + 1;
    return GM_OK;
}

/* Which patches the expectation has: all, or those that image.patch_rows lists. */
typedef struct {
    float         *values; /* of all patches; 0 where they are not given */
    uint32_t       columns, rows, side;
    const int32_t *given; /* NULL: all */
    size_t         given_count;
} given_patches;

static gm_status find_patches(check_state *c, given_patches *out, error *e) {
    const gguf_tensor *t = gguf_find_tensor(c->expect, "image.patches"),
                      *list = gguf_find_tensor(c->expect, "image.patch_rows");
    *out = (given_patches){ 0 };
    if (!t || t->type != TYPE_F32)
        return fail(e, GM_BAD_ARGUMENT, "%s has no image.patches: name the picture with --image", c->expect_path);
    TRY(find_grid(c, &out->columns, &out->rows, e));
    const uint64_t count = (uint64_t)out->columns * out->rows, given = t->count / t->ne[0];
    const float   *values = check_values_of(c->expect, t);
    out->side = (uint32_t)lround(sqrt((double)t->ne[0] / 3));
    if (list && list->type == TYPE_I32 && list->count == given) out->given = check_values_of(c->expect, list);
    out->given_count = out->given ? (size_t)given : (size_t)count;
    if (out->side * out->side * 3 != t->ne[0] || (!out->given && given != count))
        return fail(e, GM_BAD_ARGUMENT, "image.patches is [%llu, %llu], which does not fit %llu positions",
                    (unsigned long long)t->ne[0], (unsigned long long)given, (unsigned long long)count);
    out->values = calloc((size_t)(count * t->ne[0]), sizeof *out->values);
    if (!out->values) return fail_memory(e, "the patches", count * t->ne[0] * sizeof *out->values);
    for (uint64_t i = 0; i < given; i++) {
        const uint64_t at = out->given ? (uint64_t)out->given[i] : i;
        if (at < count) memcpy(out->values + at * t->ne[0], values + i * t->ne[0], t->ne[0] * sizeof *values);
    }
    return GM_OK;
}

/* Runs the job to its end and copies the rows of its items, one after another. */
static gm_status run_tower(check_state *c, tower_job *job, size_t items, media_rows *out, error *e) {
    gm_status status;
    do {
        engine_enter(c->engine);
        status = tower_job_step(job, e);
        engine_leave(c->engine);
    } while (status == GM_AGAIN);
    TRY(status);
    out->width = c->engine->weights.config.width;
    for (size_t i = 0; i < items; i++) {
        size_t       count = 0;
        const float *rows = tower_job_rows(job, i, &count);
        float       *all = realloc(out->rows, (out->count + count) * out->width * sizeof *all);
        if (!all) return fail_memory(e, "the soft tokens", (out->count + count) * out->width * sizeof *all);
        out->rows = all;
        memcpy(all + out->count * out->width, rows, count * out->width * sizeof *all);
        out->count += count;
    }
    return GM_OK;
}

/* Runs the job and frees it. */
static gm_status encode_and_free(check_state *c, tower_job *job, size_t count, media_rows *out, error *e) {
    const gm_status status = run_tower(c, job, count, out, e);
    engine_enter(c->engine);
    tower_job_free(job);
    engine_leave(c->engine);
    return status;
}

gm_status check_encode_pictures(check_state *c, const tower_picture *pictures, size_t count, media_rows *out,
                                error *e) {
    tower_job *job = NULL;
    engine_enter(c->engine);
    const gm_status status = tower_encode_pictures(c->engine, pictures, count, &job, e);
    engine_leave(c->engine);
    return status ? status : encode_and_free(c, job, count, out, e);
}

/* The picture of --image in the size that the expectation has: with the smallest budget that gives its number of soft tokens. */
static gm_status load_picture(check_state *c, picture *out, error *e) {
    static const uint32_t budgets[] = { 70, 140, 280, 560, 1120 };
    const gguf_tensor    *t = gguf_find_tensor(c->expect, "image.soft_tokens");
    buffer                bytes = { 0 };
    picture               raw = { 0 };
    gm_status             status = input_read(c->picture, &bytes, e);
    if (!status) status = picture_decode(bytes.data, bytes.length, &raw, e);
    buffer_free(&bytes);
    for (size_t i = 0; i < COUNT_OF(budgets) && !status && !out->pixels; i++) {
        uint32_t width = 0, height = 0;
        error    too_long = { 0 };
        if (picture_fit(raw.width, raw.height, budgets[i], &width, &height, &too_long)) continue;
        const uint64_t soft = (uint64_t)(width / PICTURE_SOFT_SIDE) * (height / PICTURE_SOFT_SIDE);
        if (t && t->ne[0] && soft == t->count / t->ne[0]) status = picture_resize(&raw, width, height, out, e);
    }
    picture_free(&raw);
    if (status || out->pixels) return status;
    return fail(e, GM_BAD_ARGUMENT, "%s has as many soft tokens as %s with no budget", c->expect_path, c->picture);
}

static gm_status encode_file(check_state *c, media_rows *out, error *e) {
    picture   p = { 0 };
    gm_status status = load_picture(c, &p, e);
    if (!status)
        status = check_encode_pictures(c, &(tower_picture){ .width = p.width, .height = p.height, .pixels = p.pixels },
                                       1, out, e);
    picture_free(&p);
    return status;
}

/* Encodes the picture once: that of --image, or the expectation's patches. */
static gm_status need_image(check_state *c, error *e) {
    given_patches patches;
    media_rows   *out = &c->image;
    if (out->rows) return GM_OK;
    TRY(check_need_engine(c, e));
    if (c->picture) return encode_file(c, out, e);
    gm_status status = find_patches(c, &patches, e);
    if (!status) {
        const tower_picture given = { .width = patches.columns * patches.side,
                                      .height = patches.rows * patches.side,
                                      .patches = patches.values };
        status = check_encode_pictures(c, &given, 1, out, e);
        out->some = patches.given;
        out->some_count = patches.given_count;
    }
    free(patches.values);
    return status;
}

/* ---- sounds ---- */

static gm_status encode_sounds(check_state *c, const tower_sound *sounds, size_t count, media_rows *out, error *e) {
    tower_job *job = NULL;
    engine_enter(c->engine);
    const gm_status status = tower_encode_sounds(c->engine, sounds, count, &job, e);
    engine_leave(c->engine);
    return status ? status : encode_and_free(c, job, count, out, e);
}

/* The sound of --audio, or the expectation's samples. */
static gm_status load_sound(check_state *c, sound *out, error *e) {
    const gguf_tensor *t = gguf_find_tensor(c->expect, "audio.pcm");
    if (!c->sound) {
        if (!t || t->type != TYPE_F32)
            return fail(e, GM_BAD_ARGUMENT, "%s has no audio.mel or audio.pcm: name the sound with --audio",
                        c->expect_path);
        return sound_from_samples(check_values_of(c->expect, t), (size_t)t->count, 1, SOUND_RATE, out, e);
    }
    buffer    bytes = { 0 };
    gm_status status = input_read(c->sound, &bytes, e);
    if (!status) status = sound_decode(bytes.data, bytes.length, out, e);
    buffer_free(&bytes);
    return status;
}

/* All pieces of the sound. */
static gm_status encode_sound(check_state *c, const sound *s, media_rows *out, error *e) {
    size_t count = 0;
    for (size_t at = 0; at < s->count; count++) at += sound_piece(s->samples + at, s->count - at);
    tower_sound *pieces = calloc(max_size(count, 1), sizeof *pieces);
    if (!pieces) return fail_memory(e, "the sound's pieces", count * sizeof *pieces);
    for (size_t i = 0, at = 0; i < count; at += pieces[i++].count)
        pieces[i] = (tower_sound){ .samples = s->samples + at, .count = sound_piece(s->samples + at, s->count - at) };
    const gm_status status = encode_sounds(c, pieces, count, out, e);
    free(pieces);
    return status;
}

/* Encodes the sound once: that of --audio, the expectation's mel features, or its samples. */
static gm_status need_audio(check_state *c, error *e) {
    const gguf_tensor *mel = gguf_find_tensor(c->expect, "audio.mel"),
                      *mask = gguf_find_tensor(c->expect, "audio.mel_mask");
    media_rows *out = &c->audio;
    if (out->rows) return GM_OK;
    TRY(check_need_engine(c, e));
    if (!c->sound && mel && mask && mel->type == TYPE_F32 && mel->ne[0] == MEL_BINS && mask->type == TYPE_I32 &&
        mask->count * MEL_BINS == mel->count) {
        const int32_t *valid = check_values_of(c->expect, mask);
        size_t         frames = 0;
        while (frames < mask->count && valid[frames]) frames++;
        return encode_sounds(c, &(tower_sound){ .mel = check_values_of(c->expect, mel), .frames = frames }, 1, out, e);
    }
    sound     s = { 0 };
    gm_status status = load_sound(c, &s, e);
    if (!status) status = encode_sound(c, &s, out, e);
    sound_free(&s);
    return status;
}

gm_status check_audio_mel(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    (void)rest;
    sound     s = { 0 };
    gm_status status = load_sound(c, &s, e);
    if (!status && (want->type != TYPE_F32 || want->count != mel_frames(s.count) * MEL_BINS))
        status = fail(e, GM_BAD_ARGUMENT, "audio.mel has %llu values; the sound has %zu frames of %d",
                      (unsigned long long)want->count, mel_frames(s.count), MEL_BINS);
    float *mel = status ? NULL : malloc(max_size((size_t)want->count, 1) * sizeof *mel);
    if (!status && !mel) status = fail_memory(e, "the mel features", want->count * sizeof *mel);
    if (!status) status = mel_features(s.samples, s.count, mel, e);
    if (!status) result->error = relative_error(mel, check_values_of(c->expect, want), want->count);
    free(mel);
    sound_free(&s);
    return status;
}

/* ---- soft tokens ---- */

static gm_status find_rows(check_state *c, const char *kind, const gguf_tensor **out, error *e) {
    tensor_name        n;
    const size_t       width = c->engine->weights.config.width;
    const gguf_tensor *t = gguf_find_tensor(c->expect, media_tensor(&n, kind, "soft_tokens"));
    if (!t) return fail(e, GM_BAD_ARGUMENT, "%s has no %s", c->expect_path, n.text);
    if (t->type != TYPE_F32 || t->ne[0] != width)
        return fail(e, GM_BAD_ARGUMENT, "%s is %s [%llu, %llu], expected F32 with rows of %zu", n.text, t->format->name,
                    (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], width);
    *out = t;
    return check_values_of(c->expect, t) ? GM_OK : fail(e, GM_BAD_ARGUMENT, "%s has no data", n.text);
}

gm_status check_image_soft(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    const gguf_tensor *t = NULL;
    (void)rest;
    TRY(need_image(c, e));
    TRY(find_rows(c, "image", &t, e));
    const media_rows *got = &c->image;
    const float      *values = check_values_of(c->expect, want);
    if (want->count != got->count * got->width)
        return fail(e, GM_BAD_ARGUMENT, "the expectation has %llu soft tokens, but the tower made %zu",
                    (unsigned long long)(want->count / got->width), got->count);
    if (!got->some) {
        result->error = relative_error(got->rows, values, want->count);
        return GM_OK;
    }
    /* Without an encoder each soft token comes from one patch: those whose patches are given can be compared. */
    for (size_t i = 0; i < got->some_count; i++) {
        const size_t at = (size_t)got->some[i] * got->width;
        if (at >= want->count) return fail(e, GM_BAD_ARGUMENT, "image.patch_rows names patch %d", (int)got->some[i]);
        const double off = relative_error(got->rows + at, values + at, got->width);
        if (!(off <= result->error)) result->error = off;
    }
    return GM_OK;
}

gm_status check_audio_soft(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    const gguf_tensor *t = NULL;
    (void)rest;
    TRY(need_audio(c, e));
    TRY(find_rows(c, "audio", &t, e));
    if (want->count != c->audio.count * c->audio.width)
        return fail(e, GM_BAD_ARGUMENT, "the expectation has %llu soft tokens, but the tower made %zu",
                    (unsigned long long)(want->count / c->audio.width), c->audio.count);
    result->error = relative_error(c->audio.rows, check_values_of(c->expect, want), want->count);
    return GM_OK;
}

/* The rows that take the place of a prompt's soft tokens: those of our tower, or the expectation's if it has no patches of all. */
gm_status check_find_soft(check_state *c, bool image, int32_t *id, media_rows *out, error *e) {
    const gguf_tensor *t = NULL;
    *id = tokenizer_special(c->engine->words, image ? SPECIAL_IMAGE_SOFT : SPECIAL_AUDIO_SOFT);
    if (*id < 0)
        return fail(e, GM_UNSUPPORTED, "the model's vocabulary has no token for an %s", image ? "image" : "audio");
    error no_tower = { 0 };
    if (image && !need_image(c, &no_tower) && !c->image.some) {
        *out = c->image;
        return GM_OK;
    }
    if (!image && !need_audio(c, &no_tower)) {
        *out = c->audio;
        return GM_OK;
    }
    TRY(find_rows(c, image ? "image" : "audio", &t, e));
    *out = (media_rows){ .rows = (float *)check_values_of(c->expect, t),
                         .count = (size_t)(t->count / t->ne[0]),
                         .width = (size_t)t->ne[0] };
    return GM_OK;
}

/* ---- prompts ---- */

gm_status check_hold_prompt(gm_session *s, const int32_t *ids, size_t count, int32_t soft_id, const media_rows *soft,
                            bool image, error *e) {
    size_t used = 0;
    for (size_t i = 0, n = 1; i < count; i += n, n = 1) {
        if (ids[i] != soft_id) {
            TRY(session_hold(s, ids[i], e));
            continue;
        }
        while (i + n < count && ids[i + n] == soft_id) n++;
        if (used + n <= soft->count) TRY(session_hold_soft(s, soft_id, soft->rows + used * soft->width, n, image, e));
        used += n;
    }
    if (used == soft->count) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "the prompt has %zu soft tokens, but there are rows for %zu", used, soft->count);
}

/* A session that holds the prompt of this kind, and the logits of all its tokens [*count, vocabulary]. */
static gm_status prompt_logits(check_state *c, const char *kind, size_t more, gm_session **session, float **logits,
                               size_t *count, error *e) {
    tensor_name    n;
    const int32_t *ids = NULL;
    int32_t        soft_id = -1;
    media_rows     soft = { 0 };
    const bool     image = !strcmp(kind, "image");
    TRY(check_need_engine(c, e));
    const uint32_t vocabulary = c->engine->weights.config.vocabulary;
    TRY(check_find_ids(c, media_tensor(&n, kind, "ids"), vocabulary, &ids, count, e));
    TRY(check_find_soft(c, image, &soft_id, &soft, e));
    *logits = malloc(*count * vocabulary * sizeof **logits);
    if (!*logits) return fail_memory(e, "the logits", *count * vocabulary * sizeof **logits);
    TRY(check_new_session(c, *count + more, session, e));
    TRY(check_hold_prompt(*session, ids, *count, soft_id, &soft, image, e));
    return session_logits_held(*session, *logits, e);
}

gm_status check_soft_logits(check_state *c, const gguf_tensor *want, const char *kind, check_result *result, error *e) {
    gm_session *session = NULL;
    float      *logits = NULL;
    size_t      count = 0;
    gm_status   status = prompt_logits(c, kind, 0, &session, &logits, &count, e);
    if (!status) status = check_logits_shape(want, c->engine->weights.config.vocabulary, count, e);
    if (!status) result->error = check_logits_error(c, want, logits, count);
    check_end_session(session);
    free(logits);
    return status;
}

gm_status check_soft_greedy(check_state *c, const gguf_tensor *want, const char *kind, check_result *result, error *e) {
    gm_session *session = NULL;
    float      *logits = NULL;
    size_t      count = 0;
    gm_status   status = prompt_logits(c, kind, (size_t)want->count, &session, &logits, &count, e);
    if (!status) status = check_continuation(c, session, want, result, e);
    check_end_session(session);
    free(logits);
    return status;
}
