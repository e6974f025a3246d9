/* gemmule.h: run Gemma 4 from a GGUF file.
 *
 * An engine holds a model's weights on one device; a session is one conversation on an engine: the tokens seen so far,
 * their keys and values, and the logits of the last one. A reply is one answer being written into a session.
 *
 *     char why[256];
 *     gm_engine *engine;
 *     gm_session *session;
 *     gm_reply *reply;
 *     gm_message hello = { .role = "user", .content = "Hello!" };
 *     gm_piece piece;
 *
 *     if (gm_engine_open(&(gm_engine_options){ .model = "gemma4:e2b" }, &engine, why, sizeof why)) ...
 *     if (gm_session_new(engine, NULL, &session, why, sizeof why)) ...
 *     if (gm_reply_start(session, &hello, 1, NULL, &reply, why, sizeof why)) ...
 *     for (;;) {
 *         gm_status status = gm_reply_next(reply, &piece, why, sizeof why);
 *         if (status == GM_AGAIN) continue;
 *         if (status != GM_OK) break;                  // GM_DONE, or an error explained in `why`
 *         if (piece.kind == GM_PIECE_CONTENT) fwrite(piece.text, 1, piece.length, stdout);
 *     }
 *     gm_reply_free(reply);
 *     gm_session_free(session);
 *     gm_engine_close(engine);
 *
 * Functions that can fail return a gm_status and explain in `why`, in a sentence that a user can act on; `why` may be NULL.
 * Strings are UTF-8 and end with a NUL unless a length stands beside them. A field that is 0 or NULL means the default. The
 * library prints nothing, keeps no global state and never leaves the machine.
 *
 * Threads. The sessions of one engine may be used from several threads. A session and its replies are used by one thread at
 * a time; only gm_session_cancel may be called from any thread meanwhile. The text functions and gm_engine_get_info may be
 * called from any thread at any time. An engine works on one call at a time: a call waits for its turn, and a turn lasts as
 * long as a call (below). Turns are taken in the order in which they were asked for, but the next token of an answer comes
 * before prompts that wait. Answers of several sessions are written together: a call that computes the next token of one
 * computes those of the others, too. So poll them in turn, or from a thread each. Results do not depend on what other
 * sessions and threads do; on a GPU, answers that are written together may differ from those alone by rounding.
 * gm_engine_close comes after everything else.
 *
 * Time. gm_session_set, gm_session_append, gm_session_sample and gm_reply_next return GM_AGAIN after about 50 ms of work and
 * are repeated with the same arguments. A turn takes longer where something cannot be divided:
 *   - on a GPU, the first batch of each size makes a plan;
 *   - on a GPU, the first session with another K/V type than the default checks its kernels, which fails with GM_NO_DEVICE if
 *     the GPU computes them wrongly;
 *   - when a model computes NaN, all of its weights are read once to name the one that is broken;
 *   - on a slow processor, one matrix product of a large batch of text, and the head of a diffusion model;
 *   - gm_reply_start decodes pictures and sounds; it waits for ffmpeg, if that decodes a sound, until gm_session_cancel. Meanwhile
 *     other threads have their turns.
 * gm_engine_open, gm_session_new, gm_session_fork and the functions that save and restore return when they are done. Saving
 * and restoring give other threads their turns about every 50 ms. */

#ifndef GEMMULE_H
#define GEMMULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GM_API __attribute__((visibility("default")))
#else
#define GM_API
#endif

#define GM_VERSION "0.1.0"

/* Numbers are part of the ABI: new ones are added at the end, none is reused. */
typedef enum {
    GM_OK = 0,
    GM_AGAIN = 1,        /* more work to do: repeat the call with the same arguments */
    GM_DONE = 2,         /* end of turn, stop string, or the token limit */
    GM_BAD_FILE = 10,    /* the model file contradicts itself or is cut off */
    GM_UNSUPPORTED = 11, /* well-formed, but this build cannot run it */
    GM_BAD_ARGUMENT = 12,
    GM_NOT_FOUND = 13,
    GM_IO = 14,
    GM_NO_MEMORY = 20,
    GM_DEVICE_LOST = 21,  /* reopen the engine; sessions can be restored from their snapshots */
    GM_CONTEXT_FULL = 22, /* the session holds as many tokens as it can */
    GM_NO_DEVICE = 23,
    GM_CANCELLED = 30,
    GM_BUSY = 31,
} gm_status;

