/* adapter_config.json of a PEFT folder: what it says about modules, and what we refuse. Any key may be missing. */

#ifndef GM_PEFT_CONFIG_H
#define GM_PEFT_CONFIG_H

#include "base/json.h"

enum { PEFT_MOST_CONFIG = 1 << 20 };

typedef struct {
    const json *root; /* in the caller's arena */
    uint32_t    rank; /* 0: not said */
    double      alpha;
    bool        root_of_rank; /* use_rslora: the scale is alpha / sqrt(rank) */
    str         base_model;   /* "": not said */
} peft_config;

/* Refuses kinds of adapters that are more than pairs of matrices, by name. */
gm_status peft_config_parse(str text, arena *a, peft_config *out, error *e);

/* Rank (0: not said) and scale numerator of a module, by its path; fails if the configuration does not target it. */
gm_status peft_config_module(const peft_config *c, str path, uint32_t *rank, double *alpha, error *e);

#endif
