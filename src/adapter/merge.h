/* Merges adapters into a model: a new GGUF whose weights are W + Σ scale · B · A. */

#ifndef GM_ADAPTER_MERGE_H
#define GM_ADAPTER_MERGE_H

#include "adapter/adapter.h"

typedef struct {
    const adapter *adapter;
    double         scale; /* the user's */
} merge_part;

/* Called with bytes written and bytes in all; false: stop. */
typedef bool (*merge_progress)(void *user, uint64_t done, uint64_t total);

typedef struct {
    bool           retype; /* write the tensors that change as `type`, where their rows are whole blocks of it */
    quant_type     type;
    size_t         threads; /* 0: one for each core */
    merge_progress progress;
    void          *user;
} merge_options;

/* What changed, by kind of tensor and type. The numbers are sums of squares: of the weights, of the change, and of what rounding
 * to the type loses of their sum. */
typedef struct {
    char       kind[ADAPTER_NAME];
    quant_type type;
    size_t     tensors;
    double     weights, change, lost;
} merge_kind;

typedef struct {
    merge_kind *kinds;
    size_t      count;
    merge_kind  all;
    uint64_t    bytes; /* of the new file */
} merge_report;

/* Streams: holds some rows at a time. The file appears when it is complete. An adapter of the embedding or of the head gives a model
 * with one table for both a head of its own ("output.weight"). `m` is the model of `file`; the adapters must fit. */
gm_status adapter_merge(const gguf *file, const model *m, const merge_part *parts, size_t count, const char *path,
                        const merge_options *options, arena *memory, merge_report *report, error *e);

#endif
