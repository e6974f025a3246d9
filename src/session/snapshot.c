/* Snapshots: a session as a GGUF file (general.architecture = gemmule-session).
 *
 *   tokens  I32 [held]      logits  F32 [vocabulary], if there are any
 *   soft.spans  I32 [3, spans]: begin, count, block     soft.rows  F32 [width, soft tokens], if there are any
 *   soft.digests  I8 [32, spans]: what identifies each span; 0 for one whose end was forgotten
 *   k.<layer>, v.<layer>    I8 [bytes of a row, positions]: all computed positions of a full layer, the last ones of a ring
 *   digest  I8 [32]         the seal over everything before it
 *
 * session.adapters identifies the set of adapters that the rows were computed with; without it there was none. A session with another
 * set takes over the tokens only, and computes them again; if towers computed the soft tokens with other adapters
 * (session.tower_adapters), only the tokens before them.
 *
 * A hash of the model, the K/V type and the shapes decide whether a snapshot fits. Every backend stores rows as it keeps them:
 * f32 and f16 are the same everywhere; q8_0 has one order on the CPU and another on the GPU. */

#include "session/decoder.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORMAT_VERSION = 2,
    ADAPTED_VERSION =
        3, /* the same with session.adapters: programs that do not know it must not take the rows for the model's own */
    SPAN_WORDS = 3,
    DIGEST_BYTES = 32,
    TOWERS_DIGEST = 130,     /* characters, with the end */
    SCRATCH_BYTES = 1 << 20, /* rows on their way from the GPU; one row is always less */
    WRITE_BYTES = 16 << 20,  /* and to it */
    HASH_BYTES = 1 << 20,    /* hashed between two looks at the clock */
};

static const char architecture[] = "gemmule-session";

static const char *kv_name(const gm_session *s) {
    const kv_store *store = s->kv.store;
    if (store->type == TYPE_Q8_0 && store->gpu) return "Q8_0 in planes";
    return quant_format_of(store->type)->name;
}

/* ---- saving ---------------------------------------------------------------------------------------------------------- */

/* The adapters that the towers compute with; "": none. */
static void towers_digest(const gm_session *s, char out[TOWERS_DIGEST]) {
    char seen[65], heard[65];
    engine_adapters_part_digest(s->engine, s->adapters, PART_VISION, seen);
    engine_adapters_part_digest(s->engine, s->adapters, PART_AUDIO, heard);
    snprintf(out, TOWERS_DIGEST, "%s%s%s", seen, *seen || *heard ? "+" : "", heard);
}

static void declare(gguf_writer *w, const gm_session *s, size_t ring_first) {
    char name[32];
    gguf_write_str(w, "general.architecture", str_of(architecture));
    char adapters[65] = "";
    if (s->adapters) engine_adapters_digest(s->engine, s->adapters, adapters);
    gguf_write_u32(w, "session.version", s->adapters ? ADAPTED_VERSION : FORMAT_VERSION);
    if (s->adapters) gguf_write_str(w, "session.adapters", str_of(adapters));
    char towers[TOWERS_DIGEST];
    towers_digest(s, towers);
    if (*towers) gguf_write_str(w, "session.tower_adapters", str_of(towers));
    gguf_write_str(w, "session.model", str_of(s->engine->digest));
    gguf_write_str(w, "session.kv_type", str_of(kv_name(s)));
    gguf_write_u64(w, "session.computed", s->computed);
    gguf_write_u64(w, "session.ring_first", ring_first);
    if (s->tokens.count) gguf_write_tensor(w, "tokens", TYPE_I32, 1, &(uint64_t){ s->tokens.count });
    if (s->has_logits) gguf_write_tensor(w, "logits", TYPE_F32, 1, &(uint64_t){ s->engine->weights.config.vocabulary });
    if (s->soft.span_count) {
        gguf_write_tensor(w, "soft.spans", TYPE_I32, 2, (uint64_t[]){ SPAN_WORDS, s->soft.span_count });
        gguf_write_tensor(w, "soft.rows", TYPE_F32, 2, (uint64_t[]){ s->soft.width, s->soft.row_count });
        gguf_write_tensor(w, "soft.digests", TYPE_I8, 2, (uint64_t[]){ DIGEST_BYTES, s->soft.span_count });
    }
    for (uint32_t i = 0; i < s->engine->weights.config.layers; i++) {
        const kv_rows *rows = &s->kv.store->rows[i];
        const uint64_t ne[2] = { rows->row, s->computed - (rows->space == KV_RINGS ? ring_first : 0) };
        if (!rows->row || !ne[1]) continue;
        snprintf(name, sizeof name, "k.%u", i);
        gguf_write_tensor(w, name, TYPE_I8, 2, ne);
        name[0] = 'v';
        gguf_write_tensor(w, name, TYPE_I8, 2, ne);
    }
    gguf_write_seal(w);
}

