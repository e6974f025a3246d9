#include "session/decoder_gpu.h"

#include "base/clock.h"
#include "session/drawing.h"

#include <stdlib.h>

enum {
    ROW_DRAWS = 2 * GENERATOR_STEPS, /* a row that is a little late stays in the steps */
    CLASSES = 5,                     /* generators for 2 << class rows */
    NO_PLACE = GENERATOR_ROWS,
    SHRINK_STEPS = 16, /* after so many steps with too many rows a smaller generator takes over */
    PATIENCE = 32      /* a row counts until the others have asked so many times each */
};

typedef struct {
    sampler_record record;
    double         seconds; /* that its step took */
} gpu_draw;

typedef struct {
    gm_session *session;  /* NULL: the row is free */
    gm_sampling sampling; /* its bias is the caller's, who leaves before freeing it */
    bool        logprobs;
    size_t      alternatives;
    size_t      left; /* draws that the session may still want, counted from the last one taken */
    int32_t  token; /* the last one taken, or the one to begin with; the row goes on only while the session holds it */
    gpu_draw draws[ROW_DRAWS];
    size_t   first, count; /* of the draws not taken, which are a ring */
    size_t   pending;      /* draws that are on their way */
    size_t   place;        /* in the generator; NO_PLACE: it takes no part */
    bool     over;         /* the last draw ends the row */
    bool     asks;         /* its session draws here, and has nothing under way elsewhere */
    uint64_t asked;        /* gpu_decoder.asked, when it last asked */
    uint32_t epoch;        /* draws of earlier epochs are discarded */
} gpu_row;

/* A step on its way. */
typedef struct {
    uint32_t places; /* a bit for each that is taken */
    struct {
        uint32_t row, epoch;
    } at[GENERATOR_ROWS];
    double began;
} gpu_flight;

struct gpu_decoder {
    gm_engine     *engine;
    kv_store      *store;
    gpu_generator *generators[CLASSES];
    size_t         contexts[CLASSES]; /* that they have room for */
    size_t class;                     /* the generator in use; CLASSES: none yet */
    bool       adapted;               /* it has the plans for adapters; only then can rows with adapters join */
    size_t     too_large;             /* steps in a row for which a smaller one would do */
    uint32_t   moves;                 /* of the store, when the rows joined */
    gpu_row    rows[GENERATOR_ROWS];
    size_t     count;                    /* of rows that are taken */
    uint64_t   asked;                    /* how often sessions have asked */
    gpu_flight flights[GENERATOR_STEPS]; /* a ring */
    size_t     oldest, flying;
    size_t     calm;    /* steps since a row came or went: the first one waits for those on their way */
    double     arrived; /* when the last step's draws came */
    size_t     tried;   /* the class of the generator made last */
    size_t
        unable; /* there was no memory for a generator of this class: so many sessions draw alone; CLASSES: there was */
    bool               waiting; /* a step's shaders compile: sessions draw alone until then */
    gpu_decoder_totals totals;
};

/* ---- life ---- */

gm_status gpu_decoder_new(gm_engine *engine, kv_store *store, gpu_decoder **out, error *e) {
    gpu_decoder *d = *out = calloc(1, sizeof *d);
    if (!d) return fail_memory(e, "the decoder", sizeof *d);
    d->engine = engine;
    d->store = store;
    d->class = d->unable = CLASSES;
    for (size_t i = 0; i < GENERATOR_ROWS; i++) d->rows[i].place = NO_PLACE;
    return GM_OK;
}

void gpu_decoder_free(gpu_decoder *d) {
    for (size_t i = 0; d && i < CLASSES; i++) gpu_generator_free(d->generators[i]);
    free(d);
}

gpu_decoder_totals gpu_decoder_count(const gpu_decoder *d) { return d->totals; }

/* ---- rows ---- */

static gpu_row *gpu_row_of(gpu_decoder *d, const gm_session *s) {
    for (size_t i = 0; i < GENERATOR_ROWS; i++) {
        if (d->rows[i].session == s) return &d->rows[i];
    }
    return NULL;
}

size_t gpu_decoder_drawn(gpu_decoder *d, const gm_session *s) {
    const gpu_row *row = gpu_row_of(d, s);
    return row ? row->count + row->pending : 0;
}

