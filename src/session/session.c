#include "session/decoder.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static quant_type kv_quant_type(const gm_session_options *options, const gm_engine *engine) {
    switch (options ? options->kv : GM_KV_DEFAULT) {
    case GM_KV_F16: return TYPE_F16;
    case GM_KV_F32: return TYPE_F32;
    case GM_KV_Q8_0: return TYPE_Q8_0;
    default: return engine->precise ? TYPE_F32 : TYPE_F16;
    }
}

static gm_status reserve_records(gm_session *s, size_t batch, error *e) {
    if (batch <= s->record_capacity) return GM_OK;
    token_record *records = realloc(s->records, batch * sizeof *records);
    if (!records) return fail_memory(e, "a batch's records", batch * sizeof *records);
    s->records = records;
    s->record_capacity = batch;
    return GM_OK;
}

gm_status session_new(gm_engine *engine, gm_session **out, error *e) {
    const size_t vocabulary = engine->weights.config.vocabulary;
    if (engine->on_gpu)
        TRY(gpu_host_problem(engine->gpu.host, e)); /* a GPU that is lost is told now, not at the first token */
    gm_session *s = calloc(1, sizeof *s);
    if (!s) return fail_memory(e, "a session", sizeof *s);
    s->engine = engine;
    s->next = engine->sessions;
    engine->sessions = s;
    s->ahead.possible = engine->on_gpu && !gpu_backend_needs_host(&engine->gpu);
    s->logits = malloc(vocabulary * sizeof *s->logits);
    gm_status status = s->logits ? GM_OK : fail_memory(e, "the logits", vocabulary * sizeof *s->logits);
    if (!status) status = reserve_records(s, KV_BATCH, e);
    if (!status) status = sampler_new(vocabulary, &s->chooser, e);
    if (!status) status = runner_open(&s->run, engine, e);
    if (status) session_free(s);
    else *out = s;
    return status;
}

gm_status gm_session_new(gm_engine *engine, const gm_session_options *options, gm_session **out, char *why,
                         size_t why_size) {
    error        e = { 0 };
    gm_session  *s = NULL;
    const size_t most = engine->weights.config.context, asked = options && options->context ? options->context : 0;
    *out = NULL;
    if (asked > most)
        fail(&e, GM_BAD_ARGUMENT, "a context of %zu tokens is too large: the model supports at most %zu", asked, most);
    if (options && options->kv > GM_KV_Q8_0) fail(&e, GM_BAD_ARGUMENT, "%d is not a K/V type", (int)options->kv);
    engine_enter(engine);
    if (!e.status && !session_new(engine, &s, &e)) {
        const quant_type type = kv_quant_type(options, engine);
        const size_t     usual =
            min_size(engine->context, kv_most_context(&engine->weights.config, engine->gpu.host, type));
        kv_store *store = NULL;
        if (!engine_store(engine, type, &store, &e)) kv_open(&s->kv, store, asked ? asked : usual, &e);
        s->shares = true;
        if (!e.status && engine->adapters.own) session_set_adapters(s, NULL, NULL, 0, &e);
    }
    if (e.status) session_free(s);
    else *out = s;
    engine_leave(engine);
    return error_report(&e, why, why_size);
}

size_t gm_session_context(const gm_session *s) { return s->kv.context; }

static void session_unlink(gm_session **list, const gm_session *s) {
    for (; *list; list = &(*list)->next) {
        if (*list != s) continue;
        *list = s->next;
        return;
    }
}

void session_free(gm_session *s) {
    if (!s) return;
    session_unlink(&s->engine->sessions, s);
    session_unlink(&s->engine->parked, s);
    session_strip(s);
    kv_close(&s->kv);
    soft_free(&s->soft);
    token_list_free(&s->tokens);
    engine_adapters_leave_set(s->engine, s->adapters);
    free(s);
}

