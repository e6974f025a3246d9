/* Training as a job: the same losses however steps are divided and wherever they were interrupted, early and late ends, preference pairs,
 * and what is refused. What a step computes is test_train.c's part. */

#include "sessions.h"
#include "train/training_parts.h"

#include <math.h>
#include <stdlib.h>

static const char tiny_dense[] = "tests/fixtures/tiny-dense.gguf";

enum { MOST_STEPS = 64 };

/* Twelve short examples; the model of the test can read them, no more. */
static const char chats[] = "{\"prompt\": \"Name a fox.\", \"completion\": \"Rusty\"}\n"
                            "{\"prompt\": \"Name a cat.\", \"completion\": \"Tom is a good name for a cat.\"}\n"
                            "{\"prompt\": \"One and one?\", \"completion\": \"Two\"}\n"
                            "{\"prompt\": \"Two and one?\", \"completion\": \"Three\"}\n"
                            "{\"prompt\": \"Where do whales live?\", \"completion\": \"In the sea.\"}\n"
                            "{\"prompt\": \"Where do bears live?\", \"completion\": \"In the woods, and in zoos.\"}\n"
                            "{\"prompt\": \"Spell fox.\", \"completion\": \"f o x\"}\n"
                            "{\"prompt\": \"Spell cat.\", \"completion\": \"c a t\"}\n"
                            "{\"prompt\": \"Say hello.\", \"completion\": \"Hello! How are you today?\"}\n"
                            "{\"prompt\": \"Say bye.\", \"completion\": \"Bye\"}\n"
                            "{\"prompt\": \"Is water wet?\", \"completion\": \"Yes.\"}\n"
                            "{\"prompt\": \"Is fire cold?\", \"completion\": \"No, it is hot.\"}\n";
static const char pairs[] =
    "{\"prompt\": \"Name a fox.\", \"chosen\": \"Rusty\", \"rejected\": \"No\"}\n"
    "{\"prompt\": \"Say hello.\", \"chosen\": \"Hello!\", \"rejected\": \"Go away from here\"}\n"
    "{\"prompt\": \"One and one?\", \"chosen\": \"Two\", \"rejected\": \"Three\"}\n"
    "{\"prompt\": \"Is fire cold?\", \"chosen\": \"No, it is hot.\", \"rejected\": \"Yes\"}\n";

static gm_training_options training_of(const char *text) {
    return (gm_training_options){ .data = text,
                                  .data_size = strlen(text),
                                  .data_name = "chats.jsonl",
                                  .rank = 4,
                                  .alpha = 6, /* no power of two */
                                  .epochs = 2,
                                  .batch = 4,
                                  .rate = 5e-3,
                                  .seed = 3 };
}

static gm_training *open_training(gm_engine *engine, const gm_training_options *o) {
    gm_training *t = NULL;
    if (engine) CHECK_MESSAGE(!gm_training_new(engine, o, &t, why, sizeof why), "%s", why);
    return t;
}

typedef struct {
    double            losses[MOST_STEPS], norms[MOST_STEPS], rates[MOST_STEPS];
    uint64_t          steps;
    double            evals[MOST_STEPS];
    size_t            eval_count, kept, data, started;
    gm_training_event last;
    gm_status         status;
} curve;

/* Trains to the end, or until so many steps are done; 0: to the end. */
static void train_until(gm_training *t, uint64_t until, curve *c) {
    gm_training_event event = { 0 };
    while (t) {
        c->status = gm_training_next(t, &event, why, sizeof why);
        c->last = event;
        if (c->status == GM_AGAIN) continue;
        if (c->status) break;
        c->data += event.kind == GM_TRAINING_DATA;
        c->started += event.kind == GM_TRAINING_START;
        c->kept += event.kind == GM_TRAINING_KEPT;
        if (event.kind == GM_TRAINING_EVALUATION && c->eval_count < MOST_STEPS)
            c->evals[c->eval_count++] = event.eval_loss;
        if (event.kind != GM_TRAINING_STEP || event.step > MOST_STEPS) continue;
        c->losses[event.step - 1] = event.loss;
        c->norms[event.step - 1] = event.norm;
        c->rates[event.step - 1] = event.rate;
        c->steps = event.step;
        if (event.step == until) break;
    }
}

