/* See media.h. */

#include "session/media.h"

#include "base/clock.h"
#include "base/sha256.h"
#include "media/video.h"
#include "session/serving.h"
#include "session/tower_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- decoding ---- */

static gm_status media_check_part(const gm_part *part, error *e) {
    const char *what = part->kind == GM_PART_AUDIO ? "sound" : "picture";
    if (!part->data || !part->size) return fail(e, GM_BAD_ARGUMENT, "the %s is empty: it has 0 bytes", what);
    if (part->budget && !picture_budget_valid(part->budget))
        return fail(e, GM_BAD_ARGUMENT, "a picture's token budget must be 70, 140, 280, 560 or 1,120, not %u",
                    part->budget);
    if (part->kind == GM_PART_AUDIO && part->rate && part->size % sizeof(float))
        return fail(e, GM_BAD_ARGUMENT, "samples have 4 bytes each, but %zu bytes were given", part->size);
    if (part->kind == GM_PART_IMAGE && (part->width || part->height) &&
        part->size != (uint64_t)part->width * part->height * 3)
        return fail(e, GM_BAD_ARGUMENT, "%u x %u pixels have 3 bytes each, but %zu bytes were given", part->width,
                    part->height, part->size);
    return GM_OK;
}

/* A small model may have been trained with fewer tokens than Gemma 4, and say so. */
uint32_t media_default_budget(const gguf *file) {
    error    ignored = { 0 };
    uint32_t budget = 0;
    bool     found = false;
    if (gguf_get_u32(file, "gemmule.vision.soft_tokens", &budget, &found, &ignored)) return PICTURE_BUDGET;
    return found && picture_budget_valid(budget) ? budget : PICTURE_BUDGET;
}

static uint32_t media_budget(const gm_engine *engine, const gm_part *part) {
    return part->budget ? part->budget : media_default_budget(engine->file);
}

/* Refuses a prompt that is certainly too long, before what it has is decoded: with `tokens` more than the media so far. */
static gm_status media_check_room(const prompt_media *m, const gm_session *s, uint64_t tokens, error *e) {
    uint64_t total = tokens;
    for (size_t i = 0; i < m->count; i++) total += m->items[i].tokens;
    if (total <= s->kv.context) return GM_OK;
    char context[32], all[32];
    return fail(e, GM_CONTEXT_FULL, "the prompt has more than %s tokens; the context holds %s", with_commas(total, all),
                with_commas(s->kv.context, context));
}

/* The tokens of a picture that is not decoded yet; 0: its header does not tell. */
static uint64_t media_measure_picture(const gm_part *part, uint32_t budget) {
    uint32_t width = part->width, height = part->height, fit_width, fit_height;
    error    ignored = { 0 };
    if (!width && !picture_measure(part->data, part->size, &width, &height)) return 0;
    if (picture_fit(width, height, budget, &fit_width, &fit_height, &ignored)) return 0;
    return (uint64_t)(fit_width / PICTURE_SOFT_SIDE) * (fit_height / PICTURE_SOFT_SIDE);
}

/* Identifies what computes an item's rows: the tower, and the session's adapters that correct it. */
static gm_status media_tower_digest(const gm_session *s, tower_kind kind, uint8_t digest[32], error *e) {
    char   adapters[65];
    sha256 hash;
    TRY(engine_tower_digest(s->engine, kind, digest, e));
    engine_adapters_part_digest(s->engine, s->adapters, tower_part(kind), adapters);
    if (!*adapters) return GM_OK;
    sha256_start(&hash);
    sha256_add(&hash, digest, 32);
    sha256_add(&hash, adapters, strlen(adapters));
    sha256_end(&hash, digest);
    return GM_OK;
}

/* What a session knows it by. */
static gm_status media_digest(media_item *item, const gm_session *session, const gm_part *part, error *e) {
    const gm_engine *engine = session->engine;
    uint8_t          tower[32];
    sha256           s;
    TRY(media_tower_digest(session, item->kind, tower, e));
    const uint32_t kind = (uint32_t)item->kind + (item->frame ? TOWER_KINDS : 0);
    const uint32_t facts[] = { kind, part->width, part->height, part->rate, media_budget(engine, part) };
    sha256_start(&s);
    sha256_add(&s, tower, sizeof tower);
    sha256_add(&s, facts, sizeof facts);
    sha256_add(&s, part->data, part->size);
    sha256_end(&s, item->digest);
    return GM_OK;
}