void session_strip(gm_session *s) {
    decoder_leave(s);
    session_canvas_free(s->canvas);
    s->canvas = NULL;
    reply_lose_session(s->replies);
    s->replies = NULL;
    runner_close(&s->run);
    sampler_free(s->chooser);
    free(s->logits);
    free(s->records);
    s->chooser = NULL;
    s->logits = NULL;
    s->records = NULL;
}

void gm_session_free(gm_session *s) {
    if (!s) return;
    gm_engine *engine = s->engine;
    engine_enter(engine);
    if (!session_park(s)) session_free(s);
    engine_leave(engine);
}

gm_status gm_session_fork(gm_session *session, gm_session **out, char *why, size_t why_size) {
    error       e = { 0 };
    gm_session *s = NULL;
    *out = NULL;
    engine_enter(session->engine);
    if (!session_check_free(session, &e) && !session_new(session->engine, &s, &e) &&
        !kv_open(&s->kv, session->kv.store, session->kv.context, &e) &&
        !kv_share(&s->kv, &session->kv, session->computed, &e)) {
        for (size_t i = 0; i < session->tokens.count; i++) token_list_add(&s->tokens, session->tokens.ids[i]);
        if (s->tokens.failed) fail_memory(&e, "the tokens", session->tokens.count * sizeof(int32_t));
        else soft_copy(&s->soft, &session->soft, &e);
        s->shares = session->shares;
        s->adapters = session->adapters;
        engine_adapters_keep_set(s->engine, s->adapters);
        s->restored = session->restored;
        s->foreign = session->foreign;
        s->computed = session->computed;
        s->has_logits = session->has_logits;
        if (s->has_logits)
            memcpy(s->logits, session->logits, session->engine->weights.config.vocabulary * sizeof *s->logits);
    }
    if (e.status) session_free(s);
    else *out = s;
    engine_leave(session->engine);
    return error_report(&e, why, why_size);
}

size_t gm_session_tokens(const gm_session *s, const int32_t **tokens) {
    if (tokens) *tokens = s->tokens.ids;
    return s->tokens.count;
}

const float *gm_session_logits(const gm_session *s) { return s->has_logits ? s->logits : NULL; }

void gm_session_cancel(gm_session *s) { atomic_store(&s->cancelled, true); }

/* ---- computing ------------------------------------------------------------------------------------------------------ */

/* The only cause of NaN that we can name is a broken weight. */
gm_status session_not_finite(const gm_session *s, error *e) {
    TRY(model_find_nan(&s->engine->weights, e));
    return fail(e, GM_BAD_FILE,
                "the model computed NaN, though its weights are finite: their values must be far out of range");
}

bool session_is_finite(const gm_session *s, const float *logits) {
    const size_t n = s->engine->weights.config.vocabulary;
    uint32_t     most = 0; /* of the bits without the sign: infinity sorts after all numbers, NaN after infinity */
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000;
}

static gm_status check_finite(const gm_session *s, const float *logits, error *e) {
    return session_is_finite(s, logits) ? GM_OK : session_not_finite(s, e);
}

void session_abandon(gm_session *s) {
    s->running = 0;
    runner_restart(&s->run);
    decoder_leave(s);
    session_canvas_leave(s->canvas);
}

void session_release(gm_session *s) {
    session_abandon(s);
    s->writer = NULL;
}

void session_forget_uncomputed(gm_session *s) {
    s->tokens.count = s->computed;
    soft_truncate(&s->soft, s->computed);
    s->pending = false;
    session_abandon(s);
}

size_t session_batch_begin(const gm_session *s, size_t position) {
    const soft_span *block = soft_block_around(&s->soft, position);
    return block ? block->begin : position;
}

/* How many tokens to compute next: up to `most`, but tokens that see each other stay together. */
static size_t next_batch(const gm_session *s, size_t most) {
    size_t end = s->computed + min_size(s->tokens.count - s->computed, most);
    if (s->computed < s->branch && s->branch < end) end = s->branch;
    const soft_span *cut = soft_block_around(&s->soft, end);
    if (cut && cut->begin <= s->computed) return cut->count;
    return batch_without_rest((cut ? cut->begin : end) - s->computed);
}