/* "GM_BAD_FILE" and so on; "unknown status" for any other number. */
GM_API const char *gm_status_name(gm_status status);

typedef struct gm_engine  gm_engine;
typedef struct gm_session gm_session;
typedef struct gm_reply   gm_reply;

/* ---- engine -------------------------------------------------------------------------------------------------------- */

/* AUTO takes a hardware GPU if there is one, it passes its self-check, and the model fits; else the CPU. For a model below
 * 128 MiB it takes the CPU, which answers before a GPU would be ready. If `cpu` or `gpu`
 * below names a device, AUTO takes that one. CPU and GPU take nothing else: with GPU a software GPU counts too, and opening
 * fails where there is none. */
typedef enum { GM_BACKEND_AUTO = 0, GM_BACKEND_CPU = 1, GM_BACKEND_GPU = 2 } gm_backend;

/* How far opening a model is: bytes of weights that are read or on the GPU, then shaders that the GPU's driver has compiled. */
typedef struct {
    enum { GM_OPENING_WEIGHTS = 0, GM_OPENING_SHADERS = 1 } phase;
    uint64_t done, total;
} gm_opening;

typedef struct {
    const char *model; /* a path, an Ollama name such as "gemma4:e2b", or "box" */
    const void *data;  /* or the bytes of a GGUF file, which must outlive the engine */
    size_t      data_size;
    const char *
        mmproj; /* a second file with the model's towers, as llama.cpp has them; NULL: none, or they are in the model's file */
    gm_backend backend;
    uint32_t   threads; /* CPU threads; 0: the physical cores */
    /* f32 activations, keys, values and sums: slower, exact against the reference. A diffusion model then computes the same bits on every
     * backend, so that a seed gives the same text (unless `cpu` names an instruction set). */
    bool        precise;
    const char *cpu;         /* instruction set: "scalar", "avx2", "avx512", "neon"; NULL: the best available */
    uint32_t    gpu;         /* 1 + its number in `gemmule devices`; 0: the fastest */
    const char *gpu_disable; /* GPU features not to use, such as "subgroups,dot4,f16" */
    uint64_t    gpu_memory;  /* bytes of GPU memory to use; the rest stays in main memory; 0: no limit */
    /* Experts of each layer that the GPU holds at once; they are uploaded when they are used. 0: all from the beginning, or as many as fit
     * gpu_memory. */
    uint32_t gpu_experts;
    /* A folder, made if it is not there: if the GPU holds some of the experts, closing the engine leaves a small file in it about which are
     * used most, and opening the model again begins with those. NULL: nothing is stored. */
    const char *cache;
    /* Called by gm_engine_open about every 50 ms, in its own thread; false: it gives up, and returns GM_CANCELLED. */
    bool (*opening)(void *user, const gm_opening *now);
    void *opening_user;
} gm_engine_options;

typedef struct {
    const char *name;                               /* general.name of the file, or "" */
    const char *architecture;                       /* "gemma4" or "diffusion-gemma" */
    const char *device;                             /* "cpu (avx512, 2 threads)" */
    uint32_t    layers, width, vocabulary, context; /* context: the longest that the model was made for */
    uint64_t    parameters;
    uint64_t    file_bytes;
    uint64_t    bytes_per_token; /* weight bytes read to decode one token */
    const char *note;            /* what does not fit into GPU memory, and what that costs; "" if everything fits */
    const char *why_device;      /* why GM_BACKEND_AUTO took this device; "" if the backend was named */
    uint32_t    experts,
        gpu_experts; /* of a layer, and how many of them the GPU holds at once; 0: no model of experts, or no GPU */
    /* Unless all are there from the beginning: since opening, uses of experts by tokens, how many of these were not on the GPU, tokens
     * computed, and bytes of experts read and uploaded. The hit rate is 1 − misses / uses. */
    uint64_t expert_uses, expert_misses, expert_tokens, expert_bytes;
} gm_engine_info;

GM_API gm_status gm_engine_open(const gm_engine_options *options, gm_engine **out, char *why, size_t why_size);
/* After its sessions. NULL is fine here, as with every function that frees. */
GM_API void gm_engine_close(gm_engine *engine);
GM_API void gm_engine_get_info(const gm_engine *engine, gm_engine_info *out);

/* Frees the weights of the vision and audio towers, which are loaded when a message first has a picture or a sound; the next one
 * loads them again. Returns whether there were any that nothing uses. */
