/* What is trained: the matrices A and B of one adapter, in slot 0 of sites of their own, laid out as at inference; with their gradients and
 * the optimiser's moments. Further slots hold adapters that stay as they are. */

#ifndef GM_TRAIN_PARAMETERS_H
#define GM_TRAIN_PARAMETERS_H

#include "adapter/adapter.h"
#include "graph/backward.h"

/* A or B of a site. */
typedef struct {
    const adapter_pair *pair; /* of the trained adapter; NULL: only others correct this weight */
    size_t              site;
    bool                is_b;
    uint64_t            size;                  /* values of a slot */
    float              *values;                /* [slots, size]; B is multiplied by its scale */
    float              *gradient, *moments[2]; /* [size], of the pair's own values; NULL: not trained */
    float               scale;
    tensor              tensors[4]; /* of the four above, for graphs */
} train_part;

typedef struct {
    arena          memory;
    model_adapters model;
    model_site    *sites;
    train_part    *parts; /* [2 · sites] */
    size_t         count;
    backward_part *trained;
    size_t         trained_count;
    uint64_t       bytes;
    float          width; /* the model's */
} train_parameters;

/* The sets that records name. */
enum { TRAIN_SET_ALL = 1, TRAIN_SET_FROZEN = 2 }; /* with the trained adapter, and without it */

/* The adapters must outlive the parameters. frozen[i] counts times scales[i]. */
gm_status train_parameters_make(train_parameters *p, const model *m, const adapter *trained,
                                const adapter *const *frozen, const float *scales, size_t count, error *e);
void      train_parameters_free(train_parameters *p);

/* Writes the values, or the gradients, of a part in the layout of an adapter's pair. */
void train_part_store(const train_parameters *p, const train_part *part, bool gradient, float *out);
/* The same of values from elsewhere, [size]. */
void train_part_convert(const train_parameters *p, const train_part *part, const float *values, float *out);
/* NULL: this is not trained. */
const train_part *train_part_find(const train_parameters *p, const char *base, bool is_b);

#endif
