/* The linears that adapters correct, with their two names: the path of the module in the original model, which PEFT uses, and the
 * name of the tensor in GGUF files (those of llama.cpp, where Ollama's differ). */

#ifndef GM_MODULES_H
#define GM_MODULES_H

#include "base/buffer.h"

/* Ordered: module_compare sorts as adapter.h says. */
typedef struct {
    uint8_t  group, row;
    uint32_t layer;
} module_id;

enum { MODULE_NAME = 64 };

/* A path without "base_model.model." and without ".lora_A.weight": "model.language_model.layers.3.self_attn.q_proj". `prefix` is
 * set to what stands before "layers." or "embed_tokens", unless the module is outside the text model. */
bool module_of_path(str path, module_id *out, str *prefix);
/* "blk.3.attn_q.weight" */
bool module_of_tensor(str name, module_id *out);

void module_tensor(module_id m, char out[MODULE_NAME]);
/* False: the module has no path, because the original model has these weights in a form that PEFT does not adapt. */
bool module_path(module_id m, str prefix, buffer *out);

int  module_compare(module_id a, module_id b);
bool module_is_embedding(module_id m);
bool module_is_head(module_id m);
bool module_is_tower(module_id m);
bool module_has_experts(module_id m);

/* The other name that the file of a model with towers of its own (Ollama) has for a tensor of the audio tower; NULL: the same. */
const char *module_inline_tensor(module_id m, char out[MODULE_NAME]);

#endif
