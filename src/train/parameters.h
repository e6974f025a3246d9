/* What is trained: the matrices A and B of one adapter, in slot 0 of sites of their own, laid out as at inference; with their gradients and
 * the optimiser's moments. Further slots hold adapters that stay as they are. */

#ifndef GM_TRAIN_PARAMETERS_H
#define GM_TRAIN_PARAMETERS_H

#include "adapter/adapter.h"
#include "graph/backward.h"

/* What there is of each part. */
typedef enum { TRAIN_VALUES, TRAIN_GRADIENT, TRAIN_MOMENT_1, TRAIN_MOMENT_2, TRAIN_STATES } train_state;

/* A or B of a site. */
typedef struct {
    const adapter_pair *pair; /* of the trained adapter; NULL: only others correct this weight */
    size_t              site;
    bool                is_b;
    uint64_t            size; /* values of a slot */
    float               scale;
    /* Values are [slots, size]; B is multiplied by its scale. The other states are [size], of the pair's own values; there are none if it
     * is not trained. */
    float *states[TRAIN_STATES]; /* in memory; NULL: only the GPU has them */
    tensor tensors[TRAIN_STATES];
} train_part;

typedef struct {
    arena           memory;
    model_adapters  model;
    model_site     *sites;
    train_part     *parts; /* [2 · sites] */
    size_t          count;
    backward_part  *trained;
    size_t          trained_count;
    uint64_t        bytes;
    float           width;    /* the model's */
    const adapter **adapters; /* [slots] */
    float          *table;    /* [sets, slots] */
} train_parameters;

/* The sets that records name. */
enum { TRAIN_SET_ALL = 1, TRAIN_SET_FROZEN = 2 }; /* with the trained adapter, and without it */

/* The adapters must outlive the parameters. frozen[i] counts times scales[i]. With `places`, which counts the numbers
 * of vectors there, all of it is on the GPU: the caller writes values and table. */
gm_status train_parameters_make(train_parameters *p, const model *m, const adapter *trained,
                                const adapter *const *frozen, const float *scales, size_t count, uint64_t *places,
                                error *e);
void      train_parameters_free(train_parameters *p);

/* Writes a state's values, [size], in the layout of a pair of the same shape, into its A or B as the part is. */
void train_part_store(const train_parameters *p, const train_part *part, train_state what, const float *values,
                      const adapter_pair *into);
/* The values of a slot as they are at first: 0 where its adapter has none. */
void train_part_fill(const train_parameters *p, const train_part *part, size_t slot, float *out);
/* NULL: this is not trained. */
const train_part *train_part_find(const train_parameters *p, const char *base, bool is_b);

#endif
