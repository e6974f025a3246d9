/* Expectations with a video: frames that were chosen, their times, soft tokens, and logits of a prompt with all of them. */

#include "cli/check.h"

#include "base/buffer.h"
#include "cli/input.h"
#include "media/picture.h"
#include "media/video.h"
#include "session/session.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

/* A file has the results of two models: those of one whose images are blocks begin with this. */
#define BLOCKS "bidir."

bool check_is_video(const check_state *c) { return gguf_find(c->expect, "video_text") != NULL; }

static const char *video_prefix(check_state *c) {
    error ignored = { 0 };
    return !check_need_engine(c, &ignored) && c->engine->weights.config.image_blocks ? BLOCKS : "";
}

bool check_video_is_input(check_state *c, str name) {
    static const char *const inputs[] = { "positions", "patch_rows", "logits_rows", "ids", BLOCKS "ids" };
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        if (str_is(name, inputs[i])) return true;
    }
    if (str_starts_with(name, "patches.")) return true;
    const bool results = str_ends_with(name, "soft_tokens") || str_ends_with(name, "logits");
    return results && str_starts_with(name, BLOCKS) != (*video_prefix(c) != 0); /* the other model's */
}

/* ---- the folder ---- */

typedef struct {
    uint32_t total, wanted;
    float    fps;
} video_facts;

static gm_status read_facts(const check_state *c, video_facts *out, error *e) {
    TRY(gguf_get_u32(c->expect, "total_frames", &out->total, NULL, e));
    TRY(gguf_get_u32(c->expect, "num_frames", &out->wanted, NULL, e));
    TRY(gguf_get_f32(c->expect, "fps", &out->fps, NULL, e));
    if (out->wanted && out->wanted <= out->total && out->total <= 100000 && out->fps > 0) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "%s: %u of %u frames at %g a second make no video", c->expect_path, out->wanted,
                out->total, (double)out->fps);
}