/* Takes the row out of the generator. Draws on their way still arrive. */
static gm_status gpu_row_unplace(gpu_decoder *d, gpu_row *row, error *e) {
    const size_t place = row->place;
    if (place == NO_PLACE) return GM_OK;
    row->place = NO_PLACE;
    d->calm = 0;
    return gpu_generator_leave(d->generators[d->class], place, e);
}

/* Forgets what the row has drawn and what is on its way. */
static void gpu_row_reset(gpu_decoder *d, gpu_row *row) {
    error ignored = { 0 }; /* a lost GPU is reported to whoever draws next */
    gpu_row_unplace(d, row, &ignored);
    row->over = row->asks = false;
    row->first = row->count = row->pending = 0;
    row->epoch++;
}

/* Forgets all steps on their way. The rows begin again where their sessions are. */
static void gpu_decoder_reset(gpu_decoder *d) {
    if (d->class < CLASSES) gpu_generator_drop(d->generators[d->class]);
    d->flying = 0;
    for (size_t i = 0; i < GENERATOR_ROWS; i++) {
        d->rows[i].place = NO_PLACE;
        if (d->rows[i].session) gpu_row_reset(d, &d->rows[i]);
    }
}

void gpu_decoder_leave(gpu_decoder *d, const gm_session *s) {
    gpu_row *row = d ? gpu_row_of(d, s) : NULL;
    if (!row) return;
    gpu_row_reset(d, row);
    row->session = NULL;
    d->count--;
}

/* Whether the row's session still asks. One that stopped asking in the middle of an answer does not slow down the others. */
static bool gpu_row_is_present(const gpu_decoder *d, const gpu_row *row) {
    return row->session && d->asked - row->asked <= (uint64_t)PATIENCE * d->count;
}

void gpu_decoder_forget_adapters(gpu_decoder *d) {
    if (!d) return;
    gpu_decoder_reset(d);
    for (size_t i = 0; i < CLASSES; i++) {
        gpu_generator_free(d->generators[i]);
        d->generators[i] = NULL;
    }
    d->class = CLASSES;
}

bool gpu_decoder_is_shared(const gpu_decoder *d) {
    size_t present = 0;
    for (size_t i = 0; d && d->count > 1 && i < GENERATOR_ROWS; i++) present += gpu_row_is_present(d, &d->rows[i]);
    return present > 1;
}

/* Whether the session wants what the row draws. */
static bool gpu_row_goes_on(const gpu_row *row) {
    const gm_session *s = row->session;
    return s->computed + 1 == s->tokens.count && s->tokens.ids[s->computed] == row->token;
}

static bool gpu_row_fits(const gpu_row *row, const draw_wish *wish) {
    return gpu_row_goes_on(row) && !(row->over && !row->count) && row->logprobs == (wish->logprobs != NULL) &&
           row->alternatives == wish->alternatives && sampling_equal(&row->sampling, wish->sampling);
}

/* The class for all rows whose sessions ask, the longest context among them, and whether some have adapters. */
static size_t gpu_decoder_class(const gpu_decoder *d, size_t *context, bool *adapted) {
    size_t rows = 0, class = 0;
    *context = 1;
    *adapted = false;
    for (size_t i = 0; i < GENERATOR_ROWS; i++) {
        if (!gpu_row_is_present(d, &d->rows[i])) continue;
        *context = max_size(*context, d->rows[i].session->kv.context);
        *adapted = *adapted || d->rows[i].session->adapters;
        rows++;
    }
    while ((size_t)2 << class < rows) class ++;
    return class;
}

/* Whether sessions can draw together. */
static bool gpu_decoder_is_able(gpu_decoder *d) {
    size_t context;
    bool   adapted;
    d->waiting = d->waiting && gpu_pipelines_pending(d->engine->gpu.host);
    return !d->waiting && gpu_decoder_class(d, &context, &adapted) < d->unable;
}

