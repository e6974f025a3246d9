#include "gpu/experts.h"

#include "gpu/experts_kept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- making and freeing ---- */

static void expert_layer_free(expert_layer *l) {
    free(l->slot_of);
    free(l->expert_in);
    free(l->seen);
    free(l->score);
    free(l->known);
    free(l->kept);
}

void expert_cache_free(gpu_backend *b) {
    expert_cache *c = b->experts;
    if (!c) return;
    gpu_lanes_clear(b, &c->lanes);
    expert_kept_free(b);
    for (size_t i = 0; i < c->layer_count; i++) expert_layer_free(&c->layers[i]);
    if (c->table) gpu_buffer_free(b->host, c->table);
    if (c->lanes.buffer) gpu_buffer_free(b->host, c->lanes.buffer);
    free(c->layers);
    free(c);
    b->experts = NULL;
}

static gm_status expert_layer_make(expert_layer *l, const op *product, uint32_t slots, error *e) {
    const uint32_t experts = (uint32_t)product->in[FUSED_W0]->ne[2];
    *l = (expert_layer){ .experts = experts, .used = product->used };
    l->slot_of = malloc(experts * sizeof *l->slot_of);
    l->expert_in = malloc(slots * sizeof *l->expert_in);
    l->seen = calloc(experts, sizeof *l->seen);
    l->score = calloc(experts, sizeof *l->score);
    l->known = calloc(experts, sizeof *l->known);
    l->kept = calloc(experts, sizeof *l->kept);
    if (!l->slot_of || !l->expert_in || !l->seen || !l->score || !l->known || !l->kept) {
        expert_layer_free(l);
        return fail_memory(e, "a layer's table of experts", experts * sizeof *l->slot_of);
    }
    for (uint32_t i = 0; i < experts; i++) l->slot_of[i] = EXPERT_NOWHERE;
    for (uint32_t i = 0; i < slots; i++) l->expert_in[i] = EXPERT_NOWHERE;
    return GM_OK;
}

static gm_status expert_cache_add_layer(expert_cache *c, const op *product, error *e) {
    expert_layer *layers = realloc(c->layers, (c->layer_count + 1) * sizeof *layers);
    if (!layers) return fail_memory(e, "the cache of experts", (c->layer_count + 1) * sizeof *layers);
    c->layers = layers;
    TRY(expert_layer_make(&layers[c->layer_count], product, c->slots, e));
    c->warm = ++c->layer_count;
    return GM_OK;
}

gm_status expert_cache_add(gpu_backend *b, const op *product, error *e) {
    gpu_weight *w = (gpu_weight *)gpu_backend_weight(b, product->in[FUSED_W0]);
    if (!w || !w->cached) return GM_OK;
    if (product->in[FUSED_W0]->ne[2] > EXPERT_MOST)
        return fail(e, GM_UNSUPPORTED, "'%s' has %llu experts, but at most %d can be cached on the GPU",
                    product->in[FUSED_W0]->name, (unsigned long long)product->in[FUSED_W0]->ne[2], EXPERT_MOST);
    if (!b->experts) b->experts = calloc(1, sizeof *b->experts);
    expert_cache *c = b->experts;
    if (!c) return fail_memory(e, "the cache of experts", sizeof *c);
    for (size_t i = 0; i < c->layer_count; i++) { /* a weight that another graph has, too */
        for (size_t j = 0; j < c->layers[i].weight_count; j++) {
            if (c->layers[i].weights[j] == w) return GM_OK;
        }
    }
    c->slots = b->budget->slots;
    if (c->listing != b->sets->g || c->routes != product->in[FUSED_ROUTES]) TRY(expert_cache_add_layer(c, product, e));
    c->listing = b->sets->g;
    c->routes = product->in[FUSED_ROUTES];
    expert_layer *l = &c->layers[c->layer_count - 1];
    if (l->weight_count == EXPERT_WEIGHTS || l->experts != product->in[FUSED_W0]->ne[2])
        return fail(e, GM_UNSUPPORTED, "'%s' does not fit the other matrices of its layer's experts",
                    product->in[FUSED_W0]->name);
    w->expert_layer = (uint32_t)c->layer_count - 1;
    l->weights[l->weight_count++] = w;
    return GM_OK;
}

static uint64_t expert_layer_offset(const expert_cache *c, const expert_layer *l) {
    return (uint64_t)(l - c->layers) * c->stride;
}