GM_API bool gm_engine_release_towers(gm_engine *engine);

/* ---- text ---------------------------------------------------------------------------------------------------------- */

/* Writes at most `capacity` ids and sets `*count` to the number of ids that the text has; capacity 0 only counts. Special
 * tokens such as <|turn> are recognised only if `parse_special` is set: leave it off for text that you did not write. Adds no
 * BOS. */
GM_API gm_status gm_tokenize(const gm_engine *engine, const char *text, size_t length, bool parse_special, int32_t *ids,
                             size_t capacity, size_t *count, char *why, size_t why_size);

/* The bytes of one token, with spaces as spaces and special tokens by name; valid while the engine lives. A byte token is one
 * byte, which need not be UTF-8 by itself. */
GM_API gm_status gm_token_text(const gm_engine *engine, int32_t id, const char **text, size_t *length);

/* ---- session ------------------------------------------------------------------------------------------------------- */

typedef enum { GM_KV_DEFAULT = 0, GM_KV_F16 = 1, GM_KV_F32 = 2, GM_KV_Q8_0 = 3 } gm_kv_type;

typedef struct {
    uint32_t   context; /* in tokens; 0: Ollama's num_ctx, else the model's, at most 8192. Memory grows with use */
    gm_kv_type kv;      /* default: f16, or f32 on a precise engine */
} gm_session_options;

GM_API gm_status gm_session_new(gm_engine *engine, const gm_session_options *options, gm_session **out, char *why,
                                size_t why_size);
/* The engine keeps what the session computed, as long as there is room, for sessions that begin with the same tokens. */
GM_API void gm_session_free(gm_session *session);

/* The most tokens that the session can hold. */
GM_API size_t gm_session_context(const gm_session *session);

/* The tokens that the session holds; valid until the next call on the session. */
GM_API size_t gm_session_tokens(const gm_session *session, const int32_t **tokens);

/* Makes the session hold exactly these tokens: rolls back to the longest common prefix and computes what is missing; the
 * last token is always computed, so that its logits are there. First tokens that another session of the engine has computed are
 * not computed again. GM_AGAIN until done: repeat the call with the same tokens.
 *
 * Tokens alone do not say which picture or sound they stand for. Those that the session holds keep theirs; the tokens of one that it
 * does not hold are refused with GM_BAD_ARGUMENT, here and by gm_session_append; a single one is text. So a conversation with media is
 * brought to another session, or to an engine that was reopened after GM_DEVICE_LOST, by gm_reply_start with its messages or by a snapshot.
 *
 * Other tokens, and other calls on the session, are refused with GM_BUSY until then, or until gm_session_cancel. After an
 * error or a cancel the session holds what was computed so far and can go on. */
GM_API gm_status gm_session_set(gm_session *session, const int32_t *tokens, size_t n, char *why, size_t why_size);

/* Adds tokens behind those held and computes them. GM_AGAIN until done, as above. */
GM_API gm_status gm_session_append(gm_session *session, const int32_t *tokens, size_t n, char *why, size_t why_size);

/* The logits of the last token held, after the soft cap: [vocabulary]. NULL if there are none: there are after a set or an
 * append, but not always after a reply. */
GM_API const float *gm_session_logits(const gm_session *session);

/* Keeps the first `keep` tokens and forgets the others. The next set or append computes again what the sliding windows no
 * longer hold: `*recompute` (may be NULL) says how many tokens that is. */
GM_API gm_status gm_session_rollback(gm_session *session, size_t keep, size_t *recompute, char *why, size_t why_size);

/* Makes a second session with the same tokens, which is then independent of the first. */
GM_API gm_status gm_session_fork(gm_session *session, gm_session **out, char *why, size_t why_size);

/* Snapshots: everything that the session holds, with a hash that ties it to this model and K/V type, and a digest over all of
 * it. Free the buffer with gm_free. Restoring replaces what the session held; a snapshot that is damaged or does not fit is
 * refused and changes nothing. A file is written beside the target and then renamed: a failure leaves the old file, and if
 * several sessions save to one path at once, one of them is there as a whole. The new file keeps the mode of the one that it
 * replaces; otherwise it is private (0600). */