static gm_status media_decode_picture(media_item *item, const gm_part *part, uint32_t budget, error *e) {
    picture   whole = { 0 };
    gm_status status = part->width ? picture_copy(part->data, part->width, part->height, &whole, e)
                                   : picture_decode(part->data, part->size, &whole, e);
    if (!status) status = picture_fitted(&whole, budget, &item->seen, e);
    picture_free(&whole);
    if (status) return status;
    item->tokens = (size_t)(item->seen.width / PICTURE_SOFT_SIDE) * (item->seen.height / PICTURE_SOFT_SIDE);
    return GM_OK;
}

/* A new item at the end; NULL: no memory. */
static media_item *media_new_item(prompt_media *m, arena *a, tower_kind kind, error *e) {
    if (m->count == m->capacity) {
        const size_t capacity = 2 * m->capacity + 4;
        media_item  *more = arena_array(a, capacity, sizeof *more);
        if (!more) {
            fail_memory(e, "the pictures and sounds", capacity * sizeof *more);
            return NULL;
        }
        if (m->count) memcpy(more, m->items, m->count * sizeof *more);
        m->items = more;
        m->capacity = capacity;
    }
    m->items[m->count].kind = kind;
    return &m->items[m->count++];
}

static gm_status media_prepare_picture(prompt_media *m, gm_session *s, const gm_part *part, bool frame, arena *a,
                                       error *e) {
    media_item *item = media_new_item(m, a, TOWER_VISION, e);
    if (!item) return e->status;
    item->frame = frame;
    engine_enter(s->engine);
    gm_status  status = media_digest(item, s, part, e);
    const bool held = !status && soft_find(&s->soft, item->digest, &item->tokens);
    engine_leave(s->engine);
    if (status || held) return status ? status : media_check_room(m, s, 0, e);
    const uint32_t budget = media_budget(s->engine, part);
    TRY(media_check_room(m, s, media_measure_picture(part, budget), e));
    TRY(media_decode_picture(item, part, budget, e));
    return media_check_room(m, s, 0, e);
}

/* What the decoder knows of its sound fits into the context: hours do not. A token stands for 40 ms. */
static gm_status media_check_sound(const prompt_media *m, const gm_session *s, const sound_decoder *d, error *e) {
    return media_check_room(m, s, max_size(sound_decoder_least(d), sound_decoder_done(d)) / RAW_FRAME, e);
}

gm_status session_open_sound(gm_session *s, const void *bytes, size_t size, sound_decoder **out, error *e) {
    engine_enter(s->engine);
    const gm_status hears = engine_has_tower(s->engine, TOWER_AUDIO, e);
    engine_leave(s->engine);
    return hears ? hears : sound_decoder_new(bytes, size, out, e);
}

gm_status session_decode_sound(const gm_session *s, sound_decoder *d, double deadline, sound *out, error *e) {
    TRY(media_check_sound(&(prompt_media){ 0 }, s, d, e));
    return sound_decoder_step(d, deadline, out, e);
}

static gm_status media_run_decoder(const prompt_media *m, gm_session *s, sound_decoder *d, sound *out, error *e) {
    gm_status status;
    do {
        TRY(media_check_sound(m, s, d, e));
        status = sound_decoder_step(d, clock_seconds() + 0.05, out, e);
        if (status == GM_AGAIN && atomic_exchange(&s->cancelled, false))
            return fail(e, GM_CANCELLED, "cancelled while a sound was decoded");
    } while (status == GM_AGAIN);
    return status;
}

static gm_status media_decode_sound(const prompt_media *m, gm_session *s, const gm_part *part, sound *out, error *e) {
    sound_decoder *d = NULL;
    if (part->rate) TRY(sound_decoder_of_samples(part->data, part->size / sizeof(float), 1, part->rate, &d, e));
    else TRY(sound_decoder_new(part->data, part->size, &d, e));
    const gm_status status = media_run_decoder(m, s, d, out, e);
    sound_decoder_free(d);
    if (status || out->count >= MEL_SHORTEST) return status;
    const size_t count = out->count;
    sound_free(out);
    return fail(e, GM_BAD_FILE, "the sound is too short: it has %zu samples at 16 kHz, at least %d are needed", count,
                MEL_SHORTEST);
}