static gm_status write_soft(gguf_writer *w, const soft_tokens *soft, error *e) {
    for (size_t i = 0; i < soft->span_count; i++) {
        const soft_span *span = &soft->spans[i];
        const int32_t    words[SPAN_WORDS] = { (int32_t)span->begin, (int32_t)span->count, span->block };
        TRY(gguf_writer_data(w, words, sizeof words, e));
    }
    if (!soft->span_count) return GM_OK;
    TRY(gguf_writer_data(w, soft->rows, soft->row_count * soft->width * sizeof *soft->rows, e));
    for (size_t i = 0; i < soft->span_count; i++) {
        static const uint8_t unknown[DIGEST_BYTES] = { 0 };
        const soft_span     *span = &soft->spans[i];
        TRY(gguf_writer_data(w, span->count == span->added ? span->digest : unknown, DIGEST_BYTES, e));
    }
    return GM_OK;
}

/* Rings may be wider here than in the session that restores the snapshot. */
static size_t first_of_rings(const gm_session *s) {
    const size_t held = (size_t)s->engine->weights.config.window + KV_SLACK;
    return max_size(kv_ring_first(&s->kv, s->computed), s->computed > held ? s->computed - held : 0);
}

struct snapshot_saving {
    const gm_session *s;
    gguf_writer      *w;
    uint8_t          *scratch;
    size_t            ring_first;
    uint32_t          layer; /* the rows that come next: layer, keys or values, position */
    bool              values, begun;
    size_t            position, count; /* count: rows on their way */
    uint32_t          ticket;
};

/* Everything before the keys and values. */
static gm_status write_beginning(snapshot_saving *job, gguf_sink sink, void *user, error *e) {
    const gm_session *s = job->s;
    TRY(gguf_writer_new(&job->w, e));
    declare(job->w, s, job->ring_first);
    TRY(gguf_writer_head(job->w, sink, user, e));
    if (s->tokens.count) TRY(gguf_writer_data(job->w, s->tokens.ids, s->tokens.count * sizeof(int32_t), e));
    if (s->has_logits)
        TRY(gguf_writer_data(job->w, s->logits, s->engine->weights.config.vocabulary * sizeof(float), e));
    return write_soft(job->w, &s->soft, e);
}

gm_status snapshot_save(gm_session *s, gguf_sink sink, void *user, snapshot_saving **out, error *e) {
    *out = NULL;
    TRY(session_check_free(s, e));
    decoder_leave(s); /* others must not write on for it while its rows are read */
    snapshot_saving *job = calloc(1, sizeof *job);
    if (job) *job = (snapshot_saving){ .s = s, .ring_first = first_of_rings(s), .scratch = malloc(SCRATCH_BYTES) };
    const gm_status status =
        job && job->scratch ? write_beginning(job, sink, user, e) : fail_memory(e, "the snapshot", SCRATCH_BYTES);
    if (status) snapshot_save_free(job);
    else *out = job;
    return status;
}