GM_API gm_status gm_session_save(gm_session *session, const char *path, char *why, size_t why_size);
GM_API gm_status gm_session_restore(gm_session *session, const char *path, char *why, size_t why_size);
GM_API gm_status gm_session_save_buffer(gm_session *session, void **data, size_t *size, char *why, size_t why_size);
GM_API gm_status gm_session_restore_buffer(gm_session *session, const void *data, size_t size, char *why,
                                           size_t why_size);
GM_API void      gm_free(void *data);

/* Makes the running call return GM_CANCELLED soon. Also ends a set or an append that returned GM_AGAIN: if it is repeated, it
 * returns GM_CANCELLED. If there is neither, cancels the next call that computes; but a cancel that a reply has not noticed is
 * forgotten when that reply is stopped or freed. May be called from any thread, and from a signal handler. */
GM_API void gm_session_cancel(gm_session *session);

/* ---- adapters ------------------------------------------------------------------------------------------------------ */

/* Adapters (LoRA) correct a model's weights. An engine holds several; a session uses any of them, alone or together, each with a
 * scale. Changing them loads nothing: the tokens that the session holds are computed again. If the change matters to a tower, the session
 * keeps only the tokens before its first picture or sound. */
typedef struct gm_adapter gm_adapter;

/* Reads a PEFT folder (adapter_config.json and adapter_model.safetensors) or a GGUF file. If it is damaged, was made for another model, or
 * does not fit into the GPU's memory, the error says so, and the engine goes on without it. Only what it corrects in a tower takes memory
 * later, with the first picture or sound: if there is none, that reply fails, and says so. */
GM_API gm_status gm_adapter_load(gm_engine *engine, const char *path, gm_adapter **out, char *why, size_t why_size);
/* The same from memory, which may be freed afterwards: a safetensors file and its adapter_config.json, or a GGUF file without a config. */
GM_API gm_status gm_adapter_load_data(gm_engine *engine, const char *name, const void *weights, size_t weights_size,
                                      const void *config, size_t config_size, gm_adapter **out, char *why,
                                      size_t why_size);
/* The name of its folder or file; valid while it lives. */
GM_API const char *gm_adapter_name(const gm_adapter *adapter);
/* Before the engine is closed. Sessions that use the adapter keep it until they change theirs or are freed. */
GM_API void gm_adapter_free(gm_adapter *adapter);

/* Makes the session use these adapters, besides those that are part of an Ollama model, from its first token on. `scales` NULL: 1
 * each. Count 0: none. */
GM_API gm_status gm_session_adapters(gm_session *session, gm_adapter *const *adapters, const float *scales,
                                     size_t count, char *why, size_t why_size);

/* ---- training ------------------------------------------------------------------------------------------------------ */

/* Training makes an adapter from examples (docs/DATA.md says how they are written). It is a loop of the caller's:
 *
 *     gm_training *training;
 *     gm_training_event event;
 *     if (gm_training_new(engine, &(gm_training_options){ .path = "chats.jsonl" }, &training, why, sizeof why)) ...
 *     for (;;) {
 *         gm_status status = gm_training_next(training, &event, why, sizeof why);
 *         if (status == GM_AGAIN) continue;
 *         if (status != GM_OK) break;                  // GM_DONE, or an error explained in `why`
 *         if (event.kind == GM_TRAINING_STEP) printf("%llu: %f\n", (unsigned long long)event.step, event.loss);
 *     }
 *     gm_training_save_adapter(training, "adapter", why, sizeof why);
 *     gm_training_free(training);
 *
 * A step computes the gradients of batch · accumulate examples and changes the adapter once. From time to time, and at the end, the
 * training keeps its state in memory. What can be saved is always the state that was kept last: the adapter, and a checkpoint, with
 * which a training goes on exactly as if it had never stopped. Not calling gm_training_next is a pause. Sessions of the engine can be
 * used meanwhile; they do not see the adapter until it is loaded. */
typedef struct gm_training gm_training;