/* Decoding is cheap, so a sound is known by its samples, piece by piece. */
static gm_status media_prepare_sound(prompt_media *m, gm_session *s, const gm_part *part, arena *a, error *e) {
    sound   whole = { 0 };
    uint8_t tower[32];
    engine_enter(s->engine);
    const gm_status known = media_tower_digest(s, TOWER_AUDIO, tower, e);
    engine_leave(s->engine);
    if (known) return known;
    TRY(media_decode_sound(m, s, part, &whole, e));
    for (size_t at = 0, n; at < whole.count; at += n) {
        media_item *item = media_new_item(m, a, TOWER_AUDIO, e);
        if (!item) {
            if (!at) sound_free(&whole);
            return e->status;
        }
        n = sound_piece(whole.samples + at, whole.count - at);
        if (!at) item->heard = whole;
        item->samples = whole.samples + at;
        item->sample_count = n;
        item->more = at + n < whole.count;
        item->tokens = tower_sound_tokens(engine_tower_file(s->engine, TOWER_AUDIO), n);
        sha256 hash;
        sha256_start(&hash);
        sha256_add(&hash, "sound", 5);
        sha256_add(&hash, tower, sizeof tower);
        sha256_add(&hash, item->samples, n * sizeof *item->samples);
        sha256_end(&hash, item->digest);
    }
    return GM_OK;
}

/* A frame is a picture with a budget of its own. */
static gm_status media_prepare_frame(prompt_media *m, gm_session *s, const gm_part *video, size_t number, arena *a,
                                     error *e) {
    const gm_frame *frame = &video->frames[number];
    const gm_part   part = { .kind = GM_PART_IMAGE,
                             .data = frame->data,
                             .size = frame->size,
                             .width = frame->width,
                             .height = frame->height,
                             .budget = video->budget ? video->budget : VIDEO_BUDGET };
    error           inner = { 0 };
    gm_status       status = media_check_part(&part, &inner);
    if (!status) status = media_prepare_picture(m, s, &part, true, a, &inner);
    if (status) return fail(e, status, "frame %zu: %s", number + 1, inner.why);
    const media_item *item = &m->items[m->count - 1], *before = number ? item - 1 : item;
    if (item->tokens == before->tokens) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT,
                "frame %zu becomes %zu tokens, but the one before it %zu: the frames of a video must have one size",
                number + 1, item->tokens, before->tokens);
}

static gm_status media_prepare_piece(prompt_media *m, gm_session *s, const chat_piece *piece, arena *a, error *e) {
    const gm_part *part = piece->media->media;
    const bool     heard = part->kind == GM_PART_AUDIO;
    engine_enter(s->engine);
    const gm_status status = engine_has_tower(s->engine, heard ? TOWER_AUDIO : TOWER_VISION, e);
    engine_leave(s->engine);
    if (status) return status;
    if (part->kind == GM_PART_VIDEO) return media_prepare_frame(m, s, part, piece->frame, a, e);
    TRY(media_check_part(part, e));
    return heard ? media_prepare_sound(m, s, part, a, e) : media_prepare_picture(m, s, part, false, a, e);
}