bool gpu_decoder_wants(gpu_decoder *d, gm_session *s, const draw_wish *wish) {
    gpu_row *row = gpu_row_of(d, s);
    if (d->engine->gpu.experts) return false; /* several sessions want more experts than one: each draws alone */
    if (!row && !(row = gpu_row_of(d, NULL))) return false;
    if (!row->session) {
        gpu_row_reset(d, row);
        row->session = s;
        d->count++;
    } else if (!gpu_row_fits(row, wish)) gpu_row_reset(d, row);
    row->asked = ++d->asked;
    row->sampling = *wish->sampling;
    row->logprobs = wish->logprobs != NULL;
    row->alternatives = wish->alternatives;
    row->left = max_size(wish->most, 1);
    row->token = s->tokens.ids[s->computed];
    if (row->count || row->pending || (gpu_decoder_is_able(d) && gpu_decoder_is_shared(d))) return true;
    gpu_row_reset(d, row);
    return false;
}

/* ---- the generator ---- */

static size_t gpu_row_position(const gpu_row *row) { return row->session->computed + row->count + row->pending; }

/* Whether the row has room for one more draw. */
static bool gpu_row_wants(const gpu_decoder *d, const gpu_row *row) {
    return row->session && row->asks && !row->over && gpu_row_goes_on(row) && gpu_decoder_is_shared(d) &&
           row->count + row->pending < min_size(row->left, ROW_DRAWS) &&
           gpu_row_position(row) < row->session->kv.context;
}

/* Makes the generator, if it is not there, and binds its plan: other sessions may have made the buffers grow. If the generator in use is
 * made anew, because somebody has borrowed its plan, its rows begin again where their sessions are, and no class is in use. */
static gm_status gpu_decoder_prepare(gpu_decoder *d, size_t class, size_t context, error *e) {
    const size_t    rows = (size_t)2 << class;
    const plan_wish wish = { .g = engine_adapters_graph(d->engine, d->adapted),
                             .tokens = rows,
                             .outputs = rows,
                             .most_outputs = rows,
                             .kv = d->store->gpu_layers,
                             .rows = true };
    gm_status       status = d->adapted ? engine_adapters_ready(d->engine, PART_TEXT, e) : GM_OK;
    if (status) return status;
    shared_plan    *plan = runner_borrow(d->engine, &wish, e);
    gpu_generator **g = &d->generators[class];
    if (!plan) return e->status;
    if (!*g || context > d->contexts[class] || !gpu_generator_uses(*g, plan->gpu)) {
        if (class == d->class) gpu_decoder_reset(d);
        if (class == d->class) d->class = CLASSES;
        gpu_generator_free(*g);
        *g = NULL;
        status = gpu_generator_new(plan->gpu, d->engine->weights.config.vocabulary, context, g, e);
        d->contexts[class] = context;
    }
    plans_return(plan); /* steps are submitted whole */
    return status;
}

/* Chooses the generator for the next step. GM_BUSY: the steps in flight end first. */
static gm_status gpu_decoder_choose(gpu_decoder *d, error *e) {
    bool         adapted;
    size_t       context, class = gpu_decoder_class(d, &context, &adapted);
    const size_t now = d->class;
    d->too_large = now < CLASSES && class < now ? d->too_large + 1 : 0;
    if (now < CLASSES && (class == now || (class < now && d->too_large < SHRINK_STEPS)) &&
        context <= d->contexts[now] && adapted == d->adapted)
        return GM_OK;
    if (d->flying) return GM_BUSY;
    if (now < CLASSES) gpu_generator_drop(d->generators[now]);
    for (size_t i = 0; i < GENERATOR_ROWS; i++) d->rows[i].place = NO_PLACE;
    d->class = CLASSES;
    d->adapted = adapted;
    d->too_large = 0;
    d->tried = class;
    const gm_status status = gpu_decoder_prepare(d, class, context, e);
    if (!status) d->class = class;
    return status;
}

/* ---- steps ---- */

/* Lets the row into the generator, with what it has drawn. */
static gm_status gpu_row_place(gpu_decoder *d, gpu_row *row, uint32_t taken, error *e) {
    drawing_start   start;
    const draw_wish wish = { .sampling = &row->sampling, .alternatives = row->alternatives };
    size_t          place = 0;
    while (taken >> place & 1) place++;
    TRY(kv_reserve(&row->session->kv, gpu_row_position(row), 1, e));
    gm_status status = drawing_start_make(row->session, &wish, row->logprobs, row->count, &start, e);
    if (!status) status = gpu_generator_join(d->generators[d->class], place, &start.start, e);
    drawing_start_free(&start);
    if (!status) row->place = place;
    d->calm = 0;
    return status;
}