void snapshot_save_free(snapshot_saving *job) {
    if (!job) return;
    if (job->ticket) gpu_ticket_done(job->s->kv.store->gpu, job->ticket);
    if (job->w) gguf_writer_free(job->w);
    free(job->scratch);
    free(job);
}

/* Writes the keys or the values of one layer, in pieces that lie in consecutive slots. */
static gm_status write_rows(snapshot_saving *job, const kv_rows *rows, const kv_memory *from, double deadline,
                            error *e) {
    gpu_host    *gpu = job->s->kv.store->gpu;
    const size_t last = job->s->computed, most = max_size(SCRATCH_BYTES / rows->row, 1);
    if (!job->begun) job->position = rows->space == KV_RINGS ? job->ring_first : 0;
    job->begun = true;
    while (job->position < last) {
        const kv_stretch at = kv_locate(&job->s->kv, rows->space, job->position);
        job->count = min_size(min_size(last - job->position, at.count), most);
        const gm_status status = kv_memory_read(gpu, from, (uint64_t)at.slot * rows->row, job->scratch,
                                                job->count * rows->row, &job->ticket, e);
        if (status) return status;
        TRY(gguf_writer_data(job->w, job->scratch, job->count * rows->row, e));
        job->position += job->count;
        if (clock_seconds() > deadline) return GM_AGAIN;
    }
    job->begun = false;
    return GM_OK;
}

gm_status snapshot_save_step(snapshot_saving *job, error *e) {
    const double deadline = engine_deadline(job->s->engine);
    for (; job->layer < job->s->engine->weights.config.layers; job->layer++) {
        const kv_rows *rows = &job->s->kv.store->rows[job->layer];
        if (!rows->row) continue;
        gm_status status = job->values ? GM_OK : write_rows(job, rows, &rows->k, deadline, e);
        if (status) return status;
        job->values = true;
        status = write_rows(job, rows, &rows->v, deadline, e);
        if (status) return status;
        job->values = false;
    }
    return gguf_writer_end(job->w, e);
}

/* ---- restoring --------------------------------------------------------------------------------------------------------- */

static const uint8_t *tensor_of(const gguf *g, const char *name, quant_type type, uint64_t n0, uint64_t n1, error *e) {
    const gguf_tensor *t = gguf_find_tensor(g, name);
    if (!t) {
        fail(e, GM_BAD_FILE, "the snapshot lacks the tensor '%s'", name);
        return NULL;
    }
    if (t->type != type || t->ne[0] != n0 || t->ne[1] != n1 || t->ne[2] != 1 || t->ne[3] != 1) {
        fail(e, GM_BAD_FILE, "the snapshot's tensor '%s' is %s [%llu, %llu], but %s [%llu, %llu] was expected", name,
             t->format->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], quant_format_of(type)->name,
             (unsigned long long)n0, (unsigned long long)n1);
        return NULL;
    }
    return gguf_tensor_data(g, t);
}

static gm_status check_identity(const gm_session *s, const gguf *g, error *e) {
    str kind, hash, type;
    TRY(gguf_get_str(g, "general.architecture", &kind, NULL, e));
    if (!str_is(kind, architecture))
        return fail(e, GM_BAD_FILE, "not a session snapshot: general.architecture is '%.*s', expected '%s'",
                    STR_ARGS(kind), architecture);
    uint32_t version = 0;
    TRY(gguf_get_u32(g, "session.version", &version, NULL, e));
    if (version != FORMAT_VERSION && version != ADAPTED_VERSION)
        return fail(e, GM_UNSUPPORTED, "the snapshot has version %u; this program reads versions %d and %d", version,
                    FORMAT_VERSION, ADAPTED_VERSION);
    TRY(gguf_get_str(g, "session.model", &hash, NULL, e));
    TRY(gguf_get_str(g, "session.kv_type", &type, NULL, e));
    const char *hex = s->engine->digest;
    if (!str_is(hash, hex))
        return fail(e, GM_BAD_FILE, "the snapshot belongs to another model (%.12s..., this one is %.12s...)",
                    hash.length >= 12 ? hash.data : "?", hex);
    if (!str_is(type, kv_name(s))) {
        return fail(e, GM_BAD_FILE, "the snapshot holds keys and values in %.*s, this session in %s", STR_ARGS(type),
                    kv_name(s));
    }
    return GM_OK;
}

