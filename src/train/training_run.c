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
    free(r->references);
    *r = (training_run){ .stage = RUN_OVER };
}

/* ---- soft tokens ---- */

static bool run_has(const data_run *run, chat_part_kind kind) {
    for (size_t i = 0; i < run->media_count; i++) {
        if (run->media[i].kind == kind) return true;
    }
    return false;
}

/* Memory of what the run needs besides its tokens. */
static gm_status run_prepare(gm_training *t, error *e) {
    training_run   *r = &t->run;
    const data_run *run = r->run;
    const size_t    width = t->engine->weights.config.width;
    size_t          soft = 0;
    r->spans = calloc(run->span_count, sizeof *r->spans);
    r->blocks = calloc(run->media_count + 1, sizeof *r->blocks);
    r->references = calloc(run->span_count, sizeof *r->references);
    for (size_t i = 0; i < run->media_count; i++) {
        soft += run->media[i].count;
        for (size_t k = 0; k < run->media[i].count; k++) run->ids[run->media[i].at + k] = -1;
    }
    r->given = soft ? malloc(soft * width * sizeof *r->given) : NULL;
    if (!r->spans || !r->blocks || !r->references || (soft && !r->given))
        return fail_memory(e, "a run", soft * width * sizeof *r->given);
    for (size_t i = 0; i < run->span_count; i++) r->spans[i] = (train_span){ run->spans[i].first, run->spans[i].count };
    r->stage = RUN_SEES;
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

static gm_status run_begin_pictures(gm_training *t, error *e) {
    const data_run *run = t->run.run;
    tower_picture  *seen = calloc(run->media_count, sizeof *seen);
    picture        *pictures = calloc(run->media_count, sizeof *pictures);
    size_t          count = 0;
    gm_status       status = seen && pictures ? GM_OK : fail_memory(e, "the pictures", run->media_count * sizeof *seen);
    for (size_t i = 0; i < run->media_count && !status; i++) {
        if (run->media[i].kind != CHAT_IMAGE) continue;
        status = run_decode_picture(t, &run->media[i], &pictures[count], e);
        seen[count] = (tower_picture){ .width = pictures[count].width,
                                       .height = pictures[count].height,
                                       .pixels = pictures[count].pixels };
        count++;
    }
    if (!status) status = tower_encode_pictures(t->engine, seen, count, &t->run.job, e);
    for (size_t i = 0; pictures && i < run->media_count; i++) picture_free(&pictures[i]);
    free(pictures);
    free(seen);
    return status;
}

static gm_status run_begin_sounds(gm_training *t, error *e) {
    const data_run *run = t->run.run;
    tower_sound    *heard = calloc(run->media_count, sizeof *heard);
    sound          *sounds = calloc(run->media_count, sizeof *sounds);
    size_t          count = 0;
    gm_status       status = heard && sounds ? GM_OK : fail_memory(e, "the sounds", run->media_count * sizeof *heard);
    for (size_t i = 0; i < run->media_count && !status; i++) {
        const data_media *m = &run->media[i];
        if (m->kind != CHAT_AUDIO) continue;
        status = sound_decode(m->part.data, m->part.size, &sounds[count], e);
        if (!status && sounds[count].count < m->to)
            status = fail(e, GM_BAD_FILE, "a sound has %zu samples, but %zu when the examples were read",
                          sounds[count].count, m->to);
        if (!status)
            heard[count] = (tower_sound){ .samples = sounds[count].samples + m->from, .count = m->to - m->from };
        count++;
    }
    if (!status) status = tower_encode_sounds(t->engine, heard, count, &t->run.job, e);
    for (size_t i = 0; sounds && i < run->media_count; i++) sound_free(&sounds[i]);
    free(sounds);
    free(heard);
    return status;
}

/* Puts the rows of the pictures or the sounds into their places among all soft tokens. */
static gm_status run_take_rows(gm_training *t, chat_part_kind kind, error *e) {
    const data_run *run = t->run.run;
    const size_t    width = t->engine->weights.config.width;
    size_t          item = 0, before = 0, blocks = 0;
    while (t->run.blocks[blocks].count) blocks++;
    for (size_t i = 0; i < run->media_count; before += run->media[i++].count) {
        const data_media *m = &run->media[i];
        size_t            count = 0;
        if (m->kind != kind) continue;
        const float *rows = tower_job_rows(t->run.job, item++, &count);
        if (count != m->count)
            return fail(e, GM_BAD_FILE, "a %s has become %zu soft tokens, but %zu were expected",
                        kind == CHAT_IMAGE ? "picture" : "sound", count, m->count);
        memcpy(t->run.given + before * width, rows, count * width * sizeof *rows);
        if (kind == CHAT_IMAGE && t->engine->weights.config.image_blocks)
            t->run.blocks[blocks++] = (train_span){ m->at, m->count };
    }
    tower_job_free(t->run.job);
    t->run.job = NULL;
    return GM_OK;
}

static gm_status run_encode(gm_training *t, error *e) {
    training_run        *r = &t->run;
    const bool           hears = r->stage == RUN_HEARS;
    const chat_part_kind kind = hears ? CHAT_AUDIO : CHAT_IMAGE;
    if (run_has(r->run, kind)) {
        if (!r->job) TRY(hears ? run_begin_sounds(t, e) : run_begin_pictures(t, e));
        TRY(tower_job_step(r->job, e));
        TRY(run_take_rows(t, kind, e));
    }
    r->stage = !hears ? RUN_HEARS : t->settings.pairs ? RUN_REFERENCE : RUN_LEARNS;
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
                                 .block_count = r->given ? run->media_count : 0,
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

static gm_status run_reference(gm_training *t, double deadline, error *e) {
    TRY(run_compute(t, true, true, 1, deadline, e));
    for (size_t i = 0; i < t->run.run->span_count; i++) t->run.references[i] = trainer_span_loss(t->trainer, i);
    t->run.stage = RUN_POLICY;
    return GM_OK;
}

/* A pair's two sequences follow each other. */
static gm_status run_policy(gm_training *t, double deadline, error *e) {
    training_run *r = &t->run;
    const double  beta = t->settings.o.beta;
    TRY(run_compute(t, true, false, 1, deadline, e));
    for (size_t i = 0; i + 1 < r->run->span_count; i += 2) {
        const double chosen = r->references[i] - trainer_span_loss(t->trainer, i);
        const double rejected = r->references[i + 1] - trainer_span_loss(t->trainer, i + 1);
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
        case RUN_SEES:
        case RUN_HEARS: TRY(run_encode(t, e)); break;
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
