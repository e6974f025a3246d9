/* The bytes of a media part: data URLs and base64. */

#include "text/chat.h"

#include "base/base64.h"

#include <stdio.h>
#include <string.h>

/* The tokens of a picture, by OpenAI's levels of detail. 0: as many as are usual, 280 for Gemma 4. */
static gm_status media_detail(str detail, const char *place, uint32_t *out, error *e) {
    static const struct {
        const char *name;
        uint32_t    budget;
    } levels[] = { { "", 0 }, { "low", 70 }, { "auto", 0 }, { "high", 1120 } };
    for (size_t i = 0; i < COUNT_OF(levels); i++) {
        *out = levels[i].budget;
        if (str_is(detail, levels[i].name)) return GM_OK;
    }
    return fail(e, GM_BAD_ARGUMENT, "%s: detail must be low, auto or high, not \"%.*s\"", place, STR_ARGS(detail));
}

/* What follows "data:…;base64,"; the whole text if it is no URL. */
static gm_status media_payload(str text, const char *place, const char *what, str *out, error *e) {
    *out = text;
    if (!str_starts_with(text, "data:")) {
        const char *scheme = memchr(text.data, ':', min_size(text.length, 32));
        if (!scheme) return GM_OK;
        return fail(e, GM_UNSUPPORTED,
                    "%s: a remote %s is not fetched (%.*s%s); send its bytes, as a data URL that begins with "
                    "data:%s;base64,",
                    place, what, (int)min_size(text.length, 32), text.data, text.length > 32 ? "…" : "",
                    str_is(str_of(what), "sound") ? "audio/wav" : "image/png");
    }
    const char *comma = memchr(text.data, ',', text.length);
    const str   head = { text.data, comma ? (size_t)(comma - text.data) : 0 };
    if (!comma || !str_ends_with(head, ";base64"))
        return fail(e, GM_BAD_ARGUMENT, "%s: expected a data URL in base64 (data:…;base64,…)", place);
    *out = (str){ comma + 1, text.length - head.length - 1 };
    return GM_OK;
}

/* Where media may be decoded: in the body that they came in, or in the arena. */
typedef struct {
    str    body;
    arena *memory;
} media_room;

static gm_status media_bytes(const chat_part *part, const char *place, const media_room *room, const void **data,
                             size_t *size, error *e) {
    const char *what = part->kind == CHAT_AUDIO ? "sound" : "picture";
    str         payload;
    if (!part->source.length)
        return fail(e, GM_BAD_ARGUMENT, "%s: the %s has no data; expected base64, or a data URL", place, what);
    TRY(media_payload(part->source, place, what, &payload, e));
    const uintptr_t body = (uintptr_t)room->body.data, at = (uintptr_t)payload.data;
    const bool      within = at >= body && at < body + room->body.length;
    uint8_t        *bytes = within ? (uint8_t *)at : arena_alloc(room->memory, base64_most(payload.length));
    if (!bytes) return fail_memory(e, "a message", base64_most(payload.length));
    if (!base64_decode(payload, bytes, size))
        return fail(e, GM_BAD_ARGUMENT, "%s: the base64 of the %s is damaged at character %zu", place, what, *size);
    *data = bytes;
    return GM_OK;
}

static gm_status media_frames(const chat_part *part, const char *place, const media_room *room, gm_part *out,
                              error *e) {
    char at[240];
    if (!part->frames)
        return fail(e, GM_UNSUPPORTED,
                    "%s: send a video as frames: {\"type\": \"video\", \"frames\": [{\"time\": seconds, "
                    "\"image_url\": a data URL}, …]}",
                    place);
    gm_frame *frames = arena_array(room->memory, max_size(part->frames->count, 1), sizeof *frames);
    if (!frames) return fail_memory(e, "a message", part->frames->count * sizeof *frames);
    out->frames = frames;
    for (const json *item = part->frames->first; item; item = item->next) {
        gm_frame   *frame = &frames[out->frame_count];
        chat_part   shown;
        const json *time = json_get(item, "time");
        snprintf(at, sizeof at, "%s.frames[%zu]", place, out->frame_count++);
        TRY(chat_frame_source(item, at, &shown, e));
        if (shown.detail.length)
            return fail(e, GM_BAD_ARGUMENT, "%s: detail belongs to the video, not to one of its frames", at);
        if (!json_is(time, JSON_NUMBER))
            return fail(e, GM_BAD_ARGUMENT, "%s.time must be a number of seconds, found %s", at, json_describe(time));
        *frame = (gm_frame){ .time = time->number };
        TRY(media_bytes(&shown, at, room, &frame->data, &frame->size, e));
    }
    return GM_OK;
}

gm_status chat_part_media(const chat_part *part, const char *place, str body, arena *a, gm_part *out, error *e) {
    static const gm_part_kind kinds[] = {
        [CHAT_IMAGE] = GM_PART_IMAGE, [CHAT_AUDIO] = GM_PART_AUDIO, [CHAT_VIDEO] = GM_PART_VIDEO
    };
    const media_room room = { body, a };
    *out = (gm_part){ .kind = kinds[part->kind] };
    TRY(media_detail(part->detail, place, &out->budget, e));
    if (part->kind == CHAT_VIDEO) return media_frames(part, place, &room, out, e);
    return media_bytes(part, place, &room, &out->data, &out->size, e);
}

/* ---- in a prompt ---- */

gm_status chat_media_tokens(const tokenizer *t, chat_part_kind kind, size_t n, token_list *out, error *e) {
    static const special_token marks[][3] = {
        [CHAT_IMAGE] = { SPECIAL_IMAGE, SPECIAL_IMAGE_SOFT, SPECIAL_IMAGE_END },
        [CHAT_AUDIO] = { SPECIAL_AUDIO, SPECIAL_AUDIO_SOFT, SPECIAL_AUDIO_END },
        [CHAT_VIDEO] = { SPECIAL_IMAGE, SPECIAL_VIDEO_SOFT, SPECIAL_IMAGE_END },
    };
    for (size_t i = 0; i < 3; i++) {
        if (tokenizer_special(t, marks[kind][i]) < 0)
            return fail(e, GM_UNSUPPORTED, "this prompt needs the token %s, which is not in the model's vocabulary",
                        special_token_text[marks[kind][i]]);
    }
    token_list_add(out, tokenizer_special(t, marks[kind][0]));
    for (size_t i = 0; i < n; i++) token_list_add(out, tokenizer_special(t, marks[kind][1]));
    token_list_add(out, tokenizer_special(t, marks[kind][2]));
    return GM_OK;
}