/* Takes rows that cannot be in the next step out of the generator. Returns in *taken the places of the others. */
static gm_status gpu_decoder_clear(gpu_decoder *d, uint32_t *taken, error *e) {
    const bool moved = d->moves != d->store->moves;
    *taken = 0;
    for (size_t i = 0; i < GENERATOR_ROWS; i++) {
        gpu_row *row = &d->rows[i];
        if (row->place == NO_PLACE) continue;
        if (moved || !gpu_row_wants(d, row) || kv_capacity(&row->session->kv) <= gpu_row_position(row))
            TRY(gpu_row_unplace(d, row, e));
        else *taken |= 1u << row->place;
    }
    d->moves = d->store->moves;
    return GM_OK;
}

/* Gathers the rows of the next step. A row that cannot join is left out; if it is the asker's, that is an error. */
static gm_status gpu_decoder_gather(gpu_decoder *d, const gm_session *asker, uint32_t *taken, error *e) {
    const uint32_t all = (uint32_t)(((uint64_t)1 << ((size_t)2 << d->class)) - 1);
    TRY(gpu_decoder_clear(d, taken, e));
    for (size_t i = 0; i < GENERATOR_ROWS && *taken != all; i++) {
        gpu_row *row = &d->rows[i];
        error    problem = { 0 };
        if (row->place != NO_PLACE || row->pending || !gpu_row_is_present(d, row) || !gpu_row_wants(d, row)) continue;
        const gm_status status = gpu_row_place(d, row, *taken, &problem);
        if (!status) *taken |= 1u << row->place;
        else if (status == GM_AGAIN || row->session == asker)
            return status == GM_AGAIN ? status : fail(e, status, "%s", problem.why);
        else
            row->asks = false; /* its own session hears why; tried again and again, it could move the store each time */
    }
    return d->moves == d->store->moves ? GM_OK : GM_BUSY; /* making room for one may have moved others */
}

/* Notes a step that was submitted. */
static void gpu_decoder_note(gpu_decoder *d) {
    gpu_flight *flight = &d->flights[(d->oldest + d->flying++) % GENERATOR_STEPS];
    *flight = (gpu_flight){ .began = clock_seconds() };
    for (uint32_t i = 0; i < GENERATOR_ROWS; i++) {
        gpu_row *row = &d->rows[i];
        if (row->place == NO_PLACE) continue;
        kv_written(&row->session->kv, gpu_row_position(row) + 1);
        flight->places |= 1u << row->place;
        flight->at[row->place].row = i;
        flight->at[row->place].epoch = row->epoch;
        row->pending++;
        d->totals.tokens++;
    }
    d->totals.steps++;
    d->calm++;
}

/* Submits as many steps as rows have room for. When a row has come or gone, others may follow, so the next steps wait for them. */
static gm_status gpu_decoder_submit(gpu_decoder *d, const gm_session *asker, error *e) {
    while (d->flying < GENERATOR_STEPS && d->flying <= d->calm) {
        uint32_t  taken;
        gm_status status = gpu_decoder_choose(d, e);
        if (status) return status == GM_BUSY ? GM_OK : status;
        while ((status = gpu_decoder_gather(d, asker, &taken, e)) == GM_BUSY) {}
        if (status || !taken) return status;
        status = gpu_decoder_prepare(d, d->class, d->contexts[d->class], e); /* the buffers may have grown */
        if (!status && d->class == CLASSES) return GM_OK; /* rows join when their sessions ask again */
        if (!status) status = gpu_generator_submit(d->generators[d->class], e);
        if (status) return status;
        gpu_decoder_note(d);
    }
    return GM_OK;
}

