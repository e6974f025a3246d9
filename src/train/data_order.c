/* The order of examples: duplicates, the split into training and evaluation, epochs, and packing into runs. */

#include "train/data_parts.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups of equal records ---- */

typedef struct {
    uint64_t rank; /* random, by seed and content */
    uint32_t first, count;
} data_group;

typedef struct {
    uint8_t  content[16];
    uint32_t entry;
} data_sorted;

static int compare_content(const void *a, const void *b) {
    const data_sorted *x = a, *y = b;
    const int          order = memcmp(x->content, y->content, sizeof x->content);
    return order ? order : x->entry < y->entry ? -1 : 1;
}

static int compare_rank(const void *a, const void *b) {
    const data_group *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->first < y->first ? -1 : 1;
}

static uint64_t content_rank(const uint8_t content[16], uint64_t seed) {
    uint32_t       counter[4], words[4];
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    memcpy(counter, content, sizeof counter);
    philox(counter, key, words);
    return (uint64_t)words[0] << 32 | words[1];
}

static void note_duplicates(dataset *d, const data_sorted *sorted, const data_group *g) {
    data_stats *s = &d->stats;
    s->duplicates += g->count - 1;
    if (g->count < 2) return;
    const uint64_t of = d->entries[sorted[g->first].entry].line, line = d->entries[sorted[g->first + 1].entry].line;
    if (s->duplicate_line && s->duplicate_line < line) return;
    s->duplicate_line = line;
    s->duplicate_of = of;
}

/* Whole groups, so that nothing is on both sides. At least one, if that leaves something to learn. */
static void choose_eval(dataset *d, const data_sorted *sorted, data_group *groups, size_t count) {
    const double share = d->options.eval_share * (double)d->entry_count;
    const size_t target =
        min_size(max_size((size_t)floor(share + 0.5), 1), d->entry_count - 1); /* one is learned from */
    size_t taken = 0;
    if (d->options.eval_share <= 0 || count < 2) return;
    qsort(groups, count, sizeof *groups, compare_rank);
    for (size_t i = 0; i < count; i++) {
        const size_t n = groups[i].count;
        const bool   first =
            !taken && i + 1 == count; /* all groups are large: this one, though it is more than the share */
        if (taken + n > target && !first) continue;
        taken += n;
        for (size_t k = 0; k < n; k++) d->entries[sorted[groups[i].first + k].entry].eval = true;
    }
}

gm_status dataset_split(dataset *d, error *e) {
    const size_t n = d->entry_count;
    data_sorted *sorted = calloc(n, sizeof *sorted);
    data_group  *groups = calloc(n, sizeof *groups);
    size_t       count = 0;
    if (sorted && groups) {
        for (size_t i = 0; i < n; i++) {
            memcpy(sorted[i].content, d->entries[i].content, sizeof sorted[i].content);
            sorted[i].entry = (uint32_t)i;
        }
        qsort(sorted, n, sizeof *sorted, compare_content);
        for (size_t i = 0; i < n; i++) {
            if (i && !memcmp(sorted[i].content, sorted[i - 1].content, sizeof sorted[i].content)) {
                groups[count - 1].count++;
                continue;
            }
            groups[count++] = (data_group){ content_rank(sorted[i].content, d->options.seed), (uint32_t)i, 1 };
        }
        for (size_t i = 0; i < count; i++) note_duplicates(d, sorted, &groups[i]);
        choose_eval(d, sorted, groups, count);
    }
    const bool fine = sorted && groups;
    free(sorted);
    free(groups);
    return fine ? GM_OK : fail_memory(e, "the index of the data", n * (sizeof *sorted + sizeof *groups));
}

/* ---- epochs ---- */

/* Fisher-Yates. The remainder's bias is below 2^-32 for any number of examples. */
static void epoch_shuffle(uint32_t *items, size_t count, uint64_t seed, uint64_t epoch) {
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    for (size_t i = count; i-- > 1;) {
        const uint32_t counter[4] = { (uint32_t)i, (uint32_t)epoch, (uint32_t)(epoch >> 32), 0x6f726472 };
        uint32_t       words[4];
        philox(counter, key, words);
        const size_t   other = (size_t)(((uint64_t)words[0] << 32 | words[1]) % (i + 1));
        const uint32_t kept = items[i];
        items[i] = items[other];
        items[other] = kept;
    }
}

enum { PACK_WINDOW = 512 }; /* examples that are packed together: enough for full runs, few enough to stay shuffled */

typedef struct {
    uint32_t run_of[PACK_WINDOW];
    size_t   room[PACK_WINDOW]; /* of each run */
    uint32_t copy[PACK_WINDOW];
} pack_window;