typedef struct {
    /* The examples: a file, or its bytes, which must outlive the training, with its name. */
    const char *path;
    const void *data;
    size_t      data_size;
    const char *data_name;
    /* For bytes: reads a picture or sound that an example names. *bytes comes from malloc, and the training frees it. NULL: there is none. */
    gm_status (*media)(void *user, const char *path, void **bytes, size_t *size);
    void       *media_user;
    size_t      max_tokens; /* longer examples are cut off; 0: 2048 */
    double      eval_split; /* the share of the examples that is kept for evaluation; 0: none */
    const char *name;       /* of the adapter; NULL: "adapter" */
    uint32_t    rank;       /* 0: 16 */
    double      alpha;      /* 0: twice the rank */
    bool        rslora;     /* scale by alpha / √rank instead of alpha / rank */
    const char *targets;    /* NULL: "q,k,v,o,gate,up,down"; "experts", "head" and others: docs/TRAINING.md */
    const char *layers;     /* "0-5,9"; NULL: all */
    const char *loss;       /* "completions" or, for preference pairs, "dpo"; NULL: what the examples are for */
    double      beta;       /* of dpo; 0: 0.1 */
    uint32_t    epochs;     /* 0: 3 */
    uint64_t    max_steps;  /* 0: any */
    uint32_t
        batch; /* examples that are computed together; 0: 8. Few at a time if they are long, so that memory suffices */
    uint32_t    accumulate; /* batches per step; 0: 1 */
    double      rate;       /* the highest learning rate; 0: 2e-4 */
    const char *schedule;   /* "constant", "linear", "cosine"; NULL: "cosine" */
    double      warmup;     /* steps, or below 1 the share of all; 0: 0.05; negative: none */
    double      decay;      /* of the weights, decoupled */
    double      clip;       /* the most norm of all gradients; 0: 1; negative: any */
    double      dropout;    /* of what the adapter sees; below 1 */
    double      lora_plus;  /* how much faster B learns than A; 0: 1 */
    uint32_t    eval_every; /* steps; 0: each epoch */
    uint32_t
        patience; /* evaluations without a better one, after which training ends and the best adapter is kept; 0: any */
    uint32_t    keep_every; /* steps; 0: 50 */
    uint64_t    seed;       /* of everything that is drawn */
    uint64_t    memory;     /* the most bytes for activations; 0: most of what the device has free */
    const void *checkpoint; /* go on from this one, with the same model, examples and settings */
    size_t      checkpoint_size;
} gm_training_options;

typedef enum {
    GM_TRAINING_DATA = 0,  /* the examples are read: gm_training_get_data */
    GM_TRAINING_START = 1, /* the device was measured, and nothing is learned yet: seconds_left and memory are known */
    GM_TRAINING_STEP = 2,
    GM_TRAINING_EVALUATION = 3,
    GM_TRAINING_KEPT = 4, /* the state after `step` can be saved */
} gm_training_kind;

typedef enum {
    GM_TRAINING_RUNS = 0,
    GM_TRAINING_COMPLETE = 1,   /* all epochs, or max_steps */
    GM_TRAINING_PATIENCE = 2,   /* evaluations did not get better */
    GM_TRAINING_STOPPED = 3,    /* by gm_training_stop */
    GM_TRAINING_NOT_FINITE = 4, /* a loss or gradient is no finite number; gm_training_next says so as an error */
} gm_training_end;

/* How far the training is. With GM_AGAIN all but `kind` is true, too. */
typedef struct {
    gm_training_kind kind;
    gm_training_end  end;
    uint64_t         step, steps; /* done, and in all */
    uint32_t         epoch;       /* from 0 on */
    uint32_t         epochs;
    double
        loss; /* of the step, before it changed the adapter: the mean over its tokens that count, or over its pairs */
    double   eval_loss; /* the latest; NAN: there is none. perplexity: e^eval_loss, not of dpo */
    double   perplexity;
    double   best_eval_loss;
    double   accuracy; /* of dpo: the share of pairs of which the better is preferred; NAN: not known */
    double   rate;     /* learning rate */
    double   norm;     /* of all gradients, before they were clipped */
    double   tokens_per_second, seconds, seconds_left; /* left: NAN until it is known */
    uint64_t tokens;                                   /* learned from, since gm_training_new */
    uint64_t memory;                                   /* bytes that the training takes */
    uint64_t kept_step;                                /* of the state that can be saved */
    uint64_t done, total;                              /* while the examples are read: bytes */
} gm_training_event;

/* What is in the examples; strings live as long as the training. */
typedef struct {
    const char *form;                          /* "JSONL with messages" */
    uint64_t    records, examples, evaluation; /* evaluation: of the examples, those that are kept for it */
    uint64_t    tokens, counted;               /* counted: those whose prediction is learned */
    uint64_t    shortest, longest, truncated, left_out, duplicates, media;
    uint64_t    histogram[14]; /* examples of up to 32, 64, 128 … tokens; the last one: more */
} gm_training_data;