static gm_status make_room(gm_session *s, size_t batch, error *e) {
    TRY(reserve_records(s, batch, e));
    return kv_reserve(&s->kv, s->computed, batch, e);
}

/* Decides the next batch of a prompt, and makes room for it. */
static gm_status begin_batch(gm_session *s, error *e) {
    decoder_leave(s); /* its draws were for tokens that this batch computes */
    batch_sizes *sizes = &s->engine->batches;
    size_t       batch = next_batch(s, runner_batch(&s->run));
    error        none = { 0 };
    if (batch > KV_BATCH && sizes->now > KV_BATCH && make_room(s, batch, &none)) { /* no memory for wider rings */
        batch_sizes_stay_small(sizes);
        batch = next_batch(s, KV_BATCH);
    }
    TRY(make_room(s, batch, e));
    s->running = batch;
    kv_written(&s->kv, s->computed + batch); /* already now: a run that is dropped halfway has written, too */
    return GM_OK;
}

record_sequence session_sequence(const gm_session *s) {
    record_sequence sequence = kv_sequence(&s->kv);
    sequence.adapter = s->adapters;
    return sequence;
}

/* The next `batch` tokens; make_room comes first. */
static run_inputs inputs_of(gm_session *s, size_t batch) {
    const record_sequence sequence = session_sequence(s);
    records_of_text(s->records, 0, &sequence, s->tokens.ids + s->computed, s->computed, batch);
    return (run_inputs){ .records = s->records,
                         .tokens = batch,
                         .given = soft_mark(&s->soft, s->records, s->computed, batch,
                                            s->engine->weights.config.whole_blocks) };
}

/* One batch of held tokens; the last token held gives logits. */
static gm_status compute_batch(gm_session *s, double deadline, error *e) {
    if (!s->running) TRY(begin_batch(s, e));
    const int32_t last = (int32_t)s->running - 1;
    run_inputs    in = inputs_of(s, s->running);
    in.output_rows = &last;
    in.outputs = s->computed + s->running == s->tokens.count;
    const gm_status status = runner_step(&s->run, s->kv.store, &in, s->logits, deadline, e);
    if (status) return status;
    s->computed += s->running;
    s->running = 0;
    if (s->computed == s->branch) kv_add_mark(&s->kv, s->branch);
    if (!in.outputs) return GM_OK;
    s->has_logits = true;
    return check_finite(s, s->logits, e);
}

gm_status session_compute(gm_session *s, double deadline, error *e) {
    if (!s->running) session_find_prefix(s);
    if (s->computed < s->tokens.count && decoder_keep_up(s, deadline))
        deadline = fmax(deadline, clock_seconds() + s->engine->turn_seconds / 2); /* the prompt goes on, too */
    while (s->computed < s->tokens.count) {
        if (atomic_exchange(&s->cancelled, false)) {
            session_forget_uncomputed(s);
            return fail(e, GM_CANCELLED, "cancelled at token %zu", s->computed);
        }
        const gm_status status = compute_batch(s, deadline, e);
        if (status == GM_AGAIN) return GM_AGAIN;
        if (status) {
            if (status == GM_NO_MEMORY) batch_sizes_stay_small(&s->engine->batches); /* the next attempt takes less */
            session_forget_uncomputed(s);
            s->has_logits = false;
            return status;
        }
        if (s->computed < s->tokens.count && clock_seconds() > deadline) return GM_AGAIN;
    }
    return GM_OK;
}

/* ---- tokens held --------------------------------------------------------------------------------------------------- */