static curve train_all(gm_engine *engine, const gm_training_options *o) {
    curve        c = { 0 };
    gm_training *t = open_training(engine, o);
    train_until(t, 0, &c);
    CHECK_MESSAGE(c.status == GM_DONE, "%s", why);
    gm_training_free(t);
    return c;
}

static void test_divisions(gm_engine *engine) {
    TEST("a step is the same in one run and in many");
    gm_training_options o = training_of(chats);
    o.clip = -1; /* or all gradients would have the norm 1 */
    const curve first = train_all(engine, &o);
    CHECK(first.steps == 6 && first.data == 1 && first.started == 1 && first.last.end == GM_TRAINING_COMPLETE);
    CHECK(first.losses[5] < first.losses[0]);
    for (uint32_t batch = 1; batch < 4; batch *= 2) {
        o.batch = batch;
        o.accumulate = 4 / batch;
        const curve other = train_all(engine, &o);
        CHECK(other.steps == 6);
        for (size_t i = 0; i < 6; i++) {
            CHECK_MESSAGE(fabs(other.losses[i] - first.losses[i]) < 1e-4 * first.losses[i] &&
                              fabs(other.norms[i] - first.norms[i]) < 1e-3 * first.norms[i],
                          "batch %u, step %zu: %.9g, expected %.9g; norm %.9g, expected %.9g", batch, i,
                          other.losses[i], first.losses[i], other.norms[i], first.norms[i]);
        }
    }
}

/* The rates are the schedule's; clipping does not change the norm that is told. */
static void test_settings(gm_engine *engine) {
    TEST("schedules, warm-up and clipping");
    gm_training_options o = training_of(chats);
    o.schedule = "linear";
    o.warmup = 2;
    const curve linear = train_all(engine, &o);
    CHECK(linear.rates[0] == 2.5e-3 && linear.rates[1] == 5e-3 && linear.rates[2] == 5e-3);
    CHECK(fabs(linear.rates[5] - 1.25e-3) < 1e-12);
    o.warmup = -1;
    o.schedule = "constant";
    o.clip = 1e-3;
    const curve clipped = train_all(engine, &o);
    CHECK(clipped.rates[0] == 5e-3 && clipped.rates[5] == 5e-3 && clipped.norms[0] == linear.norms[0]);
    o.max_steps = 4;
    CHECK(train_all(engine, &o).steps == 4);
}

static const float *training_adapter(gm_training *t, void **bytes, size_t *size) {
    CHECK_MESSAGE(!gm_training_adapter_buffer(t, bytes, size, NULL, NULL, why, sizeof why), "%s", why);
    return *bytes;
}

