/* A new adapter: which weights of a model it corrects, with A random and B 0, so that at first it changes nothing. */

#ifndef GM_TRAIN_FRESH_H
#define GM_TRAIN_FRESH_H

#include "adapter/adapter.h"

typedef struct {
    uint32_t    rank;
    double      alpha;
    bool        rslora;  /* the scale is alpha / √rank instead of alpha / rank */
    const char *targets; /* "q,k,v,o,gate,up,down" (NULL) or others of fresh_target_names, with commas */
    const char *layers;  /* "0-5,9"; NULL: all */
    uint64_t    seed;
    double      other; /* the half that is 0 at first is evenly between ± this: for checks */
} fresh_options;

/* "q, k, v, …", for messages and help. */
const char *fresh_target_names(void);

/* Targets that a layer does not have (the values of one whose values are its keys, or those of a layer that shares them) are left out there;
 * it is an error if no layer has one. */
gm_status adapter_fresh(const model *m, const fresh_options *o, const char *name, adapter **out, error *e);

#endif