/* Appends a write of a layer's number and slots, but not of its uses, which the GPU counts. */
static void expert_layer_write(const gpu_backend *b, const expert_layer *l, gpu_words *words) {
    const expert_cache *c = b->experts;
    const uint64_t      at = expert_layer_offset(c, l);
    const uint32_t      header[EXPERT_HEADER] = { 1 + (uint32_t)(l - c->layers) };
    gpu_words_write(words, c->table, at, header, EXPERT_HEADER);
    gpu_words_write(words, c->table, at + sizeof header, l->slot_of, l->experts);
}

static gm_status expert_words_submit(gpu_backend *b, gpu_words *words, error *e) {
    const gm_status status =
        words->failed ? fail_memory(e, "a command list", 64) : gpu_submit(b->host, words->data, words->count, e);
    free(words->data);
    *words = (gpu_words){ 0 };
    return status;
}

gm_status expert_cache_make(gpu_backend *b, error *e) {
    expert_cache *c = b->experts;
    if (!c || c->table) return GM_OK;
    uint32_t most = 0;
    uint64_t staging = 256;
    for (size_t i = 0; i < c->layer_count; i++) {
        const expert_layer *l = &c->layers[i];
        if (l->experts > most) most = l->experts;
        for (size_t j = 0; j < l->weight_count; j++) {
            gpu_weight *w = (gpu_weight *)l->weights[j];
            staging = max_size(staging, budget_staging(&w->layout, GPU_EXPERT_LANES * w->parts[0].bytes / l->experts));
            TRY(gpu_weight_create_buffers(b, w, e));
        }
    }
    c->stride = round_up((EXPERT_HEADER + 2 * (uint64_t)most) * sizeof(uint32_t), 256);
    TRY(gpu_lanes_make(b, &c->lanes, GPU_EXPERT_LANES, staging, e));
    c->table = gpu_buffer_new(b->host, c->layer_count * c->stride, e);
    if (!c->table) return e->status;
    expert_kept_make(b);
    gpu_words words = { 0 };
    gpu_words_begin(&words);
    for (size_t i = 0; i < c->layer_count; i++) expert_layer_write(b, &c->layers[i], &words);
    return expert_words_submit(b, &words, e);
}

gpu_binding expert_cache_binding(const gpu_backend *b, const gpu_weight *w) {
    const expert_cache *c = b->experts;
    return (gpu_binding){ 0, c->table, w->expert_layer * c->stride, c->stride };
}

uint32_t expert_cache_in_slot(const gpu_backend *b, const gpu_weight *w, uint32_t slot) {
    const expert_cache *c = b->experts;
    const uint32_t      expert = c->layers[w->expert_layer].expert_in[slot < c->slots ? slot : 0];
    return expert == EXPERT_NOWHERE ? 0 : expert;
}

/* ---- statistics ---- */

expert_statistics expert_statistics_since(const gpu_backend *b, const expert_statistics *before) {
    const expert_statistics none = { 0 }, *now = b->experts ? &b->experts->statistics : &none;
    return (expert_statistics){ .picks = now->picks - before->picks,
                                .missed = now->missed - before->missed,
                                .loaded = now->loaded - before->loaded,
                                .bytes = now->bytes - before->bytes,
                                .restored = now->restored - before->restored,
                                .ahead = now->ahead - before->ahead,
                                .tokens = now->tokens - before->tokens,
                                .reports = now->reports - before->reports };
}

/* ---- which experts stay ---- */

void expert_cache_report(expert_cache *c, const uint32_t *report, expert_wants *wants, expert_wants *ahead) {
    const uint32_t *wanted = report + EXPERT_HEADER, *uses = wanted + EXPERT_MOST, *probably = uses + EXPERT_MOST;
    const uint32_t  next = report[EXPERT_REPORT_AHEAD];
    c->statistics.reports++;
    wants->layer = ahead->layer = NULL;
    if (next && next <= c->layer_count) ahead->layer = &c->layers[next - 1];
    memcpy(ahead->wanted, probably, sizeof ahead->wanted);
    if (!report[EXPERT_REPORT_LAYER] || report[EXPERT_REPORT_LAYER] > c->layer_count) return;
    expert_layer *l = wants->layer = &c->layers[report[EXPERT_REPORT_LAYER] - 1];
    uint64_t      since = 0;
    for (uint32_t i = 0; i < l->experts; i++) since += uses[i] - l->seen[i];
    const float fade = exp2f(-(float)since / (float)(EXPERT_HALF_LIFE * l->used));
    for (uint32_t i = 0; i < l->experts; i++) {
        l->score[i] = l->score[i] * fade + (float)(uses[i] - l->seen[i]);
        l->seen[i] = uses[i];
        wants->wanted[i] = wanted[i];
        if (l->slot_of[i] == EXPERT_NOWHERE) c->statistics.missed += wanted[i];
    }
}