static gm_status compare_adapters(const gm_session *s, const gguf *g, bool *alike, error *e) {
    str  theirs = { "", 0 };
    char ours[65] = "";
    bool found = false;
    TRY(gguf_get_str(g, "session.adapters", &theirs, &found, e));
    if (s->adapters) engine_adapters_digest(s->engine, s->adapters, ours);
    *alike = found == (s->adapters != 0) && str_is(theirs, ours) && (*ours || !s->adapters);
    return GM_OK;
}

/* Whether the snapshot's soft tokens are those that this session's towers would compute. */
static gm_status compare_towers(const gm_session *s, const gguf *g, bool *alike, error *e) {
    str  theirs = { "", 0 };
    char ours[TOWERS_DIGEST];
    bool found = false;
    TRY(gguf_get_str(g, "session.tower_adapters", &theirs, &found, e));
    towers_digest(s, ours);
    *alike = str_is(theirs, ours);
    return GM_OK;
}

/* The rings must hold all that the next token's window reaches, or it would read slots that nobody wrote. */
static gm_status check_positions(const gm_session *into, uint64_t computed, uint64_t first, uint64_t held, error *e) {
    const uint64_t window = into->engine->weights.config.window;
    if (computed <= held && first <= (computed + 1 > window ? computed + 1 - window : 0)) return GM_OK;
    return fail(e, GM_BAD_FILE,
                "the snapshot contradicts itself: session.computed %llu, session.ring_first %llu, %llu tokens, and a "
                "window of %llu",
                (unsigned long long)computed, (unsigned long long)first, (unsigned long long)held,
                (unsigned long long)window);
}

static gm_status read_logits(gm_session *into, const gguf *g, error *e) {
    const size_t   vocabulary = into->engine->weights.config.vocabulary;
    const uint8_t *logits = tensor_of(g, "logits", TYPE_F32, vocabulary, 1, e);
    if (!logits) return e->status;
    memcpy(into->logits, logits, vocabulary * sizeof(float));
    for (size_t i = 0; i < vocabulary; i++) {
        if (!isfinite(into->logits[i]))
            return fail(e, GM_BAD_FILE, "the snapshot's logit of token %zu is not a finite number", i);
    }
    into->has_logits = into->computed == into->tokens.count;
    return GM_OK;
}

/* `alike`: the rows belong to the session's adapters. */
static gm_status read_tokens(gm_session *into, const gguf *g, bool alike, error *e) {
    const gguf_tensor *tokens = gguf_find_tensor(g, "tokens");
    const uint64_t     n = tokens ? tokens->ne[0] : 0;
    uint64_t           computed = 0, first = 0;
    TRY(gguf_get_u64(g, "session.computed", &computed, NULL, e));
    TRY(gguf_get_u64(g, "session.ring_first", &first, NULL, e));
    if (n > into->kv.context) {
        return fail(e, GM_CONTEXT_FULL, "the snapshot holds %llu tokens, but this session has room for %zu",
                    (unsigned long long)n, into->kv.context);
    }
    TRY(check_positions(into, computed, first, n, e));
    if (!alike) computed = first = 0;
    const uint8_t *bytes = n ? tensor_of(g, "tokens", TYPE_I32, n, 1, e) : NULL;
    if (n && !bytes) return e->status;
    for (uint64_t i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, bytes + i * sizeof id, sizeof id);
        TRY(session_hold(into, id, e));
    }
    into->computed = (size_t)computed;
    if (!alike) return GM_OK;
    TRY(kv_restore(&into->kv, into->computed, (size_t)first, e));
    return gguf_find_tensor(g, "logits") ? read_logits(into, g, e) : GM_OK;
}