gm_status media_prepare(prompt_media *m, gm_session *s, const chat_piece *pieces, size_t count, arena *a, error *e) {
    static const char *const names[] = {
        [GM_PART_IMAGE] = "picture", [GM_PART_AUDIO] = "sound", [GM_PART_VIDEO] = "video"
    };
    size_t wanted = 0, part = 0;
    engine_enter(s->engine);
    for (tower_kind kind = 0; kind < TOWER_KINDS; kind++)
        engine_adapters_part_digest(s->engine, s->adapters, tower_part(kind), m->adapters[kind]);
    engine_leave(s->engine);
    for (size_t i = 0; i < count; i++) wanted += pieces[i].media && pieces[i].media->media && !pieces[i].frame;
    if (!wanted) return GM_OK;
    for (size_t i = 0; i < count; i++) {
        if (!pieces[i].media || !pieces[i].media->media) continue;
        error           inner = { 0 };
        const gm_status status = media_prepare_piece(m, s, &pieces[i], a, &inner);
        part += !pieces[i].frame;
        if (!status) continue;
        if (wanted == 1) return fail(e, status, "%s", inner.why);
        return fail(e, status, "the %s, number %zu of %zu: %s", names[pieces[i].media->media->kind], part, wanted,
                    inner.why);
    }
    m->rows = arena_array(a, m->count, sizeof *m->rows);
    return m->rows ? GM_OK : fail_memory(e, "the pictures and sounds", m->count * sizeof *m->rows);
}

/* ---- the prompt ---- */

static chat_part_kind media_part_kind(const media_item *item) {
    return item->kind == TOWER_AUDIO ? CHAT_AUDIO : item->frame ? CHAT_VIDEO : CHAT_IMAGE;
}

/* The token that stands for an item in a prompt, and that its soft tokens have. */
static special_token media_soft(const media_item *item) {
    return item->kind == TOWER_AUDIO ? SPECIAL_AUDIO_SOFT : item->frame ? SPECIAL_VIDEO_SOFT : SPECIAL_IMAGE_SOFT;
}

static gm_status media_add(prompt_media *m, const gm_engine *engine, const media_item *item, token_list *out,
                           error *e) {
    const bool   block = item->kind == TOWER_VISION && engine->weights.config.image_blocks;
    const size_t begin = out->count + 1; /* after the token that begins it */
    TRY(chat_media_tokens(engine->words, media_part_kind(item), item->tokens, out, e));
    return soft_declare(&m->spans, begin, item->tokens, block, item->digest, e);
}

gm_status media_expand(prompt_media *m, const gm_engine *engine, token_list *prompt, error *e) {
    token_list out = { 0 };
    size_t     next = 0;
    gm_status  status = GM_OK;
    if (!m->count || prompt->failed) return GM_OK;
    for (size_t i = 0; i < prompt->count && !status; i++) {
        const bool stands =
            next < m->count && prompt->ids[i] == tokenizer_special(engine->words, media_soft(&m->items[next]));
        if (!stands) token_list_add(&out, prompt->ids[i]);
        for (bool more = stands; more && !status; next++) {
            status = media_add(m, engine, &m->items[next], &out, e);
            more = m->items[next].more;
        }
    }
    token_list_free(prompt);
    *prompt = out;
    return status;
}

/* ---- encoding ---- */

/* Decides what the tower must encode. Rows that the session has at another place are copied, since it is about to drop them. */
static gm_status media_begin(prompt_media *m, gm_session *s, const session_prompt *p, arena *a, error *e) {
    const size_t common = session_common(s, p), width = s->engine->weights.config.width;
    m->encoding = 0;
    m->foreign = false;
    memset(m->waiting, 0, sizeof m->waiting);
    for (tower_kind kind = 0; kind < TOWER_KINDS; kind++) {
        char now[65];
        engine_adapters_part_digest(s->engine, s->adapters, tower_part(kind), now);
        if (strcmp(now, m->adapters[kind]))
            return fail(e, GM_BAD_ARGUMENT,
                        "this reply cannot begin: its session has other adapters since it was started");
    }
    for (size_t i = 0; i < m->count; i++) {
        media_item  *item = &m->items[i];
        size_t       n = 0;
        const float *held = soft_find(&s->soft, item->digest, &n);
        item->waits = false;
        item->rows = NULL;
        if (m->spans.spans[i].begin < common) continue;
        if (held && n == item->tokens) {
            float *copy = arena_array(a, n, width * sizeof *copy);
            if (!copy) return fail_memory(e, "soft tokens", n * width * sizeof *copy);
            item->rows = memcpy(copy, held, n * width * sizeof *copy);
            m->foreign = s->foreign;
        } else if (item->seen.pixels || item->samples) {
            item->waits = true;
            m->encoding++;
            m->waiting[item->kind]++;
        } else {
            return fail(e, GM_BAD_ARGUMENT, "this reply cannot begin: its session was changed after it was started");
        }
    }
    m->begun = true;
    m->started = clock_seconds();
    return GM_OK;
}