/* First fit within the window: items are sorted by run, and the runs' starts appended. */
static void epoch_pack_window(const dataset *d, pack_window *w, size_t most, size_t from, size_t n, data_epoch *p) {
    size_t runs = 0, at = from;
    for (size_t i = 0; i < n; i++) {
        const size_t tokens = d->examples[p->examples[from + i]].tokens;
        size_t       run = 0;
        while (run < runs && w->room[run] < tokens) run++;
        if (run == runs) w->room[runs++] = most;
        w->room[run] -= tokens;
        w->run_of[i] = (uint32_t)run;
    }
    memcpy(w->copy, p->examples + from, n * sizeof *w->copy);
    for (size_t run = 0; run < runs; run++) {
        p->runs[p->run_count++] = (uint32_t)at;
        for (size_t i = 0; i < n; i++) {
            if (w->run_of[i] == run) p->examples[at++] = w->copy[i];
        }
    }
}

static gm_status epoch_pack(const dataset *d, size_t most, data_epoch *p, error *e) {
    pack_window *w = most ? malloc(sizeof *w) : NULL;
    if (most && !w) return fail_memory(e, "the order of the examples", sizeof *w);
    for (size_t from = 0; from < p->count; from += PACK_WINDOW) {
        const size_t n = min_size(p->count - from, PACK_WINDOW);
        if (w) epoch_pack_window(d, w, most, from, n, p);
        for (size_t i = 0; i < n && !w; i++) p->runs[p->run_count++] = (uint32_t)(from + i);
    }
    free(w);
    p->runs[p->run_count] = (uint32_t)p->count;
    return GM_OK;
}

gm_status dataset_epoch(const dataset *d, bool eval, uint64_t seed, uint64_t epoch, size_t most, data_epoch *out,
                        error *e) {
    *out = (data_epoch){ 0 };
    if (most && most < d->stats.longest)
        return fail(e, GM_BAD_ARGUMENT, "a run of %zu tokens is too short: the longest example has %llu", most,
                    (unsigned long long)d->stats.longest);
    out->examples = calloc(d->example_count + 1, sizeof *out->examples);
    out->runs = calloc(d->example_count + 1, sizeof *out->runs);
    if (!out->examples || !out->runs) {
        data_epoch_free(out);
        return fail_memory(e, "the order of the examples", 2 * d->example_count * sizeof *out->runs);
    }
    for (size_t i = 0; i < d->example_count; i++) {
        if (dataset_is_eval(d, i) == eval) out->examples[out->count++] = (uint32_t)i;
    }
    if (!eval) epoch_shuffle(out->examples, out->count, seed, epoch);
    const gm_status status = epoch_pack(d, most, out, e);
    if (status) data_epoch_free(out);
    return status;
}

void data_epoch_free(data_epoch *p) {
    free(p->examples);
    free(p->runs);
    *p = (data_epoch){ 0 };
}

/* ---- a run ---- */

static void run_add(data_run *r, const data_sequence *q, size_t example, bool rejected) {
    memcpy(r->ids + r->count, q->ids, q->count * sizeof *q->ids);
    memcpy(r->weights + r->count, q->weights, q->count * sizeof *q->weights);
    for (size_t i = 0; i < q->media_count; i++) {
        r->media[r->media_count] = q->media[i];
        r->media[r->media_count++].at += r->count;
    }
    r->spans[r->span_count++] = (data_span){ r->count, q->count, example, rejected };
    r->count += q->count;
    r->counted += q->counted;
}

gm_status dataset_run(dataset *d, const data_epoch *p, size_t run, data_run *out, error *e) {
    const size_t  from = p->runs[run], n = p->runs[run + 1] - from;
    size_t        tokens = 0, media = 0;
    gm_status     status = GM_OK;
    data_example *read = calloc(n, sizeof *read);
    *out = (data_run){ 0 };
    if (!read) return fail_memory(e, "a run", n * sizeof *read);
    for (size_t i = 0; i < n && !status; i++) {
        status = dataset_example(d, p->examples[from + i], &read[i], e);
        for (size_t k = 0; k < read[i].sequences && !status; k++) {
            tokens += read[i].sequence[k].count;
            media += read[i].sequence[k].media_count;
        }
    }
    if (!status) {
        out->ids = arena_array(&out->memory, tokens + 1, sizeof *out->ids);
        out->weights = arena_array(&out->memory, tokens + 1, sizeof *out->weights);
        out->spans = arena_array(&out->memory, 2 * n + 1, sizeof *out->spans);
        out->media = arena_array(&out->memory, media + 1, sizeof *out->media);
        if (!out->ids || !out->weights || !out->spans || !out->media)
            status = fail_memory(e, "a run", tokens * (sizeof *out->ids + sizeof *out->weights));
    }
    for (size_t i = 0; i < n && !status; i++) {
        for (size_t k = 0; k < read[i].sequences; k++)
            run_add(out, &read[i].sequence[k], p->examples[from + i], k == 1);
    }
    /* The bytes of media are in the arenas of their examples. */
    for (size_t i = 0; i < out->media_count && !status; i++) {
        gm_part *part = &out->media[i].part;
        part->data = arena_copy(&out->memory, (str){ part->data, part->size });
        if (!part->data) status = fail_memory(e, "a run", part->size);
    }
    for (size_t i = 0; i < n; i++) data_example_free(&read[i]);
    free(read);
    if (status) data_run_free(out);
    return status;
}

void data_run_free(data_run *r) {
    arena_free(&r->memory);
    *r = (data_run){ 0 };
}
