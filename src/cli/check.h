/* `gemmule check`: compares an expectation file with what this engine computes. */

#ifndef GM_CHECK_H
#define GM_CHECK_H

#include "cli/engine_arguments.h"
#include "session/tower.h"
#include "text/tokenizer.h"

/* One line of the result. */
typedef struct {
    char   name[80];
    double error;        /* ‖got − want‖ / ‖want‖ */
    bool   exact;        /* must have an error of 0, whatever the tolerance */
    char   problem[420]; /* why it could not be computed, or "" */
} check_result;

/* Soft tokens that a tower made. */
typedef struct {
    float         *rows; /* [count, width]; NULL: not yet */
    size_t         count, width;
    const int32_t *some; /* only these are right, because only their patches are known; NULL: all are */
    size_t         some_count;
} media_rows;

typedef struct {
    const engine_values   *values;
    const char            *model_path, *engine_name, *expect_path;
    const gguf            *model, *expect;
    const char            *video;   /* of --video: a folder with its frames */
    const char            *picture; /* of --image; NULL: pictures come from the expectation's patches */
    const char            *sound;   /* of --audio; NULL: from the expectation's mel features */
    gm_engine             *engine;  /* opened on first use */
    error                  engine_problem;
    tokenizer             *words;
    error                  words_problem;
    media_rows             image, audio; /* encoded on first use */
    struct check_training *training;     /* the loss and the gradients, computed on first use */
    error                  training_problem;
    struct check_canvas   *canvas; /* the steps of a diffusion model, computed on first use */
    error                  canvas_problem;
} check_state;

/* Each sets result->error or fails. GM_UNSUPPORTED and GM_BAD_ARGUMENT fail this line; other statuses (no memory, no device,
 * Ctrl-C) end the check. `rest` is the N of "logits.N", or "" for "logits"; it is the number of
 * a prompt, or names the adapters that the logits were computed with. */
gm_status check_logits(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
/* The same with an image or audio clip in the prompt. `kind` is "image" or "audio". Soft tokens come from our tower if it can make
 * them all, otherwise from the expectation. */
gm_status check_soft_logits(check_state *c, const gguf_tensor *want, const char *kind, check_result *result, error *e);
gm_status check_soft_greedy(check_state *c, const gguf_tensor *want, const char *kind, check_result *result, error *e);
/* The soft tokens themselves, from the picture or the sound, or from the expectation's patches or mel features. */
gm_status check_image_soft(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
gm_status check_audio_soft(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
/* The mel features of the sound, or of the expectation's samples. */
gm_status check_audio_mel(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
gm_status check_greedy(check_state *c, const gguf_tensor *want, const char *number, check_result *result, error *e);
gm_status check_prompt(check_state *c, str text, const char *number, check_result *result, error *e);
gm_status check_blocks(check_state *c, const gguf_tensor *want, const char *type, check_result *result, error *e);

/* check_train.c: the adapter of the options is trained. */
gm_status check_loss(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
gm_status check_gradient(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
gm_status check_adamw_losses(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
void      check_end_training(check_state *c);

/* check_canvas.c: expectations of a diffusion model. */
bool      check_is_canvas(const check_state *c);
gm_status check_canvas_logits(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                              error *e);
gm_status check_entropy(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
gm_status check_accept(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
/* How many tokens each token of the prompt sees: "sliding" or "full". */
gm_status check_mask(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e);
void      check_end_canvas(check_state *c);

/* check_video.c: expectations of videos, which have other tensors. */
bool      check_is_video(const check_state *c);
bool      check_video_is_input(check_state *c, str name);
gm_status check_video(check_state *c, const gguf_tensor *want, check_result *result, error *e);
gm_status check_video_text(check_state *c, str want, check_result *result, error *e);

/* ---- what kinds share ---- */

gm_status check_need_engine(check_state *c, error *e);
/* Appends the soft tokens of all pictures to `out`. */
gm_status check_encode_pictures(check_state *c, const tower_picture *pictures, size_t count, media_rows *out, error *e);
/* The rows that take the place of a prompt's soft tokens: those of our tower, or the expectation's if it has no patches of all. */
gm_status check_find_soft(check_state *c, bool image, int32_t *id, media_rows *out, error *e);
/* Adds the prompt to the session; each run of soft tokens takes the next rows. */
gm_status check_hold_prompt(gm_session *s, const int32_t *ids, size_t count, int32_t soft_id, const media_rows *soft,
                            bool image, error *e);
/* The data of an F32 or I32 tensor, which the format aligns. */
const void *check_values_of(const gguf *file, const gguf_tensor *t);
/* The token ids in this tensor, checked against the vocabulary. */
gm_status check_find_ids(check_state *c, const char *name, uint32_t vocabulary, const int32_t **ids, size_t *count,
                         error *e);
/* An expectation has the logits of all tokens of the prompt, or of its last ones. */
gm_status check_logits_shape(const gguf_tensor *want, uint32_t vocabulary, size_t count, error *e);
/* How far the last rows of `got`, which has one row per token, are from the expectation. */
double    check_logits_error(check_state *c, const gguf_tensor *want, const float *got, size_t count);
gm_status check_new_session(check_state *c, size_t tokens, gm_session **out, error *e);
void      check_end_session(gm_session *session);
/* Continues greedily after what the session holds, and compares with the expected tokens. */
gm_status check_continuation(check_state *c, gm_session *session, const gguf_tensor *want, check_result *result,
                             error *e);

/* ‖got − want‖ / ‖want‖ in double; infinite if one of a pair is NaN. */
double relative_error(const float *got, const float *want, uint64_t count);

#endif
