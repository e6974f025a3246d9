/* Snapshots: a session as a GGUF file (general.architecture = gemmule-session).
 *
 *   tokens  I32 [held]      logits  F32 [vocabulary], if there are any
 *   k.<layer>, v.<layer>    I8 [bytes of a row, positions]: all computed positions of a full layer, the last ones of a ring
 *
 * A hash of the model, the K/V type and the shapes decide whether a snapshot fits. Rows are stored as the backend keeps them;
 * in f32 and f16 they are the same on all, in q8_0 the CPU and the GPU have their own order. */

#include "session/session.h"

#include "base/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SCRATCH_BYTES = 1 << 20 }; /* rows on their way; one row is always less */

static const char architecture[] = "gemmule-session";

static void model_name(const gm_session *s, char hex[65]) {
    uint8_t digest[32];
    model_hash(&s->engine->weights, digest);
    sha256_hex(digest, hex);
}

static const char *kv_name(const gm_session *s) {
    if (s->kv.type == TYPE_Q8_0 && s->kv.gpu) return "Q8_0 in planes";
    return quant_format_of(s->kv.type)->name;
}

/* ---- saving ---------------------------------------------------------------------------------------------------------- */

static void declare(gguf_writer *w, const gm_session *s, size_t ring_first) {
    char hex[65], name[32];
    model_name(s, hex);
    gguf_write_str(w, "general.architecture", str_of(architecture));
    gguf_write_u32(w, "session.version", 1);
    gguf_write_str(w, "session.model", str_of(hex));
    gguf_write_str(w, "session.kv_type", str_of(kv_name(s)));
    gguf_write_u64(w, "session.computed", s->computed);
    gguf_write_u64(w, "session.ring_first", ring_first);
    if (s->tokens.count) gguf_write_tensor(w, "tokens", TYPE_I32, 1, &(uint64_t){ s->tokens.count });
    if (s->has_logits) gguf_write_tensor(w, "logits", TYPE_F32, 1, &(uint64_t){ s->engine->weights.config.vocabulary });
    for (uint32_t i = 0; i < s->engine->weights.config.layers; i++) {
        const kv_rows *rows = &s->kv.rows[i];
        const uint64_t ne[2] = { rows->row, s->computed - (rows->ring ? ring_first : 0) };
        if (!kv_memory_there(&rows->k) || !ne[1]) continue;
        snprintf(name, sizeof name, "k.%u", i);
        gguf_write_tensor(w, name, TYPE_I8, 2, ne);
        name[0] = 'v';
        gguf_write_tensor(w, name, TYPE_I8, 2, ne);
    }
}

/* Positions [first, last), read in pieces up to where the ring closes. */
static gm_status write_rows(gguf_writer *w, gpu_host *gpu, const kv_rows *rows, const kv_memory *from, uint8_t *scratch,
                            size_t first, size_t last, error *e) {
    for (size_t p = first; p < last;) {
        const size_t slot = p % rows->slots,
                     n = min_size(min_size(last - p, rows->slots - slot), max_size(SCRATCH_BYTES / rows->row, 1));
        if (kv_memory_read(gpu, from, slot * rows->row, scratch, n * rows->row, e) ||
            gguf_writer_data(w, scratch, n * rows->row, e))
            return e->status;
        p += n;
    }
    return GM_OK;
}

static gm_status write_session(const gm_session *s, gguf_sink sink, void *user, error *e) {
    gguf_writer *w = NULL;
    const size_t ring_first = kv_ring_first(&s->kv, s->computed);
    if (s->pending) return fail(e, GM_BUSY, "the session is in the middle of a call");
    uint8_t *scratch = malloc(SCRATCH_BYTES);
    if (!scratch) return fail_memory(e, "the snapshot", SCRATCH_BYTES);
    if (gguf_writer_new(&w, e)) {
        free(scratch);
        return e->status;
    }
    declare(w, s, ring_first);
    gguf_writer_head(w, sink, user, e);
    if (!e->status && s->tokens.count) gguf_writer_data(w, s->tokens.ids, s->tokens.count * sizeof(int32_t), e);
    if (!e->status && s->has_logits)
        gguf_writer_data(w, s->logits, s->engine->weights.config.vocabulary * sizeof(float), e);
    for (uint32_t i = 0; i < s->engine->weights.config.layers && !e->status; i++) {
        const kv_rows *rows = &s->kv.rows[i];
        const size_t   first = rows->ring ? ring_first : 0;
        if (!kv_memory_there(&rows->k)) continue;
        if (!write_rows(w, s->kv.gpu, rows, &rows->k, scratch, first, s->computed, e))
            write_rows(w, s->kv.gpu, rows, &rows->v, scratch, first, s->computed, e);
    }
    if (!e->status) gguf_writer_end(w, e);
    gguf_writer_free(w);
    free(scratch);
    return e->status;
}

