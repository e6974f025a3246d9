/* Sounds for the audio tower: what each token hears. */

#include "session/tower_parts.h"

#include "media/sound.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)MEL_BINS == (int)AUDIO_MEL_BINS, "the features are what the tower reads");

static gm_status audio_check(const gguf *file, uint32_t soft_width, error *e) {
    audio_weights shapes;
    TRY(audio_shapes(file, soft_width, &shapes, e));
    audio_free(&shapes);
    return GM_OK;
}

static gm_status audio_load_weights(engine_tower *t, const gguf *file, uint32_t soft_width, error *e) {
    return audio_load(file, soft_width, &t->audio, e);
}

static gm_status audio_make_graph(const engine_tower *t, const model_adapters *adapters, graph *out, tensor **leaf,
                                  error *e) {
    return audio_graph(&t->audio, adapters, out, leaf, e);
}

static uint64_t audio_bytes(const gguf *file, uint32_t soft_width) {
    audio_weights shapes;
    error         ignored = { 0 };
    if (audio_shapes(file, soft_width, &shapes, &ignored)) return 0;
    const uint64_t bytes = audio_run_bytes(&shapes.config);
    audio_free(&shapes);
    return bytes;
}

static void audio_free_weights(engine_tower *t) { audio_free(&t->audio); }

static void audio_mark(const engine_tower *t, const tower_item *item, token_record *records, int32_t *output_rows) {
    (void)t;
    for (size_t i = 0; i < item->tokens; i++) {
        records[i].position = (uint32_t)i;
        output_rows[i] = (int32_t)i;
    }
}

/* Token t reads the moments 2t − 1, 2t and 2t + 1 of the first convolution, and moment m the frames 2m − 1, 2m and 2m + 1. A moment is
 * valid if frame 2m is: the others are zeros, and so are frames that do not exist. A window of zeros stays 0 in the tower. */
static void fill_mel(const tower_item *item, size_t token, float *out) {
    const float *mel = item->data;
    for (size_t row = 0; row < 9; row++, out += MEL_BINS) {
        const size_t moment = 2 * token + row / 3, frame = 2 * moment + row % 3; /* plus 1, and plus 3 */
        const bool   valid = moment >= 1 && 2 * (moment - 1) < item->length && frame >= 3 && frame - 3 < item->length;
        if (valid) memcpy(out, mel + (frame - 3) * MEL_BINS, MEL_BINS * sizeof *out);
        else memset(out, 0, MEL_BINS * sizeof *out);
    }
}

static void fill_samples(const tower_item *item, size_t token, size_t frame, float *out) {
    const size_t first = token * frame, n = first < item->length ? min_size(frame, item->length - first) : 0;
    memcpy(out, (const float *)item->data + first, n * sizeof *out);
    memset(out + n, 0, (frame - n) * sizeof *out);
}

static void audio_fill(const engine_tower *t, const tower_item *item, size_t first, size_t count, float *out) {
    const audio_config *c = &t->audio.config;
    for (size_t i = 0; i < count; i++) {
        if (c->layers) fill_mel(item, first + i, out + i * 9 * MEL_BINS);
        else fill_samples(item, first + i, c->frame, out + i * c->frame);
    }
}

const tower_type tower_audio = {
    .name = "audio",
    .lacking = "hear sounds",
    .tensor = "mm.a.input_projection.weight",
    .part = PART_AUDIO,
    .fewest = 1,
    .check = audio_check,
    .load = audio_load_weights,
    .graph = audio_make_graph,
    .free_weights = audio_free_weights,
    .run_bytes = audio_bytes,
    .mark = audio_mark,
    .fill = audio_fill,
};

size_t tower_sound_tokens(const gguf *file, size_t samples) {
    const gguf_tensor *projection = gguf_find_tensor(file, tower_audio.tensor);
    if (!projection || !projection->ne[0]) return 0;
    if (gguf_find_tensor(file, "a.conv1d.0.weight")) return mel_tokens(mel_valid(samples));
    return (samples + projection->ne[0] - 1) / projection->ne[0];
}

/* ---- jobs ---- */

static gm_status add_frames(tower_job *job, const float *mel, size_t frames, error *e) {
    const size_t tokens = mel_tokens(frames);
    tower_item  *item = tower_job_add(job, mel, frames * MEL_BINS * sizeof *mel, tokens, tokens, e);
    if (!item) return e->status;
    item->length = frames;
    return GM_OK;
}

static gm_status add_features(tower_job *job, const tower_sound *s, error *e) {
    const size_t frames = mel_frames(s->count), valid = mel_valid(s->count);
    float       *mel = malloc(max_size(frames, 1) * MEL_BINS * sizeof *mel);
    if (!mel) return fail_memory(e, "the mel features", frames * MEL_BINS * sizeof *mel);
    gm_status status = mel_features(s->samples, s->count, mel, e);
    if (!status) status = add_frames(job, mel, min_size(valid, frames), e);
    free(mel);
    return status;
}

static gm_status add_samples(tower_job *job, const tower_sound *s, size_t frame, error *e) {
    const size_t tokens = (s->count + frame - 1) / frame;
    tower_item  *item = tower_job_add(job, s->samples, s->count * sizeof *s->samples, tokens, tokens, e);
    if (!item) return e->status;
    item->length = s->count;
    return GM_OK;
}

static gm_status add_sound(tower_job *job, const audio_config *c, const tower_sound *s, error *e) {
    if (s->mel) {
        if (!c->layers) return fail(e, GM_BAD_ARGUMENT, "the audio tower reads samples, not mel features");
        if (!s->frames || s->frames > mel_valid(SOUND_PIECE))
            return fail(e, GM_BAD_ARGUMENT, "the audio tower reads 1 to %zu mel frames, not %zu",
                        mel_valid(SOUND_PIECE), s->frames);
        return add_frames(job, s->mel, s->frames, e);
    }
    const size_t least = c->layers ? MEL_SHORTEST : 1;
    if (s->count < least || s->count > SOUND_PIECE)
        return fail(e, GM_BAD_ARGUMENT, "the audio tower takes %zu to %d samples at once, not %zu", least, SOUND_PIECE,
                    s->count);
    return c->layers ? add_features(job, s, e) : add_samples(job, s, c->frame, e);
}

gm_status tower_encode_sounds(gm_engine *engine, const tower_sound *sounds, size_t count, tower_job **out, error *e) {
    audio_weights shapes = { 0 };
    TRY(tower_job_new(engine, TOWER_AUDIO, count, out, e));
    gm_status status = audio_shapes(engine_tower_file(engine, TOWER_AUDIO), engine->weights.config.width, &shapes, e);
    for (size_t i = 0; i < count && !status; i++) status = add_sound(*out, &shapes.config, &sounds[i], e);
    audio_free(&shapes);
    if (!status) return GM_OK;
    tower_job_free(*out);
    *out = NULL;
    return status;
}