GM_API gm_status gm_training_new(gm_engine *engine, const gm_training_options *options, gm_training **out, char *why,
                                 size_t why_size);
/* GM_OK with an event, GM_AGAIN after about 50 ms, GM_DONE at the end, or an error. After an error the state that was kept last can still
 * be saved. */
GM_API gm_status gm_training_next(gm_training *training, gm_training_event *event, char *why, size_t why_size);
/* Ends the training soon, and keeps the state after the last step: call gm_training_next until GM_DONE. From any thread, and from a signal
 * handler. */
GM_API void gm_training_stop(gm_training *training);
GM_API void gm_training_free(gm_training *training); /* before the engine is closed */

/* From GM_TRAINING_DATA on. */
GM_API gm_status gm_training_get_data(const gm_training *training, gm_training_data *out, char *why, size_t why_size);
/* Bad lines, "line 7: …", from 0 on; NULL: no more. */
GM_API const char *gm_training_problem(const gm_training *training, size_t index);
/* An example as the model sees it, with what counts between `on` and `off`; of a pair both answers. GM_NOT_FOUND: there are fewer. Free the
 * text with gm_free. */
GM_API gm_status gm_training_preview(gm_training *training, size_t index, const char *on, const char *off, char **text,
                                     char *why, size_t why_size);
/* The losses so far, also those before a checkpoint: of step 1, 2, …, and the evaluations, each with the step after which it was. They
 * live until the next call. Returns how many there are. */
GM_API size_t gm_training_losses(const gm_training *training, const float **losses);
GM_API size_t gm_training_evaluations(const gm_training *training, const float **losses, const uint64_t **steps);

/* The state that was kept last. GM_NOT_FOUND: none was. A checkpoint file is written beside the target and then renamed. Free buffers
 * with gm_free. */
GM_API gm_status gm_training_save(const gm_training *training, const char *path, char *why, size_t why_size);
GM_API gm_status gm_training_save_buffer(const gm_training *training, void **data, size_t *size, char *why,
                                         size_t why_size);
/* The adapter of that state, or with patience the best one: a GGUF file if the path ends with ".gguf", else a PEFT folder. */
GM_API gm_status gm_training_save_adapter(const gm_training *training, const char *path, char *why, size_t why_size);
/* A GGUF file, or with `config` not NULL the two files of a PEFT folder. */
GM_API gm_status gm_training_adapter_buffer(const gm_training *training, void **weights, size_t *weights_size,
                                            void **config, size_t *config_size, char *why, size_t why_size);

/* ---- sampling ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int32_t token;
    float   bias;
} gm_logit_bias;

/* Start from gm_sampling_default: the file's or Ollama's parameters (Gemma 4: temperature 1, top_k 64, top_p 0.95). */
typedef struct {
    float                temperature;                         /* 0: greedy */
    int32_t              top_k;                               /* 0: all */
    float                top_p, min_p;                        /* 1 and 0: off */
    float                typical_p;                           /* 1: off */
    float                repetition_penalty;                  /* 1: off; over the last `penalty_window` tokens */
    float                presence_penalty, frequency_penalty; /* 0: off */
    uint32_t             penalty_window;                      /* 0: off */
    uint64_t             seed;                                /* same seed and logits: same token on every backend */
    const gm_logit_bias *bias;
    size_t               bias_count;
    const uint32_t      *mask; /* only tokens with a 1 in bit id % 32 of word id / 32 are drawn; NULL: all */
} gm_sampling;

GM_API void gm_sampling_default(const gm_engine *engine, gm_sampling *out);

/* A log-probability depends slightly on what the session already holds. One token and a batch of tokens run different kernels,
 * which add in a different order, so a prompt that is partly cached gives other low bits than one computed as a whole. With
 * the model in the box, repeated requests differed by up to 0.002. The same tokens in the same batches give the same bits. */
typedef struct {
    int32_t token;
    float   logprob; /* natural, of the model's own distribution: before penalties, temperature and cuts */
} gm_token_logprob;

/* Draws the next token, but does not append it. `top` (may be NULL) receives the `top_count` likeliest tokens. If the logits are
 * missing (after a rollback or a reply), computes them first: GM_AGAIN until done. */
GM_API gm_status gm_session_sample(gm_session *session, const gm_sampling *sampling, gm_token_logprob *chosen,
                                   gm_token_logprob *top, size_t top_count, char *why, size_t why_size);