static gm_status check_room(const gm_session *s, size_t n, size_t held, error *e) {
    if (n <= s->kv.context - held) return GM_OK;
    char context[32], used[32], more[32];
    with_commas(s->kv.context, context), with_commas(held, used), with_commas(n, more);
    if (!held) return fail(e, GM_CONTEXT_FULL, "the prompt has %s tokens; the context holds %s", more, context);
    return fail(e, GM_CONTEXT_FULL, "the context is full: %s of %s tokens are in use, and there is no room for %s more",
                used, context, more);
}

static gm_status check_tokens(const gm_session *s, const int32_t *tokens, size_t n, size_t held, error *e) {
    const uint32_t vocabulary = s->engine->weights.config.vocabulary;
    if (n && !tokens) return fail(e, GM_BAD_ARGUMENT, "n is %zu, but tokens is NULL", n);
    TRY(check_room(s, n, held, e));
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocabulary) {
            return fail(e, GM_BAD_ARGUMENT, "token %zu is %d, but the vocabulary has ids from 0 to %u", i, tokens[i],
                        vocabulary - 1);
        }
    }
    return GM_OK;
}

gm_status session_hold(gm_session *s, int32_t token, error *e) {
    TRY(check_tokens(s, &token, 1, s->tokens.count, e));
    token_list_add(&s->tokens, token);
    if (s->tokens.failed) {
        s->tokens.failed = false;
        return fail_memory(e, "the tokens", (s->tokens.count + 1) * sizeof token);
    }
    s->has_logits = false;
    return GM_OK;
}

static gm_status hold_all(gm_session *s, const int32_t *tokens, size_t n, error *e) {
    const size_t before = s->tokens.count;
    TRY(check_tokens(s, tokens, n, before, e));
    for (size_t i = 0; i < n; i++) {
        const gm_status status = session_hold(s, tokens[i], e);
        if (!status) continue;
        s->tokens.count = before;
        return status;
    }
    return GM_OK;
}

static gm_status check_image(const gm_session *s, size_t n, bool image, error *e) {
    if (!n) return fail(e, GM_BAD_ARGUMENT, "an image or a sound must have at least one token");
    if (image && s->engine->weights.config.image_blocks && n > SESSION_MOST_IMAGE)
        return fail(e, GM_BAD_ARGUMENT,
                    "an image of %zu tokens is too large: its tokens see each other and are computed in one batch, "
                    "which holds at most %d",
                    n, SESSION_MOST_IMAGE);
    return GM_OK;
}

/* `digest`: NULL, or what identifies the rows. */
static gm_status hold_rows(gm_session *s, int32_t id, const float *rows, size_t n, bool block, const uint8_t *digest,
                           error *e) {
    const size_t before = s->tokens.count;
    gm_status    status = GM_OK;
    for (size_t i = 0; i < n && !status; i++) status = session_hold(s, id, e);
    if (!status) status = soft_add(&s->soft, before, rows, n, s->engine->weights.config.width, block, digest, e);
    if (status) s->tokens.count = before;
    return status;
}

gm_status session_hold_soft(gm_session *s, int32_t id, const float *rows, size_t n, bool image, error *e) {
    TRY(session_check_free(s, e));
    TRY(check_image(s, n, image, e));
    TRY(check_room(s, n, s->tokens.count, e));
    session_release(s);
    return hold_rows(s, id, rows, n, image && s->engine->weights.config.image_blocks, NULL, e);
}

void session_go_back(gm_session *s, size_t keep) {
    s->computed = kv_rollback(&s->kv, keep);
    s->restored = min_size(s->restored, s->computed);
}

void session_forget_soft(gm_session *s) {
    const size_t keep = soft_first(&s->soft, s->tokens.count);
    if (keep == s->tokens.count) return;
    s->tokens.count = keep;
    s->has_logits = false;
    soft_truncate(&s->soft, keep);
    if (keep < s->computed) session_go_back(s, keep);
}