/* Everything that is drawn and remembered takes part: dropout, evaluations with patience, LoRA+, decay. */
static void test_resume(gm_engine *engine, const char *data) {
    TEST("interrupted after three numbers of steps, the losses stay the same: %s",
         data == pairs ? "pairs" : "completions");
    gm_training_options o = training_of(data);
    o.batch = data == pairs ? 2 : 4;
    o.epochs = 4;
    o.keep_every = 1;
    o.dropout = 0.2;
    o.eval_split = 0.25;
    o.patience = 50;
    o.lora_plus = 4;
    o.decay = 0.1;
    curve        all = { 0 };
    gm_training *whole = open_training(engine, &o);
    void        *want = NULL, *got = NULL, *saved = NULL;
    size_t       want_size = 0, got_size = 0, saved_size = 0;
    train_until(whole, 0, &all);
    CHECK(all.steps >= 8 && all.status == GM_DONE);
    if (whole) training_adapter(whole, &want, &want_size);
    for (uint64_t at = 1; at < 6; at += 2) {
        curve             c = { 0 };
        gm_training_event event;
        gm_training      *t = open_training(engine, &o);
        train_until(t, at, &c);
        if (t) gm_training_stop(t);
        while (t && (c.status = gm_training_next(t, &event, why, sizeof why)) != GM_DONE && !status_failed(c.status)) {}
        CHECK(c.status == GM_DONE && event.end == GM_TRAINING_STOPPED && event.kept_step == at);
        if (t) CHECK_MESSAGE(!gm_training_save_buffer(t, &saved, &saved_size, why, sizeof why), "%s", why);
        gm_training_free(t);
        o.checkpoint = saved;
        o.checkpoint_size = saved_size;
        t = open_training(engine, &o);
        o.checkpoint = NULL;
        train_until(t, 0, &c);
        CHECK_MESSAGE(c.steps == all.steps && c.status == GM_DONE, "%s", why);
        for (size_t i = 0; i < all.steps; i++)
            CHECK_MESSAGE(c.losses[i] == all.losses[i] && c.norms[i] == all.norms[i], "stopped at %u: step %zu",
                          (unsigned)at, i);
        const float    *losses, *evals[2];
        const uint64_t *steps;
        CHECK(t && gm_training_losses(t, &losses) == all.steps && losses[0] == (float)all.losses[0]);
        const size_t n = gm_training_evaluations(whole, &evals[0], &steps);
        CHECK(n == all.eval_count && n == gm_training_evaluations(t, &evals[1], &steps) &&
              !memcmp(evals[0], evals[1], n * sizeof *losses));
        training_adapter(t, &got, &got_size);
        CHECK(got_size == want_size && !memcmp(got, want, got_size));
        gm_free(got);
        gm_free(saved);
        gm_training_free(t);
    }
    gm_free(want);
    gm_training_free(whole);
}

/* A state that was kept while the training went on, as after a crash. */
static void test_crash(gm_engine *engine) {
    TEST("a checkpoint from the middle of a step");
    gm_training_options o = training_of(chats);
    o.keep_every = 2;
    o.accumulate = 2;
    o.batch = 2;
    const curve  all = train_all(engine, &o);
    curve        c = { 0 };
    gm_training *t = open_training(engine, &o);
    void        *saved = NULL;
    size_t       size = 0;
    train_until(t, 4, &c);
    CHECK(c.last.kept_step == 2 && c.kept == 2); /* at the start, and before the update of step 3 */
    if (t) CHECK(!gm_training_save_buffer(t, &saved, &size, why, sizeof why));
    gm_training_free(t);
    o.checkpoint = saved;
    o.checkpoint_size = size;
    t = open_training(engine, &o);
    memset(&c, 0, sizeof c);
    train_until(t, 0, &c);
    CHECK(c.losses[1] == 0); /* not computed again */
    for (size_t i = 2; i < 6; i++) CHECK(c.losses[i] == all.losses[i]);
    gm_training_free(t);
    gm_free(saved);
}

static void training_refused(gm_engine *engine, gm_training_options o, const char *words) {
    gm_training *t = NULL;
    curve        c = { .status = gm_training_new(engine, &o, &t, why, sizeof why) };
    if (!c.status) train_until(t, 0, &c);
    CHECK_MESSAGE(status_failed(c.status) && strstr(why, words), "expected '%s', found %s: %s", words,
                  gm_status_name(c.status), why);
    gm_training_free(t);
}

