/* The towers of an engine. A tower is loaded when it is first needed: its weights become a set of their own on the backend, beside
 * those of the text model. It stays until it is released.
 *
 * Encoding is a job: it loads the tower if need be and runs its items in batches. Everything here is called between engine_enter
 * and engine_leave. */

#ifndef GM_TOWER_H
#define GM_TOWER_H

#include "graph/run.h"
#include "model/towers.h"
#include "session/kv_memory.h"

typedef enum { TOWER_VISION, TOWER_AUDIO, TOWER_KINDS } tower_kind;

static inline model_part tower_part(tower_kind kind) { return kind == TOWER_VISION ? PART_VISION : PART_AUDIO; }

/* A picture: pixels of the size that the tower is to see (multiples of 48), or patches as the reference lays them out. */
typedef struct {
    uint32_t       width, height; /* pixels */
    const uint8_t *pixels;        /* RGB, row after row */
    const float   *patches; /* instead: row, column, channel of each patch; patches row after row; values from 0 to 1 */
    bool           frame;   /* of a video: pixels are divided by 255 instead of multiplied by 1/255 */
} tower_picture;

/* A sound of up to 30 s: samples, or the mel features of its valid frames (media/sound.h) for a tower with an encoder. */
typedef struct {
    const float *samples; /* mono, 16 kHz */
    size_t       count;
    const float *mel; /* instead: [frames, 128] */
    size_t       frames;
} tower_sound;

typedef struct tower_type tower_type;
typedef struct tower_job  tower_job;

/* Keys and values of a batch. */
typedef struct {
    kv_memory keys, values;
    size_t    slots;
} tower_kv;

/* A tower of an engine. Zero-initialised: not loaded. */
typedef struct {
    const tower_type  *type;
    vision_weights     vision;
    audio_weights      audio;
    graph              g;
    tensor            *leaf;    /* what the caller writes for each token */
    graph             *adapted; /* the same with the corrections of adapters; NULL: not made yet */
    tensor            *adapted_leaf;
    tower_job         *first;          /* of the jobs that use it */
    uint32_t           kv_heads, head; /* of its cache; 0: it has none */
    tower_kv           kv;             /* for the next job; one that works has it */
    model_fetch        fetch;
    uint64_t           uploaded, total; /* the backend's, when the upload began */
    bool               fetched, built, ready;
    struct self_check *check;   /* of the GPU, while it runs */
    bool               checked; /* passed; it stays so when the tower is released */
    error              refused; /* what the GPU gets wrong */
    size_t             jobs;    /* that use it */
} engine_tower;

/* Whether the model has this tower. GM_UNSUPPORTED with a hint if not; GM_BAD_FILE if it does not fit the model. Loads nothing. */
gm_status engine_has_tower(gm_engine *engine, tower_kind kind, error *e);
/* The file with the tower of a model in `file`, which may have a projector (or NULL); NULL: there is none. */
const gguf *tower_file(const gguf *file, const gguf *projector, tower_kind kind);
/* How many soft tokens a piece of a sound becomes; the file must have an audio tower. */
size_t tower_sound_tokens(const gguf *file, size_t samples);
/* What the larger tower of these files takes on a GPU, about, for a picture of 280 tokens or 30 s of sound; 0: there is none. With a
 * limit on the GPU's memory there is one at a time: loading one releases the other. */
uint64_t towers_bytes(const gguf *file, const gguf *projector, uint32_t soft_width);
/* Frees weights, plans and memory of towers that no job uses. Returns whether there was one. */
bool engine_release_towers(gm_engine *engine);
void engine_close_towers(gm_engine *engine);
/* Checks a projector file, which brings towers for the model. */
gm_status engine_check_projector(const gguf *projector, uint32_t soft_width, error *e);
/* Identifies the tower's weights, for the digests of soft tokens. */
gm_status engine_tower_digest(gm_engine *engine, tower_kind kind, uint8_t digest[32], error *e);

/* ---- jobs ---- */

typedef enum { TOWER_LOADING, TOWER_ENCODING } tower_phase;

typedef struct {
    tower_phase phase;
    uint64_t    done, total; /* bytes; in TOWER_ENCODING, items */
} tower_progress;

/* Copies the pictures. The rows of picture i are item i. */
gm_status tower_encode_pictures(gm_engine *engine, const tower_picture *pictures, size_t count, tower_job **out,
                                error *e);
/* The same for sounds. */
gm_status tower_encode_sounds(gm_engine *engine, const tower_sound *sounds, size_t count, tower_job **out, error *e);
/* Encodes with the adapters of this set (adapters.h), from the next batch on. Without this there are none. */
void tower_job_use(tower_job *job, uint32_t set);
/* GM_AGAIN: call again; on a GPU let gpu_host_wait run first. GM_OK: all rows are there. */
gm_status tower_job_step(tower_job *job, error *e);
/* The soft tokens of an item, [*count, width of the text model]; they live as long as the job. */
const float   *tower_job_rows(const tower_job *job, size_t item, size_t *count);
tower_progress tower_job_progress(const tower_job *job);
void           tower_job_free(tower_job *job); /* at any time: cancels */

#endif