static int is_frame(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* Reads frame `index` of those in the folder, in the order of their numbers, in the size for the tower. */
static gm_status read_frame(const char *folder, const char *name, picture *out, error *e) {
    buffer  path = { 0 }, bytes = { 0 };
    picture raw = { 0 };
    buffer_printf(&path, "%s/%s", folder, name);
    buffer_char(&path, 0);
    gm_status status = path.failed ? fail_memory(e, "a path", path.length) : input_read(path.data, &bytes, e);
    if (!status) status = picture_decode(bytes.data, bytes.length, &raw, e);
    if (!status) status = picture_fitted(&raw, VIDEO_BUDGET, out, e);
    picture_free(&raw);
    buffer_free(&bytes);
    buffer_free(&path);
    return status;
}

static gm_status encode_frames(check_state *c, const video_facts *v, struct dirent **names, int count, error *e) {
    if ((uint32_t)count != v->total)
        return fail(e, GM_BAD_ARGUMENT, "%s has %d frames, but the expectation's video %u", c->video, count, v->total);
    picture       *frames = calloc(v->wanted, sizeof *frames);
    tower_picture *shown = calloc(v->wanted, sizeof *shown);
    gm_status      status = frames && shown ? GM_OK : fail_memory(e, "the frames", v->wanted * sizeof *frames);
    for (uint32_t i = 0; i < v->wanted && !status; i++) {
        status = read_frame(c->video, names[video_frame(i, v->wanted, v->total)]->d_name, &frames[i], e);
        shown[i] = (tower_picture){
            .width = frames[i].width, .height = frames[i].height, .pixels = frames[i].pixels, .frame = true
        };
    }
    if (!status) status = check_encode_pictures(c, shown, v->wanted, &c->image, e);
    for (uint32_t i = 0; frames && i < v->wanted; i++) picture_free(&frames[i]);
    free(frames);
    free(shown);
    return status;
}

/* Encodes the frames once. */
static gm_status need_frames(check_state *c, error *e) {
    struct dirent **names = NULL;
    video_facts     v;
    if (c->image.rows) return GM_OK;
    if (!c->video) return fail(e, GM_BAD_ARGUMENT, "name the folder with the video's frames with --video");
    TRY(check_need_engine(c, e));
    TRY(read_facts(c, &v, e));
    const int count = scandir(c->video, &names, is_frame, versionsort);
    if (count < 0) return fail(e, GM_BAD_ARGUMENT, "%s is not a folder that can be read", c->video);
    const gm_status status = encode_frames(c, &v, names, count, e);
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
    return status;
}

/* ---- lines ---- */

static gm_status check_frames(check_state *c, const gguf_tensor *want, bool times, check_result *result, error *e) {
    video_facts v;
    TRY(read_facts(c, &v, e));
    if (want->count != v.wanted || want->type != (times ? TYPE_F32 : TYPE_I32))
        return fail(e, GM_BAD_ARGUMENT, "the expectation is %s [%llu], expected %s [%u]", want->format->name,
                    (unsigned long long)want->count, times ? "F32" : "I32", v.wanted);
    const void *values = check_values_of(c->expect, want);
    for (uint32_t i = 0; i < v.wanted; i++) {
        const uint32_t frame = video_frame(i, v.wanted, v.total);
        const float    seconds = (float)frame / v.fps;
        if (times ? relative_error(&seconds, (const float *)values + i, 1) > 1e-6
                  : ((const int32_t *)values)[i] != (int32_t)frame)
            result->error = 1;
    }
    return GM_OK;
}

/* The text that stands for the video in a prompt: times and marks. */
static gm_status video_text(const check_state *c, buffer *out, error *e) {
    video_facts v;
    char        time[24];
    TRY(read_facts(c, &v, e));
    for (uint32_t i = 0; i < v.wanted; i++) {
        chat_video_time((double)video_frame(i, v.wanted, v.total) / v.fps, time);
        buffer_printf(out, "%s%s <|image><|video|><image|>", i ? " " : "", time);
    }
    return out->failed ? fail_memory(e, "the video's text", out->length) : GM_OK;
}

gm_status check_video_text(check_state *c, str want, check_result *result, error *e) {
    buffer          text = { 0 };
    const gm_status status = video_text(c, &text, e);
    if (!status) result->error = !(text.length == want.length && !memcmp(text.data, want.data, want.length));
    buffer_free(&text);
    return status;
}

static gm_status check_video_soft(check_state *c, const gguf_tensor *want, check_result *result, error *e) {
    TRY(need_frames(c, e));
    if (want->type != TYPE_F32 || want->count != c->image.count * c->image.width)
        return fail(e, GM_BAD_ARGUMENT, "the expectation has %llu values of soft tokens, but the tower made %zu",
                    (unsigned long long)want->count, c->image.count * c->image.width);
    result->error = relative_error(c->image.rows, check_values_of(c->expect, want), want->count);
    return GM_OK;
}

static gm_status check_video_count(check_state *c, const gguf_tensor *want, check_result *result, error *e) {
    video_facts v;
    TRY(read_facts(c, &v, e));
    TRY(need_frames(c, e));
    const int32_t *count = want->type == TYPE_I32 && want->count == 1 ? check_values_of(c->expect, want) : NULL;
    if (!count) return fail(e, GM_BAD_ARGUMENT, "the expectation is not one I32");
    result->error = (size_t)*count * v.wanted != c->image.count;
    return GM_OK;
}

/* Logits of the tokens in logits_rows. */
static gm_status check_video_logits(check_state *c, const gguf_tensor *want, check_result *result, error *e) {
    const int32_t *ids = NULL, *rows = NULL;
    size_t         count = 0, row_count = 0;
    gm_session    *session = NULL;
    TRY(need_frames(c, e));
    const uint32_t vocabulary = c->engine->weights.config.vocabulary;
    const int32_t  soft = tokenizer_special(c->engine->words, SPECIAL_VIDEO_SOFT);
    TRY(check_find_ids(c, *video_prefix(c) ? BLOCKS "ids" : "ids", vocabulary, &ids, &count, e));
    TRY(check_find_ids(c, "logits_rows", (uint32_t)count, &rows, &row_count, e));
    if (want->type != TYPE_F32 || want->count != row_count * vocabulary)
        return fail(e, GM_BAD_ARGUMENT, "the expectation has %llu logits, expected %zu rows of %u",
                    (unsigned long long)want->count, row_count, vocabulary);
    float    *logits = malloc(count * vocabulary * sizeof *logits);
    gm_status status = logits ? GM_OK : fail_memory(e, "the logits", count * vocabulary * sizeof *logits);
    if (!status) status = check_new_session(c, count, &session, e);
    if (!status) status = check_hold_prompt(session, ids, count, soft, &c->image, true, e);
    if (!status) status = session_logits_held(session, logits, e);
    for (size_t i = 0; i < row_count && !status; i++) /* in rising order, so nothing is overwritten too early */
        memmove(logits + i * vocabulary, logits + (size_t)rows[i] * vocabulary, vocabulary * sizeof *logits);
    if (!status) result->error = relative_error(logits, check_values_of(c->expect, want), want->count);
    check_end_session(session);
    free(logits);
    return status;
}

gm_status check_video(check_state *c, const gguf_tensor *want, check_result *result, error *e) {
    const str name = want->name;
    if (str_is(name, "indices")) return check_frames(c, want, false, result, e);
    if (str_is(name, "timestamps")) return check_frames(c, want, true, result, e);
    if (str_is(name, "soft_tokens_per_frame")) return check_video_count(c, want, result, e);
    if (str_ends_with(name, "soft_tokens")) return check_video_soft(c, want, result, e);
    if (str_ends_with(name, "logits")) return check_video_logits(c, want, result, e);
    return fail(e, GM_UNSUPPORTED, "unknown kind of expectation");
}