static bool sink_buffer(void *user, const void *data, size_t length) {
    buffer_append(user, data, length);
    return !((buffer *)user)->failed;
}

static bool sink_file(void *user, const void *data, size_t length) { return fwrite(data, 1, length, user) == length; }

gm_status gm_session_save_buffer(const gm_session *s, void **data, size_t *size, char *why, size_t why_size) {
    error  e = { 0 };
    buffer out = { 0 };
    *data = NULL;
    *size = 0;
    write_session(s, sink_buffer, &out, &e);
    if (out.failed) { /* the writer only knows that nobody took its bytes */
        e = (error){ 0 };
        fail_memory(&e, "the snapshot", out.length);
    }
    if (e.status) {
        buffer_free(&out);
    } else {
        *data = out.data;
        *size = out.length;
    }
    return error_report(&e, why, why_size);
}

gm_status gm_session_save(const gm_session *s, const char *path, char *why, size_t why_size) {
    error  e = { 0 };
    buffer name = { 0 };
    buffer_printf(&name, "%s.%ld.part", path, (long)getpid());
    FILE *file = name.failed ? NULL : fopen(name.data, "wb");
    if (name.failed) fail_memory(&e, "the path", strlen(path));
    else if (!file) fail(&e, GM_IO, "cannot write '%s'", path);
    if (file) {
        write_session(s, sink_file, file, &e);
        if (fflush(file) || fsync(fileno(file))) fail(&e, GM_IO, "writing '%s' failed: is the disk full?", path);
        if (fclose(file)) fail(&e, GM_IO, "writing '%s' failed: is the disk full?", path);
        if (!e.status && rename(name.data, path)) fail(&e, GM_IO, "cannot write '%s'", path);
        if (e.status) remove(name.data);
    }
    buffer_free(&name);
    return error_report(&e, why, why_size);
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
    str  kind, hash, type;
    char hex[65];
    if (gguf_get_str(g, "general.architecture", &kind, NULL, e)) return e->status;
    if (!str_is(kind, architecture))
        return fail(e, GM_BAD_FILE, "this is no session snapshot: general.architecture is '%.*s'", STR_ARGS(kind));
    uint32_t version = 0;
    if (gguf_get_u32(g, "session.version", &version, NULL, e)) return e->status;
    if (version != 1)
        return fail(e, GM_UNSUPPORTED, "the snapshot has version %u, this program reads version 1", version);
    if (gguf_get_str(g, "session.model", &hash, NULL, e) || gguf_get_str(g, "session.kv_type", &type, NULL, e))
        return e->status;
    model_name(s, hex);
    if (!str_is(hash, hex))
        return fail(e, GM_BAD_FILE, "the snapshot belongs to another model (%.12s..., this one is %.12s...)",
                    hash.length >= 12 ? hash.data : "?", hex);
    if (!str_is(type, kv_name(s))) {
        return fail(e, GM_BAD_FILE, "the snapshot holds keys and values in %.*s, this session in %s", STR_ARGS(type),
                    kv_name(s));
    }
    return GM_OK;
}