gm_status session_rollback(gm_session *s, size_t keep, size_t *recompute, error *e) {
    TRY(session_check_free(s, e));
    if (keep > s->tokens.count) {
        return fail(e, GM_BAD_ARGUMENT, "cannot keep %zu tokens: the session holds %zu", keep, s->tokens.count);
    }
    const soft_span *cut = soft_block_around(&s->soft, keep);
    if (cut) {
        return fail(e, GM_BAD_ARGUMENT, "cannot keep %zu tokens: tokens %zu to %zu are an image, which cannot be cut",
                    keep, cut->begin, cut->begin + cut->count - 1);
    }
    session_release(s);
    if (keep < s->tokens.count) s->has_logits = false;
    s->tokens.count = keep;
    soft_truncate(&s->soft, keep);
    if (keep < s->computed) session_go_back(s, keep);
    if (!s->computed && !s->soft.span_count) s->foreign = false;
    if (recompute) *recompute = keep - s->computed;
    return GM_OK;
}

/* Ends a call of set or append: remembers that it goes on, or that it is over. */
static gm_status finish_turn(gm_session *s, size_t from, error *e) {
    const gm_status status = session_compute(s, engine_deadline(s->engine), e);
    s->pending = status == GM_AGAIN;
    s->pending_from = from;
    return status;
}

gm_status session_check_free(gm_session *s, error *e) {
    if (s->pending && atomic_exchange(&s->cancelled, false)) session_forget_uncomputed(s);
    if (!s->pending) return GM_OK;
    return fail(e, GM_BUSY,
                "another call on this session returned GM_AGAIN and has not finished: repeat that one, or cancel it");
}

/* Whether this repeats the pending call, which was given the tokens held from pending_from on. */
static bool tokens_go_on(const gm_session *s, const int32_t *tokens, size_t n) {
    if (!s->pending || n != s->tokens.count - s->pending_from || (n && !tokens)) return false;
    return !n || !memcmp(s->tokens.ids + s->pending_from, tokens, n * sizeof *tokens);
}

static bool prompt_has_soft(const session_prompt *p) { return p->soft && p->soft->span_count; }

/* Refuses the tokens of a picture or a sound that the session does not hold: they would be computed as text. A soft token that stands alone is
 * text: pictures have many, and so do sounds but for a click. */
static gm_status session_check_soft(const gm_session *s, const session_prompt *p, size_t from, error *e) {
    static const struct {
        special_token begin, soft;
        const char   *name;
    } kinds[] = { { SPECIAL_IMAGE, SPECIAL_IMAGE_SOFT, "picture" },
                  { SPECIAL_IMAGE, SPECIAL_VIDEO_SOFT, "frame of a video" },
                  { SPECIAL_AUDIO, SPECIAL_AUDIO_SOFT, "sound" } };
    if (prompt_has_soft(p)) return GM_OK;
    for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        const int32_t begin = tokenizer_special(s->engine->words, kinds[kind].begin);
        const int32_t soft = tokenizer_special(s->engine->words, kinds[kind].soft);
        for (size_t i = max_size(from, 1); soft >= 0 && i < p->count; i++) {
            const int32_t before = p->tokens[i - 1];
            const bool    first = before == begin && i + 1 < p->count && p->tokens[i + 1] == soft;
            if (p->tokens[i] != soft || !(first || (i == from && before == soft))) continue;
            return fail(e, GM_BAD_ARGUMENT,
                        "token %zu stands for a %s that the session does not hold, and tokens alone cannot bring it "
                        "back: reply to the messages that contain it, or restore a snapshot",
                        i, kinds[kind].name);
        }
    }
    return GM_OK;
}

gm_status session_append(gm_session *s, const int32_t *tokens, size_t n, error *e) {
    if (tokens_go_on(s, tokens, n)) return finish_turn(s, s->pending_from, e);
    TRY(session_check_free(s, e));
    const size_t before = s->tokens.count;
    TRY(check_tokens(s, tokens, n, before, e));
    TRY(session_check_soft(s, &(session_prompt){ .tokens = tokens, .count = n }, 0, e));
    session_release(s);
    TRY(hold_all(s, tokens, n, e));
    return finish_turn(s, before, e);
}