static gm_status media_start_pictures(prompt_media *m, gm_session *s, error *e) {
    tower_picture *pictures = calloc(m->waiting[TOWER_VISION], sizeof *pictures);
    size_t         n = 0;
    if (!pictures) return fail_memory(e, "the pictures", m->waiting[TOWER_VISION] * sizeof *pictures);
    for (size_t i = 0; i < m->count; i++) {
        const media_item *item = &m->items[i];
        if (item->waits && item->kind == TOWER_VISION)
            pictures[n++] = (tower_picture){ .width = item->seen.width,
                                             .height = item->seen.height,
                                             .pixels = item->seen.pixels,
                                             .frame = item->frame };
    }
    const gm_status status = tower_encode_pictures(s->engine, pictures, n, &m->jobs[TOWER_VISION], e);
    free(pictures);
    return status;
}

static gm_status media_start_sounds(prompt_media *m, gm_session *s, error *e) {
    tower_sound *sounds = calloc(m->waiting[TOWER_AUDIO], sizeof *sounds);
    size_t       n = 0;
    if (!sounds) return fail_memory(e, "the sounds", m->waiting[TOWER_AUDIO] * sizeof *sounds);
    for (size_t i = 0; i < m->count; i++) {
        const media_item *item = &m->items[i];
        if (item->waits && item->kind == TOWER_AUDIO)
            sounds[n++] = (tower_sound){ .samples = item->samples, .count = item->sample_count };
    }
    const gm_status status = tower_encode_sounds(s->engine, sounds, n, &m->jobs[TOWER_AUDIO], e);
    free(sounds);
    return status;
}

static gm_status media_take_rows(prompt_media *m, error *e) {
    size_t next[TOWER_KINDS] = { 0 };
    for (size_t i = 0; i < m->count; i++) {
        media_item *item = &m->items[i];
        size_t      n = 0;
        if (item->waits) {
            item->rows = tower_job_rows(m->jobs[item->kind], next[item->kind]++, &n);
            if (!item->rows || n != item->tokens)
                return fail(e, GM_BAD_FILE, "the tower made %zu tokens of a picture or sound, expected %zu", n,
                            item->tokens);
        }
        m->rows[i] = item->rows;
    }
    return GM_OK;
}

static gm_status media_step(prompt_media *m, gm_session *s, const session_prompt *p, arena *a, error *e) {
    if (!m->begun) TRY(media_begin(m, s, p, a, e));
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) {
        if (!m->waiting[kind]) continue;
        if (!m->jobs[kind]) TRY((kind == TOWER_VISION ? media_start_pictures : media_start_sounds)(m, s, e));
        tower_job_use(m->jobs[kind], s->adapters);
        const gm_status status = tower_job_step(m->jobs[kind], e);
        if (status) return status;
    }
    TRY(media_take_rows(m, e));
    m->seconds = clock_seconds() - m->started;
    m->done = true;
    return GM_OK;
}

/* After a failure it begins anew: until the next call, the session may be another's. */
gm_status media_encode(prompt_media *m, gm_session *s, const session_prompt *p, arena *a, error *e) {
    if (m->done) return GM_OK;
    const gm_status status = media_step(m, s, p, a, e);
    if (!status_failed(status)) return status;
    media_stop(m);
    m->begun = false;
    return status;
}

size_t media_encoded(const prompt_media *m) {
    size_t done = 0;
    if (m->done) return m->encoding;
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) {
        if (!m->jobs[kind]) continue;
        const tower_progress now = tower_job_progress(m->jobs[kind]);
        if (now.phase == TOWER_ENCODING) done += (size_t)now.done;
    }
    return done;
}

void media_stop(prompt_media *m) {
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) {
        tower_job_free(m->jobs[kind]);
        m->jobs[kind] = NULL;
    }
}

void media_free(prompt_media *m) {
    media_stop(m);
    for (size_t i = 0; i < m->count; i++) {
        picture_free(&m->items[i].seen);
        sound_free(&m->items[i].heard);
    }
    soft_free(&m->spans);
    m->count = 0;
}