static gm_status read_span(gm_session *into, const int32_t words[SPAN_WORDS], const float *rows, size_t rows_left,
                           const uint8_t digest[DIGEST_BYTES], size_t *count, error *e) {
    const model_config *c = &into->engine->weights.config;
    const size_t        after = soft_end(&into->soft), held = into->tokens.count;
    if (words[0] < 0 || words[1] < 1 || (size_t)words[0] < after || (size_t)words[0] > held ||
        (size_t)words[1] > held - (size_t)words[0] || (size_t)words[1] > rows_left ||
        (words[2] && (!c->image_blocks || words[1] > SESSION_MOST_IMAGE)))
        return fail(e, GM_BAD_FILE, "the snapshot contradicts itself: %d soft tokens at %d%s of %zu", words[1],
                    words[0], words[2] ? ", a block," : "", held);
    *count = (size_t)words[1];
    return soft_add(&into->soft, (size_t)words[0], rows, *count, c->width, words[2] != 0, digest, e);
}

static gm_status read_soft(gm_session *into, const gguf *g, error *e) {
    const gguf_tensor *there = gguf_find_tensor(g, "soft.spans"), *given = gguf_find_tensor(g, "soft.rows");
    const size_t       width = into->engine->weights.config.width;
    if (!there) return GM_OK;
    const size_t   spans = (size_t)there->ne[1];
    size_t         left = given ? (size_t)given->ne[1] : 0, n = 0;
    const uint8_t *words = tensor_of(g, "soft.spans", TYPE_I32, SPAN_WORDS, spans, e);
    const uint8_t *rows = words ? tensor_of(g, "soft.rows", TYPE_F32, width, left, e) : NULL;
    const bool     named = gguf_find_tensor(g, "soft.digests"); /* older snapshots have none */
    const uint8_t *digests = rows && named ? tensor_of(g, "soft.digests", TYPE_I8, DIGEST_BYTES, spans, e) : NULL;
    if (!rows || (named && !digests)) return e->status;
    for (size_t i = 0; i < spans; i++) {
        int32_t span[SPAN_WORDS];
        memcpy(span, words + i * sizeof span, sizeof span);
        TRY(read_span(into, span, (const float *)rows, left, digests ? digests + i * DIGEST_BYTES : NULL, &n, e));
        left -= n;
        rows += n * width * sizeof(float);
    }
    if (!soft_block_around(&into->soft, into->computed)) return GM_OK;
    return fail(e, GM_BAD_FILE, "the snapshot contradicts itself: session.computed is %zu, which is inside an image",
                into->computed);
}

struct snapshot_restoring {
    gm_session *s;
    gm_session *fresh; /* is filled, then swapped with s: whatever goes wrong, s keeps what it had */
    gguf       *g;
    gguf_seal   seal;
    uint32_t    adapters; /* of the session, when its tokens were read */
    bool        genuine;  /* the seal was checked */
    uint32_t    layer;    /* the rows that go next: layer, keys or values, how many are done */
    bool        values;
    size_t      done;
};

/* Everything but the keys and values. */
static gm_status read_beginning(snapshot_restoring *job, error *e) {
    gm_session *s = job->s;
    TRY(session_check_free(s, e));
    TRY(check_identity(s, job->g, e));
    TRY(session_new(s->engine, &job->fresh, e));
    TRY(kv_open(&job->fresh->kv, s->kv.store, s->kv.context, e));
    bool alike = false;
    TRY(compare_adapters(s, job->g, &alike, e));
    job->adapters = s->adapters;
    TRY(read_tokens(job->fresh, job->g, alike, e));
    TRY(read_soft(job->fresh, job->g, e));
    TRY(compare_towers(s, job->g, &alike, e));
    if (!alike) session_forget_soft(job->fresh);
    return GM_OK;
}

