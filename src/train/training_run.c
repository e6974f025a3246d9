/* One run of a training: soft tokens of its pictures and sounds first, then the loss and its gradients.
 *
 * Completions: L = Σ −ln p(token) over the tokens that count, times a share.
 * Preference pairs (DPO): L = −ln σ(z) for each pair, times a share, z = β·((ln π(c) − ln ρ(c)) − (ln π(r) − ln ρ(r))), with the chosen
 * answer c, the rejected one r, the model π with the adapter and ρ without it. Its gradient is that of a sum over tokens: −ln π(c) weighs
 * β·σ(−z), −ln π(r) weighs −β·σ(−z). So both are measured first, and then learned with these weights. */

#include "train/training_parts.h"

#include "media/picture.h"
#include "media/sound.h"
#include "session/media.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void training_run_start(gm_training *t, data_run *run, bool learns, double share, uint64_t draw) {
    training_run_end(t);
    t->run = (training_run){ .run = run, .learns = learns, .share = share, .draw = draw, .sum = &t->sum };
}

void training_run_end(gm_training *t) {
    training_run *r = &t->run;
    tower_job_free(r->job);
    free(r->spans);
    free(r->blocks);
    free(r->given);
    *r = (training_run){ .stage = RUN_OVER };
}

/* ---- soft tokens ---- */

/* Memory of what the run needs besides its tokens. */
static gm_status run_prepare(gm_training *t, error *e) {
    training_run   *r = &t->run;
    const data_run *run = r->run;
    const size_t    width = t->engine->weights.config.width;
    size_t          soft = 0;
    r->spans = calloc(run->span_count, sizeof *r->spans);
    r->blocks = calloc(run->media_count + 1, sizeof *r->blocks);
    for (size_t i = 0; i < run->media_count; i++) {
        soft += run->media[i].count;
        for (size_t k = 0; k < run->media[i].count; k++) run->ids[run->media[i].at + k] = -1;
    }
    r->given = soft ? malloc(soft * width * sizeof *r->given) : NULL;
    if (!r->spans || !r->blocks || (soft && !r->given)) return fail_memory(e, "a run", soft * width * sizeof *r->given);
    for (size_t i = 0; i < run->span_count; i++) r->spans[i] = (train_span){ run->spans[i].first, run->spans[i].count };
    r->stage = RUN_ENCODES;
    return GM_OK;
}

static gm_status run_decode_picture(const gm_training *t, const data_media *m, picture *out, error *e) {
    picture        whole = { 0 };
    const uint32_t budget = m->part.budget ? m->part.budget : media_default_budget(t->engine->file);
    TRY(picture_decode(m->part.data, m->part.size, &whole, e));
    const gm_status status = picture_fitted(&whole, budget, out, e);
    picture_free(&whole);
    return status;
}

static gm_status run_begin_picture(gm_training *t, const data_media *m, error *e) {
    picture p = { 0 };
    TRY(run_decode_picture(t, m, &p, e));
    const tower_picture seen = { .width = p.width, .height = p.height, .pixels = p.pixels };
    const gm_status     status = tower_encode_pictures(t->engine, &seen, 1, &t->run.job, e);
    picture_free(&p);
    return status;
}

static gm_status run_begin_sound(gm_training *t, const data_media *m, error *e) {
    sound s = { 0 };
    TRY(sound_decode(m->part.data, m->part.size, &s, e));
    gm_status status = GM_OK;
    if (s.count < m->to)
        status = fail(e, GM_BAD_FILE, "a sound has %zu samples, but %zu when the examples were read", s.count, m->to);
    const tower_sound heard = { .samples = s.samples + m->from, .count = m->to - m->from };
    if (!status) status = tower_encode_sounds(t->engine, &heard, 1, &t->run.job, e);
    sound_free(&s);
    return status;
}

/* The rows of the next picture or sound. */
static gm_status run_encode_one(gm_training *t, const data_media *m, float *to, error *e) {
    training_run *r = &t->run;
    const size_t  width = t->engine->weights.config.width;
    size_t        count = 0;
    if (!r->job && training_memo_find(&t->memo, m, width, to)) return GM_OK;
    if (!r->job) TRY(m->kind == CHAT_IMAGE ? run_begin_picture(t, m, e) : run_begin_sound(t, m, e));
    TRY(tower_job_step(r->job, e));
    const float *rows = tower_job_rows(r->job, 0, &count);
    if (count != m->count)
        return fail(e, GM_BAD_FILE, "a %s has become %zu soft tokens, but %zu were expected",
                    m->kind == CHAT_IMAGE ? "picture" : "sound", count, m->count);
    memcpy(to, rows, count * width * sizeof *rows);
    training_memo_add(&t->memo, m, width, rows);
    tower_job_free(r->job);
    r->job = NULL;
    return GM_OK;
}