/* Tokens alone do not say which picture they stand for. Those that the session already holds stand for its own. */
size_t session_common(const gm_session *s, const session_prompt *p) {
    const soft_tokens *soft = prompt_has_soft(p) ? p->soft : &s->soft;
    const size_t       most = min_size(p->count, s->tokens.count);
    size_t             common = 0;
    while (common < most && p->tokens[common] == s->tokens.ids[common]) common++;
    common = soft_common(&s->soft, soft, common);
    for (size_t i = 0; i < soft->span_count; i++) {
        const soft_span *span = &soft->spans[i];
        if (span->begin < common && common < span->begin + span->count) return span->begin;
    }
    return common;
}

gm_status session_check_prompt(const gm_session *s, const session_prompt *p, error *e) {
    if (!p->count) return fail(e, GM_BAD_ARGUMENT, "there are no tokens to compute");
    return check_tokens(s, p->tokens, p->count, 0, e);
}

/* Holds the prompt from `from` on, which is not inside a picture or a sound. */
static gm_status session_hold_prompt(gm_session *s, const session_prompt *p, size_t from, error *e) {
    for (size_t i = 0; p->soft && i < p->soft->span_count; i++) {
        const soft_span *span = &p->soft->spans[i];
        if (span->begin < from) continue;
        if (!p->rows[i])
            return fail(e, GM_BAD_ARGUMENT, "the session no longer holds a picture or sound of this prompt");
        TRY(hold_all(s, p->tokens + from, span->begin - from, e));
        TRY(hold_rows(s, p->tokens[span->begin], p->rows[i], span->count, span->block, span->digest, e));
        from = span->begin + span->count;
    }
    return hold_all(s, p->tokens + from, p->count - from, e);
}

/* Whether this repeats the pending call. */
static bool prompt_goes_on(const gm_session *s, const session_prompt *p) {
    return !s->pending_from && tokens_go_on(s, p->tokens, p->count) && session_common(s, p) == p->count;
}

gm_status session_set_prompt(gm_session *s, const session_prompt *p, error *e) {
    if (prompt_goes_on(s, p)) return finish_turn(s, 0, e);
    TRY(session_check_free(s, e));
    TRY(session_check_prompt(s, p, e));
    size_t common = session_common(s, p);
    if (common == p->count && common == s->tokens.count && s->has_logits) return GM_OK;
    if (common == p->count) common = session_batch_begin(s, common - 1);
    TRY(session_check_soft(s, p, common, e));
    TRY(session_rollback(s, common, NULL, e));
    s->foreign = s->foreign || p->foreign;
    if (s->computed == common)
        kv_add_mark(&s->kv, common); /* a turn of the chat starts here, and people often come back to one */
    const gm_status status = session_hold_prompt(s, p, common, e);
    if (status) { /* as far as it was held before */
        s->tokens.count = common;
        soft_truncate(&s->soft, common);
        return status;
    }
    return finish_turn(s, 0, e);
}

gm_status session_set(gm_session *s, const int32_t *tokens, size_t n, error *e) {
    return session_set_prompt(s, &(session_prompt){ .tokens = tokens, .count = n }, e);
}

/* Computes one batch with the logits of each token. If a run cannot give that many, the batch runs several times. */
static gm_status logits_of_batch(gm_session *s, size_t batch, size_t most, float *out, error *e) {
    const size_t vocabulary = s->engine->weights.config.vocabulary;
    int32_t      rows[KV_BATCH];
    run_inputs   in = inputs_of(s, batch);
    in.output_rows = rows;
    for (size_t done = 0; done < batch; done += in.outputs) {
        float *to = out + done * vocabulary;
        in.outputs = min_size(batch - done, most);
        for (size_t i = 0; i < in.outputs; i++) rows[i] = (int32_t)(done + i);
        gm_status status;
        while ((status = runner_step(&s->run, s->kv.store, &in, to, engine_deadline(s->engine), e)) == GM_AGAIN) {}
        TRY(status);
        TRY(check_finite(s, to + (in.outputs - 1) * vocabulary, e));
    }
    return GM_OK;
}

