/* The bytes of a media part: data URLs and base64. */

#include "text/chat.h"

#include "base/base64.h"

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
                    "%s: a remote %s is not fetched (%.*s…); send its bytes, as a data URL that begins with "
                    "data:%s;base64,",
                    place, what, (int)min_size(text.length, 32), text.data,
                    str_is(str_of(what), "sound") ? "audio/wav" : "image/png");
    }
    const char *comma = memchr(text.data, ',', text.length);
    const str   head = { text.data, comma ? (size_t)(comma - text.data) : 0 };
    if (!comma || !str_ends_with(head, ";base64"))
        return fail(e, GM_BAD_ARGUMENT, "%s: expected a data URL in base64 (data:…;base64,…)", place);
    *out = (str){ comma + 1, text.length - head.length - 1 };
    return GM_OK;
}

gm_status chat_part_media(const chat_part *part, const char *place, gm_part *out, error *e) {
    const char *what = part->kind == CHAT_AUDIO ? "sound" : "picture";
    str         payload;
    size_t      size = 0;
    if (part->kind == CHAT_VIDEO) return fail(e, GM_UNSUPPORTED, "%s: video input is not supported", place);
    if (!part->source.length)
        return fail(e, GM_BAD_ARGUMENT, "%s: the %s has no data; expected base64, or a data URL", place, what);
    *out = (gm_part){ .kind = part->kind == CHAT_AUDIO ? GM_PART_AUDIO : GM_PART_IMAGE };
    TRY(media_detail(part->detail, place, &out->budget, e));
    TRY(media_payload(part->source, place, what, &payload, e));
    uint8_t *bytes = (uint8_t *)(uintptr_t)payload.data;
    if (!base64_decode(payload, bytes, &size))
        return fail(e, GM_BAD_ARGUMENT, "%s: the base64 of the %s is damaged at character %zu", place, what, size);
    out->data = bytes;
    out->size = size;
    return GM_OK;
}