static gm_status run_encode(gm_training *t, double deadline, error *e) {
    training_run       *r = &t->run;
    const model_config *c = &t->engine->weights.config;
    for (; r->media < r->run->media_count; r->media++) {
        const data_media *m = &r->run->media[r->media];
        TRY(run_encode_one(t, m, r->given + r->rows * c->width, e));
        r->rows += m->count;
        if (m->kind == CHAT_IMAGE && c->image_blocks) r->blocks[r->blocks_made++] = (train_span){ m->at, m->count };
        if (clock_seconds() > deadline && r->media + 1 < r->run->media_count) return r->media++, GM_AGAIN;
    }
    r->stage = t->settings.pairs ? RUN_REFERENCE : RUN_LEARNS;
    return GM_OK;
}

/* ---- losses ---- */

static gm_status run_compute(gm_training *t, bool measured, bool without, double share, double deadline, error *e) {
    training_run   *r = &t->run;
    const data_run *run = r->run;
    if (!r->begun) {
        const train_run work = { .ids = run->ids,
                                 .weights = run->weights,
                                 .count = run->count,
                                 .spans = r->spans,
                                 .span_count = run->span_count,
                                 .given = r->given,
                                 .blocks = r->blocks,
                                 .block_count = r->blocks_made,
                                 .draw = r->learns && !without ? r->draw : 0,
                                 .measured = measured,
                                 .without = without };
        TRY(trainer_begin(t->trainer, &work, share, e));
        r->begun = true;
    }
    TRY(trainer_work(t->trainer, deadline, e));
    r->begun = false;
    return GM_OK;
}

/* What is known already stays: the same numbers as without an interruption. */
static gm_status run_reference(gm_training *t, double deadline, error *e) {
    const data_run *run = t->run.run;
    bool            known = true;
    for (size_t i = 0; i < run->span_count; i++)
        known = known && !isnan(*training_memo_reference(&t->memo, &run->spans[i]));
    if (!known) {
        TRY(run_compute(t, true, true, 1, deadline, e));
        t->memo.measured++;
        t->work_done += (double)run->count;
    }
    for (size_t i = 0; i < run->span_count && !known; i++) {
        double *reference = training_memo_reference(&t->memo, &run->spans[i]);
        if (isnan(*reference)) *reference = trainer_span_loss(t->trainer, i);
    }
    t->run.stage = RUN_POLICY;
    return GM_OK;
}

/* A pair's two sequences follow each other. */
static gm_status run_policy(gm_training *t, double deadline, error *e) {
    training_run *r = &t->run;
    const double  beta = t->settings.o.beta;
    TRY(run_compute(t, true, false, 1, deadline, e));
    for (size_t i = 0; i + 1 < r->run->span_count; i += 2) {
        const data_span *spans = r->run->spans;
        const double     chosen = *training_memo_reference(&t->memo, &spans[i]) - trainer_span_loss(t->trainer, i);
        const double     rejected =
            *training_memo_reference(&t->memo, &spans[i + 1]) - trainer_span_loss(t->trainer, i + 1);
        const double z = beta * (chosen - rejected);
        const double pull = beta / (1 + exp(z));
        r->sum->loss += z > 0 ? log1p(exp(-z)) : log1p(exp(z)) - z;
        r->sum->preferred += z > 0;
        r->sum->counted++;
        for (size_t k = r->spans[i].first; k < r->spans[i + 1].first + r->spans[i + 1].count; k++)
            r->run->weights[k] *= (float)(k < r->spans[i + 1].first ? pull : -pull);
    }
    r->stage = r->learns ? RUN_LEARNS : RUN_OVER;
    return GM_OK;
}

static gm_status run_learn(gm_training *t, double deadline, error *e) {
    training_run *r = &t->run;
    TRY(run_compute(t, !r->learns, false, r->learns ? r->share : 1, deadline, e));
    r->stage = RUN_OVER;
    if (t->settings.pairs) return GM_OK;
    for (size_t i = 0; i < r->run->span_count; i++)
        r->sum->loss += trainer_span_loss(t->trainer, i) / (r->learns ? r->share : 1);
    r->sum->counted += (double)r->run->counted;
    return GM_OK;
}

gm_status training_run_work(gm_training *t, double deadline, error *e) {
    training_run *r = &t->run;
    while (r->stage != RUN_OVER) {
        switch (r->stage) {
        case RUN_READS: TRY(run_prepare(t, e)); break;
        case RUN_ENCODES: TRY(run_encode(t, deadline, e)); break;
        case RUN_REFERENCE: TRY(run_reference(t, deadline, e)); break;
        case RUN_POLICY: TRY(run_policy(t, deadline, e)); break;
        default: TRY(run_learn(t, deadline, e)); break;
        }
        if (r->stage != RUN_OVER && clock_seconds() > deadline) return GM_AGAIN;
    }
    r->sum->tokens += (double)r->run->count;
    training_run_end(t);
    return GM_OK;
}