gm_status snapshot_restore(gm_session *s, gguf *g, snapshot_restoring **out, error *e) {
    *out = NULL;
    snapshot_restoring *job = calloc(1, sizeof *job);
    if (!job) {
        gguf_free(g);
        return fail_memory(e, "the snapshot", sizeof *job);
    }
    *job = (snapshot_restoring){ .s = s, .g = g };
    const gm_status status = read_beginning(job, e);
    if (status) snapshot_restore_free(job);
    else *out = job;
    return status;
}

void snapshot_restore_free(snapshot_restoring *job) {
    if (!job) return;
    session_free(job->fresh);
    gguf_free(job->g);
    free(job);
}

/* Reads the keys or the values of one layer, in pieces that lie in consecutive slots. */
static gm_status read_rows(snapshot_restoring *job, const kv_rows *rows, const kv_memory *to, double deadline,
                           error *e) {
    gm_session  *into = job->fresh;
    char         name[32];
    const bool   ring = rows->space == KV_RINGS;
    const size_t first = ring ? (size_t)into->kv.low : 0, n = into->computed - first;
    if (!n) return GM_OK;
    if (ring && n > into->kv.ring->count)
        return fail(e, GM_BAD_FILE, "the snapshot holds %zu positions of layer %u, which has room for %zu", n,
                    job->layer, into->kv.ring->count);
    snprintf(name, sizeof name, "%c.%u", job->values ? 'v' : 'k', job->layer);
    const uint8_t *data = tensor_of(job->g, name, TYPE_I8, rows->row, n, e);
    if (!data) return e->status;
    while (job->done < n) {
        const kv_stretch at = kv_locate(&into->kv, rows->space, first + job->done);
        const size_t     run = min_size(min_size(n - job->done, at.count), max_size(WRITE_BYTES / rows->row, 1));
        const gm_status  status = kv_memory_write(into->kv.store->gpu, to, (uint64_t)at.slot * rows->row,
                                                  data + job->done * rows->row, run * rows->row, e);
        if (status) return status;
        job->done += run;
        if (clock_seconds() > deadline) return GM_AGAIN;
    }
    job->done = 0;
    return GM_OK;
}

static void swap_sessions(gm_session *s, gm_session *fresh) {
    const kv_cache    kv = s->kv;
    const token_list  tokens = s->tokens;
    const soft_tokens soft = s->soft;
    float            *logits = s->logits;
    s->kv = fresh->kv;
    s->tokens = fresh->tokens;
    s->soft = fresh->soft;
    s->logits = fresh->logits;
    s->computed = fresh->computed;
    s->has_logits = fresh->has_logits;
    fresh->kv = kv;
    fresh->tokens = tokens;
    fresh->soft = soft;
    fresh->logits = logits;
}

static gm_status check_seal(snapshot_restoring *job, double deadline, error *e) {
    gm_status status;
    do status = gguf_seal_check(job->g, &job->seal, HASH_BYTES, e);
    while (status == GM_AGAIN && clock_seconds() < deadline);
    job->genuine = status == GM_OK;
    return status;
}

gm_status snapshot_restore_step(snapshot_restoring *job, error *e) {
    const double deadline = engine_deadline(job->s->engine);
    if (!job->genuine) {
        const gm_status status = check_seal(job, deadline, e);
        if (status) return status;
    }
    for (; job->layer < job->s->engine->weights.config.layers; job->layer++) {
        const kv_rows *rows = &job->fresh->kv.store->rows[job->layer];
        if (!rows->row) continue;
        gm_status status = job->values ? GM_OK : read_rows(job, rows, &rows->k, deadline, e);
        if (status) return status;
        job->values = true;
        status = read_rows(job, rows, &rows->v, deadline, e);
        if (status) return status;
        job->values = false;
    }
    TRY(session_check_free(job->s, e));
    session_release(job->s);
    swap_sessions(job->s, job->fresh);
    if (job->s->adapters != job->adapters) session_go_back(job->s, 0);
    job->s->has_logits = job->s->has_logits && job->s->computed == job->s->tokens.count;
    job->s->restored = job->s->computed;
    job->s->foreign = job->s->soft.span_count != 0;
    return GM_OK;
}