void expert_cache_count(expert_cache *c, size_t tokens) {
    c->statistics.tokens += tokens;
    for (size_t i = 0; i < c->layer_count; i++) c->statistics.picks += (uint64_t)tokens * c->layers[i].used;
}

/* The slot to use next: a free one, or that of the expert with the lowest score among those that nobody wants. EXPERT_NOWHERE: there is none. */
static uint32_t expert_slot_to_use(const expert_cache *c, const expert_layer *l, const expert_wants *wants) {
    uint32_t found = EXPERT_NOWHERE;
    for (uint32_t slot = 0; slot < c->slots; slot++) {
        const uint32_t expert = l->expert_in[slot];
        if (expert == EXPERT_NOWHERE) return slot;
        if (wants->wanted[expert]) continue;
        if (found == EXPERT_NOWHERE || l->score[expert] < l->score[l->expert_in[found]]) found = slot;
    }
    return found;
}

bool expert_cache_lacks(const expert_wants *wants) {
    for (uint32_t i = 0; wants->layer && i < wants->layer->experts; i++) {
        if (wants->wanted[i] && wants->layer->slot_of[i] == EXPERT_NOWHERE) return true;
    }
    return false;
}

bool expert_cache_strike(expert_wants *wants) {
    expert_layer *l = wants->layer;
    bool          left = false;
    for (uint32_t i = 0; i < l->experts; i++) {
        if (l->slot_of[i] != EXPERT_NOWHERE) {
            l->score[i] += (float)wants->wanted[i]; /* a quiet run does not count */
            wants->wanted[i] = 0;
        }
        left |= wants->wanted[i] != 0;
    }
    return left;
}

/* ---- loading ---- */

static expert_layer *expert_job_layer(const expert_job *job, size_t i) { return job->layer[i >= job->wanted]; }

/* Forgets what is in the slots of an unfinished job: it may be half an expert. */
static void expert_job_drop(gpu_backend *b) {
    expert_cache *c = b->experts;
    expert_job   *job = &c->job;
    gpu_lanes_clear(b, &c->lanes);
    for (size_t i = 0; i < job->count && !job->complete; i++) {
        expert_job_layer(job, i)->slot_of[job->expert[i]] = EXPERT_NOWHERE;
        expert_job_layer(job, i)->expert_in[job->slot[i]] = EXPERT_NOWHERE;
    }
    job->owner = NULL;
}

/* Usually a run has just gone on with what was loaded for it: while the GPU computes, there is time to take the copies that have arrived. */
void expert_cache_release(gpu_backend *b, const void *owner) {
    if (!b->experts || b->experts->job.owner != owner || !owner) return;
    expert_job_drop(b);
    expert_kept_take(b);
}

/* Gives every missing expert a slot, as far as there are any. The experts that were there lose theirs at once. */
static void expert_job_add(expert_cache *c, const expert_wants *wants) {
    expert_job   *job = &c->job;
    expert_layer *l = wants->layer;
    for (uint32_t expert = 0; l && expert < l->experts && job->count < EXPERT_MOST; expert++) {
        if (!wants->wanted[expert] || l->slot_of[expert] != EXPERT_NOWHERE) continue;
        const uint32_t slot = expert_slot_to_use(c, l, wants);
        if (slot == EXPERT_NOWHERE) return;
        job->replaced[job->count] = l->expert_in[slot];
        if (l->expert_in[slot] != EXPERT_NOWHERE) l->slot_of[l->expert_in[slot]] = EXPERT_NOWHERE;
        l->expert_in[slot] =
            expert; /* wanted, so that the next one gets another slot; the table says nowhere until it is there */
        l->changes++;
        job->expert[job->count] = expert;
        job->slot[job->count++] = slot;
    }
}

static gm_status expert_job_write_tables(gpu_backend *b, error *e) {
    const expert_job *job = &b->experts->job;
    gpu_words         words = { 0 };
    gpu_words_begin(&words);
    for (size_t i = 0; i < 2; i++) {
        if (job->layer[i]) expert_layer_write(b, job->layer[i], &words);
    }
    return expert_words_submit(b, &words, e);
}

/* Others may run before everything is there, so the GPU must know first which experts are gone. What is to be kept of these is read before
 * anything is written to their slots: the queue keeps the order. */
