/* Internal to src/adapter: halves of pairs while a file is being read. */

#ifndef GM_ADAPTER_PARTS_H
#define GM_ADAPTER_PARTS_H

#include "adapter/adapter.h"
#include "adapter/modules.h"
#include "adapter/peft_config.h"
#include "adapter/safetensors.h"

#define PEFT_WEIGHTS "adapter_model.safetensors"
#define PEFT_CONFIG "adapter_config.json"
#define PEFT_PREFIX "base_model.model."
#define GGUF_PREFIX_KEY "gemmule.peft_prefix" /* adapter.prefix, so that a PEFT folder comes back with its own paths */

/* A or B of a pair, in the file. */
typedef struct {
    module_id  module;
    bool       second;       /* B */
    str        name;         /* the module as the file calls it: a path or a tensor */
    uint64_t   rank, length; /* length: of A the inputs, of B the outputs */
    uint64_t   experts;
    quant_type type;
    uint64_t   offset, bytes;
    bool       transposed; /* [rank][length], and [length][rank] is wanted */
} adapter_half;

typedef struct {
    adapter_half *items;
    size_t        count;
    str           prefix; /* of the first module of the text model; may be empty */
    bool          has_prefix;
    str           base_model;
    double        alpha;     /* of a GGUF, for all pairs */
    bool          has_alpha; /* false: the scale is 1 */
} adapter_halves;

/* What the file has, in its own order. Refuses tensors that are no halves. */
gm_status peft_list_halves(const safetensors *s, arena *a, adapter_halves *out, error *e);
gm_status gguf_list_halves(const gguf *g, arena *a, adapter_halves *out, error *e);

#endif
