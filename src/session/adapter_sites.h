/* The weights that an engine's adapters correct, with room for a pair of matrices in each slot: adapters.h. */

#ifndef GM_ADAPTER_SITES_H
#define GM_ADAPTER_SITES_H

#include "adapter/adapter.h"
#include "gemmule.h"
#include "graph/graph.h"
#include "model/model.h"

enum { ADAPTER_SETS = 256 }; /* weighted sets that can be in use at once; set 0 is empty */

typedef struct {
    arena          memory;   /* the sites and their names */
    model_site    *sites;    /* those of the text model, then those of each tower */
    const char   **pairs;    /* of each site: what adapters call its weight, which the file may call otherwise */
    float        **matrices; /* [2 · count]: A and B of each site; NULL: only the GPU has them */
    model_adapters model;    /* all sites */
    model_adapters parts[MODEL_PARTS];
    float         *table; /* [ADAPTER_SETS, slots]: the sets' weights */
    graph         *g;     /* the text model with corrections at these sites */
    uint32_t       width; /* the model's */
} adapter_sites;

/* Sites for these adapters, at least so many slots, and the memory for all of them, which on the GPU is part of the engine's.
 * `places` counts the numbers of vectors there. */
gm_status adapter_sites_make(adapter_sites *s, gm_engine *engine, adapter *const *contents, size_t count,
                             uint32_t least_slots, uint64_t *places, error *e);
/* There must be no plans of its graph any more. */
void adapter_sites_free(adapter_sites *s, gm_engine *engine);
/* Whether the sites have room for this adapter's pairs. */
bool adapter_sites_take(const adapter_sites *s, const model *m, const adapter *content);

/* A site's A (part 2 · site) or B (2 · site + 1). In memory, a slot has `rows` rows of `length` values: for each expert one per rank of the
 * class; of the embedding's A one per id. */
typedef struct {
    const model_site *site;
    const char       *pair;
    bool              is_b, is_table;
    uint64_t          rows, length;
} site_part;

site_part site_part_of(const adapter_sites *s, size_t part);
/* Rows [row, row + count) of a slot with this adapter: zeros where it has nothing. */
void site_fill(const adapter_sites *s, const site_part *p, const adapter *content, uint64_t row, uint64_t count,
               float *out);

#endif