static gm_status read_tokens(gm_session *into, const gguf *g, error *e) {
    const gguf_tensor *tokens = gguf_find_tensor(g, "tokens");
    const uint64_t     n = tokens ? tokens->ne[0] : 0, vocabulary = into->engine->weights.config.vocabulary;
    uint64_t           computed = 0, first = 0;
    if (gguf_get_u64(g, "session.computed", &computed, NULL, e) ||
        gguf_get_u64(g, "session.ring_first", &first, NULL, e))
        return e->status;
    if (n > into->kv.context) {
        return fail(e, GM_CONTEXT_FULL, "the snapshot holds %llu tokens, but this session has room for %zu",
                    (unsigned long long)n, into->kv.context);
    }
    if (computed > n || first > computed)
        return fail(e, GM_BAD_FILE,
                    "the snapshot contradicts itself: session.computed %llu, session.ring_first %llu, %llu tokens",
                    (unsigned long long)computed, (unsigned long long)first, (unsigned long long)n);
    const uint8_t *bytes = n ? tensor_of(g, "tokens", TYPE_I32, n, 1, e) : NULL;
    for (uint64_t i = 0; i < n && bytes; i++) {
        int32_t id;
        memcpy(&id, bytes + i * sizeof id, sizeof id);
        if (session_hold(into, id, e)) return e->status;
    }
    into->computed = (size_t)computed;
    into->kv.high = computed;
    into->kv.low = first;
    if (!e->status && gguf_find_tensor(g, "logits")) {
        const uint8_t *logits = tensor_of(g, "logits", TYPE_F32, vocabulary, 1, e);
        if (logits) memcpy(into->logits, logits, vocabulary * sizeof(float));
        into->has_logits = logits && computed == n;
    }
    return e->status;
}

static gm_status read_rows(gm_session *into, const gguf *g, error *e) {
    char name[32];
    for (uint32_t i = 0; i < into->engine->weights.config.layers && !e->status; i++) {
        const kv_rows *rows = &into->kv.rows[i];
        const size_t   first = rows->ring ? (size_t)into->kv.low : 0, n = into->computed - first;
        if (!kv_memory_there(&rows->k) || !n) continue;
        if (n > rows->slots)
            return fail(e, GM_BAD_FILE, "the snapshot holds %zu positions of layer %u, which has room for %zu", n, i,
                        rows->slots);
        for (int half = 0; half < 2 && !e->status; half++) {
            snprintf(name, sizeof name, "%c.%u", half ? 'v' : 'k', i);
            const uint8_t *data = tensor_of(g, name, TYPE_I8, rows->row, n, e);
            for (size_t p = 0; p < n && data && !e->status;) {
                const size_t slot = (first + p) % rows->slots, run = min_size(n - p, rows->slots - slot);
                kv_memory_write(into->kv.gpu, half ? &rows->v : &rows->k, slot * rows->row, data + p * rows->row,
                                run * rows->row, e);
                p += run;
            }
        }
    }
    return e->status;
}

/* Fills a new session, then swaps: whatever goes wrong, the old one keeps what it had. */
static gm_status restore(gm_session *s, gguf *g, error *e) {
    gm_session *fresh = NULL;
    if (s->pending) return fail(e, GM_BUSY, "the session is in the middle of a call");
    if (check_identity(s, g, e) || session_new(s->engine, &fresh, e)) return e->status;
    if (!kv_open(&fresh->kv, &s->engine->weights.config, s->kv.gpu, s->kv.type, s->kv.context, e) &&
        !read_tokens(fresh, g, e) && !kv_reserve(&fresh->kv, fresh->computed ? fresh->computed : 1, e) &&
        !read_rows(fresh, g, e)) {
        const kv_cache   kv = s->kv;
        const token_list tokens = s->tokens;
        float           *logits = s->logits;
        s->kv = fresh->kv;
        s->kv.changes += kv.changes; /* plans that are bound to the old rows must notice */
        s->tokens = fresh->tokens;
        s->logits = fresh->logits;
        s->computed = fresh->computed;
        s->has_logits = fresh->has_logits;
        fresh->kv = kv;
        fresh->tokens = tokens;
        fresh->logits = logits;
    }
    gm_session_free(fresh);
    return e->status;
}

gm_status gm_session_restore_buffer(gm_session *s, const void *data, size_t size, char *why, size_t why_size) {
    error e = { 0 };
    gguf *g = NULL;
    if (!gguf_open_memory(data, size, &g, &e)) {
        restore(s, g, &e);
        gguf_free(g);
    }
    return error_report(&e, why, why_size);
}

gm_status gm_session_restore(gm_session *s, const char *path, char *why, size_t why_size) {
    error e = { 0 };
    gguf *g = NULL;
    if (!gguf_open_file(path, &g, &e)) {
        restore(s, g, &e);
        gguf_free(g);
    }
    return error_report(&e, why, why_size);
}