static void gpu_row_put(gpu_row *row, const sampler_record *draw, double seconds) {
    gm_session  *s = row->session;
    const size_t at = s->computed + 1 + row->count;
    row->draws[(row->first + row->count++) % ROW_DRAWS] = (gpu_draw){ *draw, seconds };
    if (at < s->tokens.capacity)
        s->tokens.ids[at] = (int32_t)draw->token; /* behind those held: joining again looks there */
    row->over = draw->status != SAMPLER_DRAWN || tokenizer_is_stop(s->engine->words, (int32_t)draw->token);
}

/* Takes the draws of the oldest step. */
static gm_status gpu_decoder_take(gpu_decoder *d, error *e) {
    sampler_record  draws[GENERATOR_ROWS];
    const gm_status status = gpu_generator_take(d->generators[d->class], draws, e);
    if (status) return status;
    const gpu_flight *flight = &d->flights[d->oldest];
    const double      now = clock_seconds(), seconds = now - (d->arrived > flight->began ? d->arrived : flight->began);
    for (size_t place = 0; place < GENERATOR_ROWS; place++) {
        gpu_row *row = &d->rows[flight->at[place].row];
        if (!(flight->places >> place & 1) || flight->at[place].epoch != row->epoch || !row->session) continue;
        row->pending--;
        if (!row->over) gpu_row_put(row, &draws[place], seconds);
    }
    d->arrived = now;
    d->oldest = (d->oldest + 1) % GENERATOR_STEPS;
    d->flying--;
    return GM_OK;
}

static gm_status gpu_row_take(gpu_row *row, const draw_wish *wish, int32_t *token, error *e) {
    gm_session     *s = row->session;
    const gpu_draw *draw = &row->draws[row->first];
    row->first = (row->first + 1) % ROW_DRAWS;
    row->count--;
    if (row->left) row->left--;
    row->token = (int32_t)draw->record.token;
    s->step_seconds = draw->seconds;
    return drawing_take(s, wish, &draw->record, token, e);
}

/* Submits steps and takes the draws of the oldest. GM_AGAIN: there is nothing to do but wait. GM_BUSY: sessions draw alone, because
 * there is no memory, or while shaders compile. */
static gm_status gpu_decoder_advance(gpu_decoder *d, const gm_session *asker, error *e) {
    gm_status status = gpu_decoder_submit(d, asker, e);
    if ((!status || status == GM_AGAIN) && d->flying) status = gpu_decoder_take(d, e);
    else if (status == GM_AGAIN) d->waiting = gpu_pipelines_pending(d->engine->gpu.host);
    if (!status_failed(status) && !d->waiting) return status;
    const bool unable = status == GM_NO_MEMORY && d->class == CLASSES;
    if (unable) d->unable = min_size(d->unable, d->tried);
    gpu_decoder_reset(d);
    return d->waiting || unable ? GM_BUSY : status;
}

gm_status gpu_decoder_next(gpu_decoder *d, gm_session *s, const draw_wish *wish, int32_t *token, double deadline,
                           error *e) {
    gpu_row *row = gpu_row_of(d, s);
    token_list_reserve(&s->tokens, s->tokens.count + ROW_DRAWS + 1);
    if (s->tokens.failed) {
        s->tokens.failed = false;
        return fail_memory(e, "the tokens", (s->tokens.count + ROW_DRAWS + 1) * sizeof *token);
    }
    row->asks = true;
    for (;;) {
        if (atomic_exchange(&s->cancelled, false)) return fail(e, GM_CANCELLED, "cancelled at token %zu", s->computed);
        if (row->count) return gpu_row_take(row, wish, token, e);
        if (!row->pending && !gpu_row_wants(d, row)) return GM_BUSY;
        const gm_status status = gpu_decoder_advance(d, s, e);
        if (status && status != GM_AGAIN) return status;
        if (status && !runner_wait(d->engine->gpu.host, deadline)) return GM_AGAIN;
    }
}

void gpu_decoder_keep_up(gpu_decoder *d, const gm_session *s) {
    error ignored = { 0 };
    bool  due = false;
    for (size_t i = 0; d && i < GENERATOR_ROWS; i++) {
        const gpu_row *row = &d->rows[i];
        due = due || (row->session != s && !row->count && !row->pending && gpu_row_wants(d, row));
    }
    if (due) gpu_decoder_submit(d, s, &ignored);
}