static void test_training_refusals(gm_engine *engine) {
    TEST("what is refused");
    gm_training_options o = training_of(chats), changed;
    gm_training        *t = open_training(engine, &o);
    curve               c = { 0 };
    void               *saved = NULL;
    size_t              size = 0;
    CHECK(t && gm_training_save_buffer(t, &saved, &size, why, sizeof why) == GM_NOT_FOUND &&
          strstr(why, "nothing was kept"));
    train_until(t, 2, &c);
    CHECK(t && !gm_training_save_buffer(t, &saved, &size, why, sizeof why));
    gm_training_free(t);
    o.checkpoint = saved;
    o.checkpoint_size = size;
    changed = o;
    changed.rank = 8;
    training_refused(engine, changed, "other settings: \"rank 4\", now \"rank 8\"");
    changed = o;
    changed.data_size -= strlen("{\"prompt\": \"Is fire cold?\", \"completion\": \"No, it is hot.\"}\n");
    training_refused(engine, changed, "other examples");
    gm_engine *other = open_engine(
        &(gm_engine_options){ .model = "tests/fixtures/odd-dense.gguf", .backend = GM_BACKEND_CPU, .threads = 2 });
    if (other) training_refused(other, o, "another model");
    gm_engine_close(other);
    changed = o;
    changed.checkpoint_size /= 2;
    training_refused(engine, changed, "");
    ((char *)saved)[size / 2] ^= 1;
    training_refused(engine, o, "digest");
    gm_free(saved);
    o.checkpoint = NULL;
    const struct {
        gm_training_options o;
        const char         *words;
    } rows[] = {
        { { .data = "", .data_name = "chats.jsonl" }, "" },
        { { 0 }, "needs examples" },
        { { .path = "/nowhere/chats.jsonl" }, "cannot be opened" },
        { { .data = chats, .data_size = sizeof chats - 1, .schedule = "wavy" }, "expected constant, linear or cosine" },
        { { .data = chats, .data_size = sizeof chats - 1, .loss = "dpo", .data_name = "a.jsonl" },
          "a rejected answer" },
        { { .data = pairs, .data_size = sizeof pairs - 1, .loss = "completions", .data_name = "a.jsonl" },
          "answers to learn" },
        { { .data = chats, .data_size = sizeof chats - 1, .loss = "love" }, "completions or dpo" },
        { { .data = chats, .data_size = sizeof chats - 1, .rate = -1 }, "learning rate" },
        { { .data = chats, .data_size = sizeof chats - 1, .dropout = 1 }, "dropout" },
        { { .data = chats, .data_size = sizeof chats - 1, .patience = 2 }, "patience needs evaluations" },
        { { .data = chats, .data_size = sizeof chats - 1, .data_name = "a.jsonl", .targets = "everything" },
          "cannot be trained" },
        { { .data = chats, .data_size = sizeof chats - 1, .data_name = "a.jsonl", .layers = "0-99" }, "layers" },
        { { .data = chats, .data_size = sizeof chats - 1, .data_name = "a.jsonl", .memory = 1000 }, "are allowed" },
        { { .data = "{\"prompt\": 1}\n", .data_size = 14, .data_name = "a.jsonl" }, "line 1" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) training_refused(engine, rows[i].o, rows[i].words);
}

static void test_not_finite(gm_engine *engine) {
    TEST("a learning rate that breaks the model: the last good adapter is kept");
    gm_training_options o = training_of(chats);
    o.epochs = 8;
    o.rate = 9e5;
    o.keep_every = 1;
    o.warmup = -1;
    o.clip = -1;
    curve        c = { 0 };
    gm_training *t = open_training(engine, &o);
    train_until(t, 0, &c);
    CHECK_MESSAGE(c.status == GM_BAD_ARGUMENT && c.last.end == GM_TRAINING_NOT_FINITE &&
                      strstr(why, "is kept as it was"),
                  "%d: %s", c.status, why);
    gm_training_event event;
    CHECK(t && gm_training_next(t, &event, why, sizeof why) == GM_BAD_ARGUMENT);
    void  *bytes = NULL;
    size_t size = 0;
    if (t) training_adapter(t, &bytes, &size);
    for (size_t i = 0; t && i < trainer_state_size(t->trainer); i++) CHECK(isfinite(t->kept.values[i]));
    gm_adapter *a = NULL;
    CHECK_MESSAGE(bytes && !gm_adapter_load_data(engine, "good", bytes, size, NULL, 0, &a, why, sizeof why), "%s", why);
    gm_adapter_free(a);
    gm_free(bytes);
    gm_training_free(t);
}

static void test_patience(gm_engine *engine) {
    TEST("an end when evaluations do not get better, with the best adapter");
    gm_training_options o = training_of(chats);
    o.eval_split = 0.3;
    o.epochs = 40;
    o.rate = 0.05;
    o.patience = 2;
    o.max_steps = MOST_STEPS;
    curve        c = { 0 };
    gm_training *t = open_training(engine, &o);
    train_until(t, 0, &c);
    CHECK_MESSAGE(c.status == GM_DONE && c.last.end == GM_TRAINING_PATIENCE && c.steps < MOST_STEPS, "%s", why);
    size_t best = 0;
    for (size_t i = 1; i < c.eval_count; i++) best = c.evals[i] < c.evals[best] ? i : best;
    CHECK(best + 3 == c.eval_count && c.last.best_eval_loss == c.evals[best]);
    CHECK(fabs(c.last.perplexity - exp(c.last.eval_loss)) < 1e-12);
    CHECK(t && t->best.step < c.steps && t->best.step == t->eval_steps[best]);
    gm_training_data about;
    CHECK(t && !gm_training_get_data(t, &about, why, sizeof why) && about.examples == 12 && about.evaluation == 4);
    gm_training_free(t);
}

/* ---- preference pairs ---- */

/* Gradients as processes would sum them, part after part. */
typedef struct {
    float *values;
    size_t count, calls;
} gathered;

static gm_status gather(void *user, float *values, size_t count, error *e) {
    gathered *g = user;
    (void)e;
    if (g->calls++ < 3) return GM_OK; /* the counts, references and losses of the step */
    memcpy(g->values + g->count, values, count * sizeof *values);
    g->count += count;
    return GM_OK;
}

/* The state of a new training, with a B that is not 0, moved along a direction. */
static float *moved_state(const trainer *t, double h) {
    const size_t size = trainer_state_size(t);
    float       *state = calloc(size, sizeof *state);
    uint32_t     noise = 5;
    for (size_t i = 0; state && i < size; i++) {
        noise = noise * 1664525u + 1013904223u;
        state[i] = 0.05f * ((float)(noise >> 8) / (1 << 23) - 1);
        noise = noise * 1664525u + 1013904223u;
        state[i] += (float)h * ((float)(noise >> 8) / (1 << 23) - 1);
    }
    return state;
}

/* The loss of the first step at that state, its gradient along the direction, and the share of pairs that are preferred. */
static double pair_loss(gm_engine *engine, const gm_training_options *o, double h, double *slope) {
    gm_training      *t = open_training(engine, o);
    gm_training_event event = { 0 };
    gm_status         status = GM_OK;
    error             e = { 0 };
    while (t && t->stage != STAGE_NEXT && !status_failed(status)) status = gm_training_next(t, &event, why, sizeof why);
    if (!t || !t->trainer) return NAN;
    float                  *state = moved_state(t->trainer, h), *direction = moved_state(t->trainer, h + 1);
    gathered                g = { .values = calloc(trainer_state_size(t->trainer), sizeof(float)) };
    const double            before = trainer_state_size(t->trainer) / 3;
    const train_parameters *p = trainer_parameters(t->trainer);
    engine_enter(engine);
    CHECK(state && !trainer_write_state(t->trainer, state, INFINITY, &e));
    engine_leave(engine);
    if (slope) training_share(t, &(training_shares){ .reduce = gather, .user = &g, .parts = 1 });
    while (event.kind != GM_TRAINING_STEP && !status_failed(status))
        status = gm_training_next(t, &event, why, sizeof why);
    CHECK(!slope || (double)g.count == before);
    if (slope) *slope = 0;
    for (size_t i = 0, at = 0; slope && i < p->count; i++) {
        const train_part *part = &p->parts[i];
        if (!part->pair) continue;
        for (size_t k = 0; k < part->size; k++)
            *slope +=
                (double)g.values[at + k] * (double)(direction[3 * at + k] - state[3 * at + k]) / (double)part->scale;
        at += (size_t)part->size;
    }
    free(g.values);
    free(state);
    free(direction);
    gm_training_free(t);
    return event.loss;
}

static void test_pairs(gm_engine *engine) {
    TEST("preference pairs: the loss begins at ln 2, its gradient is the slope, and the better answers are learned");
    gm_training_options o = training_of(pairs);
    const double        turn = engine->turn_seconds, h = 2e-3;
    double              slope = 0;
    o.epochs = 6;
    o.beta = 0.3;
    o.rate = 2e-3;
    gm_training *t = open_training(engine, &o);
    curve        c = { 0 };
    train_until(t, 0, &c);
    CHECK(t && t->memo.measured == 1); /* all are in one run, once for all epochs */
    gm_training_free(t);
    CHECK(c.steps == 6 && fabs(c.losses[0] - log(2)) < 1e-6);
    CHECK_MESSAGE(c.losses[5] < 0.9 * c.losses[0] && c.last.accuracy == 1, "%g, %g", c.losses[5], c.last.accuracy);
    engine->turn_seconds = 0; /* one stage at a time */
    pair_loss(engine, &o, 0, &slope);
    const double rise = pair_loss(engine, &o, h, NULL) - pair_loss(engine, &o, -h, NULL);
    CHECK_MESSAGE(fabs(rise / (2 * h) - slope) < 5e-3 * fabs(slope) && fabs(slope) > 1e-3, "slope %.7g, gradient %.7g",
                  rise / (2 * h), slope);
    engine->turn_seconds = turn;
}

/* ---- pictures and sounds ---- */

static gm_status training_media(void *user, const char *path, void **bytes, size_t *size) {
    char name[200];
    (void)user;
    snprintf(name, sizeof name, "tests/fixtures/%s", path);
    FILE *file = fopen(name, "rb");
    if (!file) return GM_NOT_FOUND;
    *bytes = malloc(1 << 20);
    *size = *bytes ? fread(*bytes, 1, 1 << 20, file) : 0;
    fclose(file);
    return *size ? GM_OK : GM_IO;
}

/* Minus the mean logarithm of the probabilities of an example's answer, by a session that has seen the prompt and what belongs to it. */
static double session_loss(gm_engine *engine, const gm_message *prompt, const data_sequence *q) {
    gm_session            *s = open_session(engine, GM_KV_F32, 0);
    gm_reply              *reply = NULL;
    gm_piece               piece;
    gm_status              status = GM_AGAIN;
    const float           *logits;
    size_t                 first = 0, counted = 0;
    double                 loss = 0;
    const gm_reply_options once = { .max_tokens = 1 };
    if (!s || gm_reply_start(s, prompt, 1, &once, &reply, why, sizeof why)) return NAN;
    while (status == GM_OK || status == GM_AGAIN) status = gm_reply_next(reply, &piece, why, sizeof why);
    gm_reply_free(reply);
    while (q->weights[first] == 0) first++;
    CHECK_MESSAGE(status == GM_DONE && !gm_session_rollback(s, first - 1, NULL, why, sizeof why), "%s", why);
    for (size_t i = first; i < q->count && !append_tokens(s, &q->ids[i - 1], 1) && (logits = gm_session_logits(s));
         i++) {
        double most = -INFINITY, sum = 0;
        for (uint32_t k = 0; k < engine->weights.config.vocabulary; k++) most = fmax(most, (double)logits[k]);
        for (uint32_t k = 0; k < engine->weights.config.vocabulary; k++) sum += exp((double)logits[k] - most);
        loss += most + log(sum) - (double)logits[q->ids[i]];
        counted++;
    }
    gm_session_free(s);
    return counted == q->counted ? loss / (double)counted : NAN;
}

/* The loss of the first step is that of a session. The tokens of the second model's pictures see each other. */
static void test_training_media(const char *name, const char *part, const char *path, gm_part_kind kind) {
    TEST("%s: an example with %s", name, path);
    char   file[80], towers[80], text[400];
    void  *bytes = NULL;
    size_t size = 0;
    snprintf(file, sizeof file, "tests/fixtures/%s.gguf", name);
    snprintf(towers, sizeof towers, "tests/fixtures/%s.mmproj.gguf", name);
    snprintf(text, sizeof text,
             "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Look: \"}, "
             "{\"type\": \"%s\", "
             "\"%s\": \"%s\"}]}, {\"role\": \"assistant\", \"content\": \"A fox\"}]}\n",
             part, part, path);
    gm_engine          *engine = open_engine(&(gm_engine_options){
                 .model = file, .mmproj = towers, .backend = GM_BACKEND_CPU, .threads = 2, .precise = true });
    gm_training_options o = training_of(text);
    o.media = training_media;
    o.epochs = 2;
    gm_training *t = open_training(engine, &o);
    curve        c = { 0 };
    data_example x;
    error        e = { 0 };
    train_until(t, 0, &c);
    CHECK_MESSAGE(c.status == GM_DONE && c.steps == 2 && c.losses[1] < c.losses[0], "%s", why);
    CHECK(t && t->memo.encoded == 1); /* once for both epochs */
    if (t && !dataset_example(t->data, 0, &x, &e) && !training_media(NULL, path, &bytes, &size)) {
        const gm_part    parts[] = { { .kind = GM_PART_TEXT, .text = "Look: " },
                                     { .kind = kind, .data = bytes, .size = size } };
        const gm_message prompt = { .role = "user", .parts = parts, .part_count = 2 };
        const double     want = session_loss(engine, &prompt, &x.sequence[0]);
        CHECK_MESSAGE(fabs(c.losses[0] - want) < 1e-4 * want, "loss %.9g, of a session %.9g", c.losses[0], want);
        data_example_free(&x);
    }
    free(bytes);
    gm_training_free(t);
    o.media = NULL;
    if (engine) training_refused(engine, o, "is missing");
    gm_engine_close(engine);
}

/* ---- several processes ---- */

/* A sum over two processes, one after the other: the first only writes down what it gives. */
typedef struct {
    float  given[MOST_STEPS];
    size_t count;
    bool   second;
} fake_peers;

static gm_status fake_sum(void *user, float *values, size_t count, error *e) {
    fake_peers *p = user;
    if (count > COUNT_OF(p->given)) return fail(e, GM_BAD_ARGUMENT, "%zu values are more than expected", count);
    for (size_t i = 0; i < count; i++) {
        if (p->second) values[i] += p->given[i];
        else p->given[i] = values[i];
    }
    p->count = count;
    return GM_OK;
}

/* Runs 1 to 3 are a step: pairs 0 and 5, then 1, then 4 and 2. Process 0 measures the first and the last of these runs. */
static void test_shared_references(void) {
    TEST("processes tell each other what they have measured of pairs, bit by bit");
    enum { PAIRS = 6, RUNS = 4 };
    static const size_t missing[2][4] = { { 1, 1, 1, 1 }, { 0, 5, 4, 2 } };
    uint32_t            examples[PAIRS] = { 3, 0, 5, 1, 4, 2 }, firsts[RUNS + 1] = { 0, 1, 3, 4, 6 };
    const data_epoch    order = { .examples = examples, .runs = firsts, .count = PAIRS, .run_count = RUNS };
    for (size_t last = 0; last < 2; last++) {
        fake_peers peers = { 0 };
        error      e = { 0 };
        double     known[2 * PAIRS], whole[2 * PAIRS];
        for (size_t i = 0; i < 2 * PAIRS; i++) whole[i] = (i % 2 ? 1e-3 : 1e4) / (double)(i + 3);
        for (size_t k = 0; k < 2; k++) {
            const size_t          part = k ? last : 1 - last;
            const training_shares shares = { fake_sum, &peers, part, 2 };
            training_memo         m = { .references = known, .reference_count = 2 * PAIRS };
            memcpy(known, whole, sizeof known);
            for (size_t i = 0; i < 4; i++) known[2 * missing[part][i]] = known[2 * missing[part][i] + 1] = NAN;
            peers.second = k;
            CHECK_MESSAGE(!training_memo_share(&m, &order, 1, 3, &shares, &e), "%s", e.why);
        }
        CHECK(peers.count == 5 * 2 * 4 && !memcmp(known, whole, sizeof whole));
    }
}

static gm_status fake_count(void *user, float *values, size_t count, error *e) {
    (void)values, (void)count, (void)e;
    ++*(size_t *)user;
    return GM_OK;
}

static void test_sharing(gm_engine *engine) {
    TEST("pairs are shared in each step and each evaluation");
    size_t sums[2] = { 0 };
    for (size_t i = 0; i < 2; i++) {
        curve               c = { 0 };
        gm_training_options o = training_of(i ? pairs : chats);
        o.max_steps = 2;
        o.eval_split = 0.25;
        o.eval_every = 1;
        gm_training *t = open_training(engine, &o);
        if (t) training_share(t, &(training_shares){ fake_count, &sums[i], 0, 1 });
        train_until(t, 0, &c);
        CHECK_MESSAGE(c.status == GM_DONE && c.steps == 2 && c.eval_count == 3, "%s", why);
        CHECK(t && training_memo_unknown(&t->memo, t->data) == 0);
        gm_training_free(t);
    }
    CHECK_MESSAGE(sums[1] == sums[0] + 2 + 3, "%zu sums, and %zu of completions", sums[1], sums[0]);
}

static void test_preview(gm_engine *engine) {
    TEST("a preview, and files of an adapter");
    gm_training_options o = training_of(chats);
    gm_training        *t = open_training(engine, &o);
    curve               c = { 0 };
    char               *text = NULL;
    void               *weights = NULL, *config = NULL;
    size_t              sizes[2] = { 0 };
    gm_training_data    about;
    CHECK(t && gm_training_get_data(t, &about, why, sizeof why) == GM_BUSY);
    train_until(t, 0, &c);
    CHECK(t && !gm_training_preview(t, 0, "[", "]", &text, why, sizeof why) && strstr(text, "[Rusty"));
    gm_free(text);
    CHECK(t && gm_training_preview(t, 99, "[", "]", &text, why, sizeof why) == GM_NOT_FOUND);
    CHECK(t && !gm_training_adapter_buffer(t, &weights, &sizes[0], &config, &sizes[1], why, sizeof why));
    gm_adapter *a = NULL;
    CHECK_MESSAGE(!gm_adapter_load_data(engine, "a", weights, sizes[0], config, sizes[1], &a, why, sizeof why), "%s",
                  why);
    gm_adapter_free(a);
    gm_free(weights);
    gm_free(config);
    gm_training_free(t);
}

/* Stopped, or freed, after any number of stages: asan finds what is left. A training that was stopped can be gone on with. */
static void test_any_time(gm_engine *engine) {
    TEST("stopped and freed at any time");
    const double        turn = engine->turn_seconds;
    gm_training_options o = training_of(chats);
    o.eval_split = 0.25;
    o.patience = 9;
    o.keep_every = 1;
    engine->turn_seconds = 0;
    for (size_t calls = 0; calls < 120; calls += calls < 30 ? 1 : 7) {
        for (size_t stops = 0; stops < 2; stops++) {
            gm_training      *t = open_training(engine, &o);
            gm_training_event event = { 0 };
            gm_status         status = GM_OK;
            for (size_t i = 0; t && i < calls && !status_failed(status); i++)
                status = gm_training_next(t, &event, why, sizeof why);
            if (t && stops) gm_training_stop(t);
            while (t && stops && !status_failed(status) && status != GM_DONE)
                status = gm_training_next(t, &event, why, sizeof why);
            CHECK_MESSAGE(!stops || (status == GM_DONE && event.end == GM_TRAINING_STOPPED), "after %zu calls: %s",
                          calls, why);
            CHECK(!stops || event.kept_step == event.step);
            gm_training_free(t);
        }
    }
    engine->turn_seconds = turn;
}

int main(void) {
    gm_engine *engine =
        open_engine(&(gm_engine_options){ .model = tiny_dense, .backend = GM_BACKEND_CPU, .threads = 2 });
    if (engine) {
        test_divisions(engine);
        test_settings(engine);
        test_resume(engine, chats);
        test_resume(engine, pairs);
        test_crash(engine);
        test_training_refusals(engine);
        test_not_finite(engine);
        test_patience(engine);
        test_pairs(engine);
        test_sharing(engine);
        test_preview(engine);
        test_any_time(engine);
    }
    test_shared_references();
    test_training_media("tiny-mm", "image", "tiny-mm.png", GM_PART_IMAGE);
    test_training_media("tiny-mm", "audio", "tiny-mm.wav", GM_PART_AUDIO);
    test_training_media("tiny-mm-bidir", "image", "tiny-mm.png", GM_PART_IMAGE);
    gm_engine_close(engine);
    return test_end();
}
