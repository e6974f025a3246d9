/* Pictures and sounds of examples: their bytes, and how many tokens they become. The towers encode them when they are learned. */

#include "train/data_parts.h"

#include "media/picture.h"
#include "media/sound.h"
#include "session/media.h"

#include <stdio.h>
#include <string.h>

/* A data URL and base64 are what chat_part_media reads. Base64 has no dot; the name of a file has one. */
static bool media_is_path(str given) {
    return !str_starts_with(given, "data:") && given.length && memchr(given.data, '.', given.length);
}

static gm_status media_load_part(const data_reader *r, chat_part *part, const char *place, arena *a, gm_part *out,
                                 error *e) {
    if (str_starts_with(part->source, "http://") || str_starts_with(part->source, "https://"))
        return fail(e, GM_BAD_FILE, "%s: a remote file is not fetched; put it into the folder of the data", place);
    if (!media_is_path(part->source)) return chat_part_media(part, place, (str){ NULL, 0 }, a, out, e);
    buffer          bytes = { 0 };
    error           inner = { 0 };
    const chat_part detail = { .kind = part->kind, .detail = part->detail, .source = { "AAAA", 4 } };
    gm_status       status = chat_part_media(&detail, place, (str){ NULL, 0 }, a, out, e); /* for the budget */
    if (status) return status;
    status = data_reader_media(r, part->source, &bytes, &inner);
    char *copy = status ? NULL : arena_copy(a, buffer_view(&bytes));
    out->data = copy;
    out->size = bytes.length;
    buffer_free(&bytes);
    if (status) return fail(e, status, "%s: %s", place, inner.why);
    return copy ? GM_OK : fail_memory(e, place, out->size);
}

gm_status data_media_load(const data_reader *r, const data_options *o, chat *c, arena *a, error *e) {
    char place[80];
    for (size_t m = 0; m < c->count; m++) {
        for (size_t i = 0; i < c->messages[m].part_count; i++) {
            chat_part *part = &c->messages[m].parts[i];
            const bool heard = part->kind == CHAT_AUDIO;
            if (part->kind == CHAT_TEXT || part->media) continue;
            if (!o->model || !tower_file(o->model, o->projector, heard ? TOWER_AUDIO : TOWER_VISION))
                return fail(e, GM_UNSUPPORTED,
                            "the example has a %s, but the model has no %s tower; it may be in a second file, the "
                            "projector (mmproj)",
                            heard ? "sound" : "picture", heard ? "audio" : "vision");
            gm_part *media = arena_alloc(a, sizeof *media);
            if (!media) return fail_memory(e, "an example", sizeof *media);
            snprintf(place, sizeof place, "messages[%zu].content[%zu]", m, i);
            TRY(media_load_part(r, part, place, a, media, e));
            part->media = media;
        }
    }
    return GM_OK;
}

/* ---- tokens ---- */

typedef struct {
    const data_options *o;
    arena              *memory;
    token_list          ids;
    data_media         *items;
    size_t              count, capacity;
} media_expansion;

static gm_status expansion_add(media_expansion *x, data_media item, error *e) {
    if (x->count == x->capacity) {
        const size_t capacity = 2 * x->capacity + 4;
        data_media  *more = arena_array(x->memory, capacity, sizeof *more);
        if (!more) return fail_memory(e, "the pictures and sounds", capacity * sizeof *more);
        if (x->count) memcpy(more, x->items, x->count * sizeof *more);
        x->items = more;
        x->capacity = capacity;
    }
    item.at = x->ids.count + 1; /* after the token that begins it */
    x->items[x->count++] = item;
    return chat_media_tokens(x->o->words, item.kind, item.count, &x->ids, e);
}

static gm_status expansion_add_picture(media_expansion *x, const gm_part *part, error *e) {
    const uint32_t budget = part->budget ? part->budget : media_default_budget(x->o->model);
    uint32_t       width, height;
    if (!picture_measure(part->data, part->size, &width, &height)) {
        picture whole = { 0 };
        TRY(picture_decode(part->data, part->size, &whole, e));
        width = whole.width;
        height = whole.height;
        picture_free(&whole);
    }
    TRY(picture_fit(width, height, budget, &width, &height, e));
    const size_t tokens = (size_t)(width / PICTURE_SOFT_SIDE) * (height / PICTURE_SOFT_SIDE);
    return expansion_add(x, (data_media){ .kind = CHAT_IMAGE, .count = tokens, .part = *part }, e);
}

static gm_status expansion_add_sound(media_expansion *x, const gm_part *part, error *e) {
    const gguf *tower = tower_file(x->o->model, x->o->projector, TOWER_AUDIO);
    sound       whole = { 0 };
    TRY(sound_decode(part->data, part->size, &whole, e));
    gm_status status = GM_OK;
    if (whole.count < MEL_SHORTEST)
        status = fail(e, GM_BAD_FILE, "the sound is too short: it has %zu samples at 16 kHz, at least %d are needed",
                      whole.count, MEL_SHORTEST);
    for (size_t at = 0, n; at < whole.count && !status; at += n) {
        n = sound_piece(whole.samples + at, whole.count - at);
        const data_media item = {
            .kind = CHAT_AUDIO, .count = tower_sound_tokens(tower, n), .part = *part, .from = at, .to = at + n
        };
        status = expansion_add(x, item, e);
    }
    sound_free(&whole);
    return status;
}

gm_status data_media_expand(const data_options *o, const chat_piece *pieces, size_t count, arena *a, token_list *ids,
                            data_media **media, size_t *media_count, error *e) {
    media_expansion x = { .o = o, .memory = a };
    gm_status       status = GM_OK;
    size_t          next = 0;
    *media_count = 0;
    while (next < count && !pieces[next].media) next++;
    if (next == count) return GM_OK;
    for (size_t i = 0; i < ids->count && !status; i++) {
        const chat_part *part = next < count ? pieces[next].media : NULL;
        const bool       heard = part && part->kind == CHAT_AUDIO;
        if (!part || ids->ids[i] != tokenizer_special(o->words, heard ? SPECIAL_AUDIO_SOFT : SPECIAL_IMAGE_SOFT)) {
            token_list_add(&x.ids, ids->ids[i]);
            continue;
        }
        status = heard ? expansion_add_sound(&x, part->media, e) : expansion_add_picture(&x, part->media, e);
        do next++;
        while (next < count && !pieces[next].media);
    }
    token_list_free(ids);
    *ids = x.ids;
    *media = x.items;
    *media_count = x.count;
    return status;
}