gm_status session_logits_held(gm_session *s, float *out, error *e) {
    const size_t vocabulary = s->engine->weights.config.vocabulary, most = runner_most_outputs(&s->run),
                 n = s->tokens.count;
    if (!n) return fail(e, GM_BAD_ARGUMENT, "there are no tokens to compute");
    session_release(s);
    session_go_back(s, 0);
    gm_status status = GM_OK;
    while (!status && s->computed < n) {
        const size_t batch = next_batch(s, most);
        status = make_room(s, batch, e);
        if (status) break;
        kv_written(&s->kv, s->computed + batch);
        status = logits_of_batch(s, batch, most, out + s->computed * vocabulary, e);
        if (!status) s->computed += batch;
    }
    if (!status) memcpy(s->logits, out + (n - 1) * vocabulary, vocabulary * sizeof *out);
    else session_forget_uncomputed(s);
    s->has_logits = !status;
    return status;
}

gm_status session_logits_all(gm_session *s, const int32_t *tokens, size_t n, float *out, error *e) {
    TRY(session_rollback(s, 0, NULL, e));
    TRY(hold_all(s, tokens, n, e));
    return session_logits_held(s, out, e);
}

/* ---- public functions ------------------------------------------------------------------------------------------------ */

gm_status gm_session_set(gm_session *s, const int32_t *tokens, size_t n, char *why, size_t why_size) {
    error e = { 0 };
    engine_enter(s->engine);
    const gm_status status = session_set(s, tokens, n, &e);
    engine_leave(s->engine);
    return status == GM_AGAIN ? GM_AGAIN : error_report(&e, why, why_size);
}

gm_status gm_session_append(gm_session *s, const int32_t *tokens, size_t n, char *why, size_t why_size) {
    error e = { 0 };
    engine_enter(s->engine);
    const gm_status status = session_append(s, tokens, n, &e);
    engine_leave(s->engine);
    return status == GM_AGAIN ? GM_AGAIN : error_report(&e, why, why_size);
}

gm_status gm_session_rollback(gm_session *s, size_t keep, size_t *recompute, char *why, size_t why_size) {
    error e = { 0 };
    engine_enter(s->engine);
    session_rollback(s, keep, recompute, &e);
    engine_leave(s->engine);
    return error_report(&e, why, why_size);
}

static gm_status sample_and_explain(gm_session *s, const gm_sampling *sampling, gm_token_logprob *chosen,
                                    gm_token_logprob *top, size_t top_count, error *e) {
    int32_t token;
    TRY(session_check_free(s, e));
    const gm_status status = session_want_logits(s, engine_deadline(s->engine), e);
    if (status || session_sample(s, sampling ? sampling : &s->engine->sampling, &token, e)) return status;
    sampler_logprobs(s->chooser, s->logits, token, chosen, top, top ? top_count : 0);
    return GM_OK;
}

gm_status gm_session_sample(gm_session *s, const gm_sampling *sampling, gm_token_logprob *chosen, gm_token_logprob *top,
                            size_t top_count, char *why, size_t why_size) {
    error e = { 0 };
    if (s->engine->denoiser) {
        fail(&e, GM_UNSUPPORTED, "a diffusion model does not draw one token after another: let a reply write");
        return error_report(&e, why, why_size);
    }
    engine_enter(s->engine);
    const gm_status status = sample_and_explain(s, sampling, chosen, top, top_count, &e);
    engine_leave(s->engine);
    return status == GM_AGAIN ? GM_AGAIN : error_report(&e, why, why_size);
}