/* ---- replies ------------------------------------------------------------------------------------------------------- */

typedef enum { GM_PART_TEXT = 0, GM_PART_IMAGE = 1, GM_PART_AUDIO = 2, GM_PART_VIDEO = 3 } gm_part_kind;

/* A frame of a video: the bytes of a picture's file, or raw pixels. */
typedef struct {
    double      time; /* in seconds from the start of the video */
    const void *data;
    size_t      size;          /* in bytes */
    uint32_t    width, height; /* raw pixels: 3 bytes each, red, green and blue; 0: the data is a file */
} gm_frame;

/* A part of a message: text, a picture, a sound or a video. Media are the bytes of a file, recognised by their content (PNG, GIF, JPEG or
 * WebP; WAV, …), or raw. Everything is read before gm_reply_start returns.
 *
 * The model sees every frame of a video part and reads its time in minutes and seconds, so choose few: Gemma 4 was trained with 32 frames
 * of up to 70 tokens each, taken at equal distances. Frames are in the order of their times and have one size; there are at most 512. */
typedef struct {
    gm_part_kind kind;
    const char  *text;          /* of a text part */
    const void  *data;          /* of a picture or a sound */
    size_t       size;          /* its bytes */
    uint32_t     width, height; /* raw pixels: 3 bytes each, red, green and blue; 0: the data is a file */
    uint32_t     rate;          /* raw samples, per second: f32, mono; 0: the data is a file */
    /* The most tokens of a picture or of a frame: 70, 140, 280, 560 or 1120. 0: 70 for a frame; for a picture 280, or what the model's
     * file says. */
    uint32_t        budget;
    const gm_frame *frames; /* of a video */
    size_t          frame_count;
} gm_part;

typedef struct {
    const char    *role;         /* "system", "user", "assistant", "tool" */
    const char    *content;      /* NULL in a leading system message: no system prompt, not even Ollama's */
    const char    *thinking;     /* assistant: kept only inside a running tool loop */
    const char    *tool_calls;   /* assistant: JSON, [{"id": …, "function": {"name": …, "arguments": {…}}}] */
    const char    *tool_name;    /* tool */
    const char    *tool_call_id; /* tool */
    const gm_part *parts;        /* instead of `content`: text and media, in order; no media in system messages */
    size_t         part_count;
} gm_message;

typedef struct {
    const gm_sampling *sampling; /* NULL: the default */
    const char        *tools;    /* JSON, [{"type": "function", "function": {"name": …, "parameters": {…}}}] */
    bool               think;
    uint32_t           max_tokens; /* 0: Ollama's num_predict, or as many as fit */
    const char *const *stop;       /* these end the answer and are not part of it; NULL: those of the Ollama model */
    size_t             stop_count;
    uint32_t           logprobs; /* alternatives per token, with every piece; at most 20 */
    bool               want_logprobs;
    /* The tokens that a session held when this same reply broke off, for example because the GPU was lost. What follows
     * the prompt is taken as the beginning of the answer, and its text comes again. */
    const int32_t *resume;
    size_t         resume_count;
    /* Diffusion models: how the canvas of the answer begins, as text with holes; NULL: as noise. Text stays as it is, [[12]] is a hole of 12
     * tokens, [[=text]] is text to start from, which the model may change, and [[[[]] stands for [[. In text to start from, \] stands for
     * ] and \\ for \. Behind all this the model writes on. Blocks are denoised one after another: a hole sees the pinned text of its
     * own block, but not that of later ones. Other models refuse it. (Of the sampling, a diffusion model uses temperature and seed. top_k,
     * top_p, min_p, typical_p and the penalties have no effect; a bias, a mask and log-probabilities are refused.) */
    const char *canvas;
    bool        want_canvas; /* a piece for every step */
    uint32_t    steps;       /* the most for a block; 0: as many as the model's file says */
} gm_reply_options;

typedef enum {
    GM_PIECE_CONTENT = 0,
    GM_PIECE_THINKING = 1,
    GM_PIECE_TOOL_CALL = 2,
    GM_PIECE_PROGRESS = 3,
    GM_PIECE_CANVAS = 4 /* diffusion models, if they are wanted: the canvas after a step */
} gm_piece_kind;

