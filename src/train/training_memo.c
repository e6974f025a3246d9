/* What a training computes once, and needs again in each epoch: the soft tokens of pictures and sounds, and what the model thinks of preference
 * pairs without the adapter. Each picture is encoded alone, so that its rows do not depend on what else is in the run. */

#include "train/training_parts.h"

#include "base/sha256.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of all soft tokens that are kept; further ones are computed each time. */
#define MEMO_BYTES (sizeof(void *) > 4 ? UINT64_C(256) << 20 : UINT64_C(64) << 20)

void training_memo_free(training_memo *m) {
    for (size_t i = 0; i < m->count; i++) free(m->items[i].rows);
    free(m->items);
    free(m->references);
    *m = (training_memo){ 0 };
}

/* ---- soft tokens ---- */

static void memo_key(const data_media *m, uint8_t key[32]) {
    const uint64_t numbers[] = { m->kind, m->part.budget, m->from, m->to };
    sha256         hash;
    sha256_start(&hash);
    sha256_add(&hash, numbers, sizeof numbers);
    sha256_add(&hash, m->part.data, m->part.size);
    sha256_end(&hash, key);
}

bool training_memo_find(const training_memo *m, const data_media *media, size_t width, float *rows) {
    uint8_t key[32];
    if (!m->count) return false;
    memo_key(media, key);
    for (size_t i = 0; i < m->count; i++) {
        if (m->items[i].count != media->count || memcmp(m->items[i].key, key, sizeof key)) continue;
        memcpy(rows, m->items[i].rows, media->count * width * sizeof *rows);
        return true;
    }
    return false;
}

/* Without memory for it, it is computed again. */
void training_memo_add(training_memo *m, const data_media *media, size_t width, const float *rows) {
    const uint64_t bytes = (uint64_t)media->count * width * sizeof *rows;
    m->encoded++;
    if (m->bytes + bytes > MEMO_BYTES) return;
    if (m->count == m->capacity) {
        const size_t   more = 2 * m->capacity + 16;
        training_rows *grown = realloc(m->items, more * sizeof *grown);
        if (!grown) return;
        m->items = grown;
        m->capacity = more;
    }
    float *copy = malloc((size_t)bytes);
    if (!copy) return;
    memcpy(copy, rows, (size_t)bytes);
    m->items[m->count] = (training_rows){ .rows = copy, .count = media->count };
    memo_key(media, m->items[m->count++].key);
    m->bytes += bytes;
}

/* ---- references ---- */

gm_status training_memo_make_references(training_memo *m, const dataset *d, error *e) {
    const size_t count = 2 * dataset_count(d);
    m->references = malloc(count * sizeof *m->references);
    if (!m->references) return fail_memory(e, "what the model thinks of the pairs", count * sizeof *m->references);
    m->reference_count = count;
    for (size_t i = 0; i < count; i++) m->references[i] = NAN;
    return GM_OK;
}

double *training_memo_reference(const training_memo *m, const data_span *span) {
    return &m->references[2 * span->example + span->rejected];
}

enum { PIECES = 4 }; /* of 16 bits: sums of floats keep them as they are */

static void reference_split(double x, float pieces[PIECES]) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (size_t i = 0; i < PIECES; i++) pieces[i] = (float)(bits >> (16 * i) & 0xffff);
}

static double reference_join(const float pieces[PIECES]) {
    uint64_t bits = 0;
    double   x;
    for (size_t i = 0; i < PIECES; i++) bits |= (uint64_t)pieces[i] << (16 * i);
    memcpy(&x, &bits, sizeof x);
    return x;
}

gm_status training_memo_share(training_memo *m, const data_epoch *order, size_t first, size_t runs,
                              const training_shares *shares, error *e) {
    if (!shares->reduce || !m->reference_count || !runs) return GM_OK;
    const uint32_t *from = order->runs + first, *examples = order->examples + *from;
    const size_t    count = from[runs] - *from;
    float(*sums)[2][PIECES] = calloc(count, sizeof *sums); /* 0: another process has it */
    if (!sums) return fail_memory(e, "what the model thinks of the pairs", count * sizeof *sums);
    for (size_t r = shares->part; r < runs; r += shares->parts) {
        for (size_t i = from[r] - *from; i < from[r + 1] - *from; i++) {
            for (size_t k = 0; k < 2; k++) reference_split(m->references[2 * examples[i] + k], sums[i][k]);
        }
    }
    const gm_status status = shares->reduce(shares->user, &sums[0][0][0], 2 * PIECES * count, e);
    for (size_t i = 0; i < count && !status; i++) {
        for (size_t k = 0; k < 2; k++) m->references[2 * examples[i] + k] = reference_join(sums[i][k]);
    }
    free(sums);
    return status;
}

double training_memo_unknown(const training_memo *m, const dataset *d) {
    double tokens = 0;
    for (size_t i = 0; i < m->reference_count; i += 2) {
        if (isnan(m->references[i])) tokens += (double)dataset_tokens(d, i / 2);
    }
    return tokens;
}
