/* An engine's self-check of its GPU. It runs when the engine opens. What another K/V type adds is checked when a session first
 * computes with that type: in steps, as computing itself, so that a browser is not blocked. */

#include "session/denoiser.h"
#include "session/load.h"
#include "session/runner.h"
#include "session/tower_parts.h"

static quant_type usual_kv(const gm_engine *engine) { return engine->precise ? TYPE_F32 : TYPE_F16; }

static gm_status check_new(gm_engine *engine, quant_type kv, const quant_type *checked, self_check **out, error *e) {
    const model_config      *config = &engine->weights.config;
    const bool               software = gpu_host_info(engine->gpu.host)->software;
    const self_check_options options = {
        .kv = kv,
        .checked = checked,
        .precise = engine->precise,
        .outputs = runner_outputs(config->vocabulary),
        /* with a budget, plans have other kernels; in software, compiling takes longer than it saves */
        .plans = !software && !engine->gpu.budget,
        .quick = software,
        .canvas = engine->denoiser ? denoiser_graph(engine->denoiser) : NULL,
        .canvas_length = config->canvas.length,
        .slots = engine->budget.cached
    };
    TRY(self_check_new(engine->gpu.host, &engine->text, config, &options, out, e));
    self_check_read_by(*out, engine->reads);
    return GM_OK;
}

gm_status engine_check_new(gm_engine *engine, self_check **out, error *e) {
    return check_new(engine, usual_kv(engine), NULL, out, e);
}

gm_status engine_check_kv(gm_engine *engine, quant_type kv, error *e) {
    const quant_type usual = usual_kv(engine);
    if (!engine->on_gpu || kv == usual) return GM_OK;
    engine_kv_check *k = &engine->kv_checks[kv == TYPE_F16 ? 0 : kv == TYPE_F32 ? 1 : 2];
    if (k->refused.status) return fail(e, k->refused.status, "%s", k->refused.why);
    if (k->passed) return GM_OK;
    if (!k->running) TRY(check_new(engine, kv, &usual, &k->running, e));
    const double    start = clock_seconds();
    const gm_status status = self_check_step(k->running, e);
    engine->seconds.check += clock_seconds() - start;
    if (status == GM_AGAIN) return status;
    self_check_free(k->running);
    k->running = NULL;
    k->passed = !status;
    if (status == GM_NO_DEVICE) k->refused = *e; /* anything else, such as too little memory, may go away */
    return status;
}

gm_status engine_check_tower(gm_engine *engine, engine_tower *t, error *e) {
    if (t->refused.status) return fail(e, t->refused.status, "%s", t->refused.why);
    /* in software there is no driver to distrust, and compiling takes long */
    if (t->checked || gpu_host_info(engine->gpu.host)->software) return GM_OK;
    const self_check_tower   tower = { .name = t->type->name,
                                       .fewest = t->head ? t->type->fewest : 1,
                                       .kv_heads = t->kv_heads,
                                       .head = t->head,
                                       .text = &engine->text,
                                       .config = &engine->weights.config };
    const self_check_options options = { .kv = engine_tower_kv_type(engine),
                                         .precise = engine->precise,
                                         .outputs = TOWER_MOST_OUTPUTS,
                                         .plans = !engine->gpu.budget,
                                         .tower = &tower };
    const double             start = clock_seconds();
    if (!t->check) {
        TRY(self_check_new(engine->gpu.host, &t->g, NULL, &options, &t->check, e));
        self_check_read_by(t->check, engine->reads);
    }
    const gm_status status = self_check_step(t->check, e);
    engine->seconds.check += clock_seconds() - start;
    if (status == GM_AGAIN) return status;
    self_check_free(t->check);
    t->check = NULL;
    t->checked = !status;
    if (status == GM_NO_DEVICE) t->refused = *e;
    return status;
}

void engine_check_end(gm_engine *engine) {
    for (size_t i = 0; i < COUNT_OF(engine->kv_checks); i++) self_check_free(engine->kv_checks[i].running);
}