static gm_status expert_job_begin(gpu_backend *b, const void *owner, const expert_wants *wants,
                                  const expert_wants *ahead, error *e) {
    expert_cache *c = b->experts;
    expert_job   *job = &c->job;
    *job = (expert_job){ .layer = { wants->layer, ahead->layer != wants->layer ? ahead->layer : NULL } };
    expert_job_add(c, wants);
    job->wanted = job->count;
    if (job->layer[1]) expert_job_add(c, ahead);
    job->owner = owner;
    if (job->layer[0]) expert_kept_ask(b, job->layer[0], job->replaced, job->slot, job->wanted);
    if (job->layer[1])
        expert_kept_ask(b, job->layer[1], job->replaced + job->wanted, job->slot + job->wanted,
                        job->count - job->wanted);
    return job->count ? expert_job_write_tables(b, e) : GM_OK;
}

static uint64_t expert_file_bytes(const expert_layer *l) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < l->weight_count; i++) bytes += l->weights[i]->parts[0].bytes / l->experts;
    return bytes;
}

/* Stages the experts that have no copy, as far as lanes are free. An expert may get a copy while it waits. */
static gm_status expert_job_stage(gpu_backend *b, error *e) {
    expert_cache *c = b->experts;
    expert_job   *job = &c->job;
    while (job->staged < job->count) {
        const expert_layer *l = expert_job_layer(job, job->staged);
        const uint32_t      expert = job->expert[job->staged], slot = job->slot[job->staged];
        if (expert_kept_is_read(c, l, expert)) expert_kept_take(b); /* perhaps its copy has just arrived */
        if (l->kept[expert] && !job->weight && !job->chunk) {
            const gm_status restored = expert_kept_restore(b, l, expert, slot, e);
            if (restored) return restored;
            c->statistics.restored++;
            b->uploaded += expert_file_bytes(l);
            job->staged++;
            continue;
        }
        if (c->lanes.used == c->lanes.count) break;
        job->from_file = true;
        const gm_status status =
            gpu_lanes_stage_expert(b, &c->lanes, l->weights[job->weight], expert, slot, &job->chunk, e);
        if (status) return status;
        if (job->chunk) continue;
        if (++job->weight < l->weight_count) continue;
        job->weight = 0;
        job->staged++;
    }
    return GM_OK;
}

/* Everything is on its way to the slots: now the tables say so. */
static gm_status expert_job_end(gpu_backend *b, error *e) {
    expert_cache *c = b->experts;
    expert_job   *job = &c->job;
    for (size_t i = 0; i < job->count; i++) {
        expert_layer *l = expert_job_layer(job, i);
        l->slot_of[job->expert[i]] = job->slot[i];
        c->statistics.bytes += expert_file_bytes(l);
    }
    c->statistics.loaded += job->count;
    c->statistics.ahead += job->count - job->wanted;
    const gm_status status = job->count ? expert_job_write_tables(b, e) : GM_OK;
    job->complete = !status;
    return status || !job->from_file ? status : gpu_backend_ask_damage(b, e);
}

static gm_status expert_job_run(gpu_backend *b, error *e) {
    expert_cache *c = b->experts;
    expert_job   *job = &c->job;
    uint32_t      ignored;
    while (!job->complete) {
        gm_status status = expert_job_stage(b, e);
        if (status && (status != GM_AGAIN || !c->lanes.used)) return status;
        if (!c->lanes.used) return expert_job_end(b, e);
        status = gpu_lanes_finish(b, &c->lanes, &ignored, e);
        if (status) return status;
    }
    return GM_OK;
}

/* Others wait until the owner's experts are there and it has gone on with them: if two runs took them from each other, none would. But an
 * owner that nobody polls any more must not stop them. */
static gm_status expert_job_take(gpu_backend *b, const void *owner) {
    enum { PATIENCE = 16 };
    expert_job *job = &b->experts->job;
    error       its = { 0 };
    if (!job->owner || job->owner == owner) return GM_OK;
    const gm_status status = expert_job_run(b, &its);
    if (status == GM_AGAIN || (!status && job->patience++ < PATIENCE)) return GM_AGAIN;
    expert_job_drop(b); /* an error concerns only the owner: it will load its experts again, and get the error */
    return GM_OK;
}

gm_status expert_cache_load(gpu_backend *b, const void *owner, const expert_wants *wants, const expert_wants *ahead,
                            error *e) {
    expert_cache *c = b->experts;
    gm_status     status = expert_job_take(b, owner);
    if (!status && c->job.owner != owner) status = expert_job_begin(b, owner, wants, ahead, e);
    if (!status) status = expert_job_run(b, e);
    if (status && status != GM_AGAIN) expert_job_drop(b);
    return status;
}