/* A diffusion model writes blocks of tokens. It denoises each in steps; the likeliest tokens after the last step are the block. */
typedef struct {
    size_t         block, step, most_steps; /* the block from 0 on, the step from 1 on; it may end before most_steps */
    size_t         count;                   /* tokens of the canvas */
    const int32_t *ids;                     /* the likeliest tokens */
    const float   *entropies;               /* of each position, in nats */
    const bool    *accepted;                /* the model keeps this position, for now */
    const bool    *pinned;                  /* given, and never changed */
    float          mean_entropy;            /* of those that are not pinned */
    bool           last;                    /* of its block */
} gm_canvas;

/* A piece of the answer; valid until the next call on the reply. */
typedef struct {
    gm_piece_kind kind;
    const char   *text; /* content or thinking: whole UTF-8 characters; tool call: JSON {"name": …, "arguments": {…}} */
    size_t        length;
    size_t        prompt_done, prompt_total; /* progress, while the prompt is computed */
    const gm_token_logprob *logprobs;        /* for each token of the piece: the chosen one, then the alternatives */
    size_t                  logprob_tokens;  /* rows of 1 + options.logprobs */
    size_t media_done, media_total; /* progress, before the prompt: pictures, frames and sounds that are encoded */
    const gm_canvas *canvas;        /* of a canvas; its text is that of the likeliest tokens */
} gm_piece;

typedef enum {
    GM_FINISH_NONE = 0,
    GM_FINISH_STOP = 1,
    GM_FINISH_LENGTH = 2,
    GM_FINISH_TOOL_CALLS = 3,
    GM_FINISH_CANCELLED = 4
} gm_finish;

typedef struct {
    gm_finish finish;
    size_t prompt_tokens, cached_tokens, reply_tokens; /* cached: of the prompt, those that the session already held */
    double prompt_seconds, reply_seconds;
    size_t media, media_encoded; /* pictures, frames and sounds of the prompt; those that a tower had to encode */
    double media_seconds;        /* of prompt_seconds: what the towers took */
    size_t blocks, steps;        /* of a diffusion model's answer */
} gm_reply_stats;

/* Renders the conversation in Gemma 4's format and prepares to answer it. gm_reply_next sets the session to it, reusing what the
 * session holds already. The messages are copied. Special tokens in their content are plain text.
 *
 * Pictures, frames and sounds are decoded here, which takes longer than other calls (0.4 s for a picture of 12 million pixels). A damaged one,
 * or a model without the tower for it, is an error, and the session stays as it is. What the session holds already is known by a hash
 * of its content, and is neither decoded, nor encoded, nor computed again. */
GM_API gm_status gm_reply_start(gm_session *session, const gm_message *messages, size_t count,
                                const gm_reply_options *options, gm_reply **out, char *why, size_t why_size);

/* Continues the given tokens instead of answering messages. The output is not parsed. */
GM_API gm_status gm_reply_start_tokens(gm_session *session, const int32_t *tokens, size_t n,
                                       const gm_reply_options *options, gm_reply **out, char *why, size_t why_size);

/* GM_OK with a piece, GM_AGAIN, GM_DONE at the end, or an error. After GM_DONE and after a cancel the session holds the
 * prompt and the answer as far as it went. A session has one reply at a time: when another one begins, or a set, append,
 * rollback or restore changes the session, the reply before gets GM_BAD_ARGUMENT. */
GM_API gm_status gm_reply_next(gm_reply *reply, gm_piece *piece, char *why, size_t why_size);
GM_API void      gm_reply_get_stats(const gm_reply *reply, gm_reply_stats *out);

/* Ends the answer here and keeps its text: gm_reply_next gives what is left of it (characters that might have begun a stop
 * string, for example) and then GM_DONE; the finish is GM_FINISH_CANCELLED. The session holds the prompt as far as it was
 * computed, and the answer as far as it was written. */
GM_API void gm_reply_stop(gm_reply *reply);

/* Frees a reply at any time. One that is not over is abandoned: the session holds what was computed and can go on. A reply
 * may be freed after its session. */
GM_API void gm_reply_free(gm_reply *reply);

/* The prompt that gm_reply_start would compute, as text: to look at, not to feed back. Free it with gm_free. */
GM_API gm_status gm_render(const gm_engine *engine, const gm_message *messages, size_t count,
                           const gm_reply_options *options, char **text, char *why, size_t why_size);

#ifdef __cplusplus
}
#endif
#endif
