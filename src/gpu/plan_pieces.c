/* Long runs: submits a plan's list piece by piece, and passes values from plan to plan. */

#include "gpu/plan.h"

gpu_pieces gpu_plan_part(const gpu_plan *p, size_t part) {
    const size_t first = part ? p->split : 0, end = !part && p->g.split ? p->split : p->dispatches;
    return (gpu_pieces){ first, first, end };
}

static size_t step_begin(const gpu_plan *p, size_t step) { return step ? p->steps[step - 1].end : p->first_dispatch; }

gm_status gpu_plan_submit_piece(gpu_plan *p, const run_inputs *in, gpu_pieces *pieces, double *work, uint32_t ticket,
                                error *e) {
    size_t end = pieces->next;
    double sum = 0;
    if (p->streaming) return fail(e, GM_UNSUPPORTED, "a run that uploads weights cannot be submitted in pieces");
    while (end < pieces->end && (end == pieces->next || sum + p->steps[end].work <= *work)) sum += p->steps[end++].work;
    if (pieces->next == pieces->first) {
        gm_status status = plan_write_inputs(p, in, e);
        if (!status) status = gpu_plan_write_given(p, in, e);
        if (status) return status;
    }
    gpu_words   *list = &p->piece;
    const size_t begin = step_begin(p, pieces->next);
    list->count = 0;
    gpu_words_begin(list);
    if (pieces->next == pieces->first) gpu_words_append(list, p->words.data + 1, p->first_dispatch - 1);
    gpu_words_append(list, p->words.data + begin, step_begin(p, end) - begin);
    if (ticket && end == pieces->end) {
        p->words.data[p->at_ticket[0]] = ticket;
        gpu_words_append(list, p->words.data + p->end_dispatch, p->end_read[0] - p->end_dispatch);
    }
    if (list->failed) return fail_memory(e, "a command list", list->count * sizeof *list->data);
    const gm_status status = gpu_submit(p->backend->host, list->data, list->count, e);
    if (status) return status;
    if (p->backend->watch) {
        const gpu_submission done = { .plan = p,
                                      .in = *in,
                                      .words = p->words.data + begin,
                                      .count = step_begin(p, end) - begin,
                                      .first = pieces->next,
                                      .end = end };
        p->backend->watch(p->backend->watch_user, &done);
    }
    pieces->next = end;
    *work = sum;
    return GM_OK;
}

/* WebGPU copies only from one buffer to another. */
static gm_status pass_around(gpu_plan *p, uint64_t bytes, error *e) {
    if (p->passing_bytes >= bytes) return GM_OK;
    if (p->passing) gpu_buffer_free(p->backend->host, p->passing);
    p->passing = gpu_buffer_new(p->backend->host, bytes, e);
    p->passing_bytes = p->passing ? bytes : 0;
    return p->passing ? GM_OK : e->status;
}

gm_status gpu_plan_pass(gpu_plan *to, const tensor *leaf, const gpu_plan *from, size_t result, size_t entries,
                        error *e) {
    const uint64_t at = to->items[leaf->index].offset, bytes = entries * leaf->token_stride * sizeof(float);
    const gpu_id   target = plan_memory(to, at);
    gpu_words     *list = &to->piece;
    list->count = 0;
    gpu_words_begin(list);
    if (!from) gpu_words_clear(list, target, at % to->segment, bytes);
    else {
        const tensor  *value = plan_base(graph_result(&from->g, result));
        const uint64_t place = from->items[value->index].offset;
        gpu_id         origin = plan_memory(from, place);
        uint64_t       offset = place % from->segment;
        if (value->token_stride != leaf->token_stride)
            return fail(e, GM_BAD_ARGUMENT, "a result of %llu values per token does not fit a leaf of %llu",
                        (unsigned long long)value->token_stride, (unsigned long long)leaf->token_stride);
        if (origin == target) {
            TRY(pass_around(to, plan_count(to, leaf) * leaf->token_stride * sizeof(float), e));
            gpu_words_copy(list, origin, offset, to->passing, 0, bytes);
            origin = to->passing;
            offset = 0;
        }
        gpu_words_copy(list, origin, offset, target, at % to->segment, bytes);
    }
    if (list->failed) return fail_memory(e, "a command list", list->count * sizeof *list->data);
    return gpu_submit(to->backend->host, list->data, list->count, e);
}
