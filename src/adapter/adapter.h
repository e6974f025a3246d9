/* Adapters (LoRA): small pairs of matrices that correct linears of a model, y += scale · B · (A · x).
 *
 * There are two forms of files: a PEFT folder (adapter_model.safetensors and adapter_config.json) and a GGUF file, as llama.cpp
 * has it. Both are read into the same pairs, as f32, with the names of GGUF tensors. The reader trusts nothing: it bounds every
 * size by the file's length, and refuses by name what an adapter has that pairs cannot express. It knows no model; adapter_fits
 * compares the pairs with one. */

#ifndef GM_ADAPTER_H
#define GM_ADAPTER_H

#include "base/buffer.h"
#include "gguf/source.h"
#include "model/model.h"

enum { ADAPTER_NAME = 64, ADAPTER_MOST_RANK = 4096 };

/* One corrected linear. The embedding ("token_embd.weight") is a lookup, not a product: `in` is the vocabulary, `out` the model's
 * width, and a token adds scale · B · A[token] to its row, before the row is multiplied by sqrt(width). The head is
 * "output.weight", also if the model's own head is the table of the embedding; neither changes with the other's adapter. */
typedef struct {
    char     base[ADAPTER_NAME]; /* the tensor that it corrects: "blk.3.attn_q.weight" */
    uint32_t rank;               /* at least 1 */
    uint32_t in, out;
    uint32_t experts; /* 1, or the experts of a *_exps tensor */
    float   *a;       /* [experts][rank][in]; of the embedding [in][rank], so that a token's values are contiguous */
    float   *b;       /* [experts][out][rank] */
    double   alpha;   /* scale · rank */
    float    scale;   /* what the file says, alpha / rank or alpha / sqrt(rank); the user's scale comes on top */
} adapter_pair;

/* The pairs are in a fixed order: embedding, layers (by number, then q, k, v, …), head, towers. No two have the same base. */
typedef struct adapter {
    arena         memory;
    const char   *name;       /* of the folder or the file, without path and ".gguf" */
    const char   *base_model; /* the name of the model that it was made for; NULL: the file does not say */
    const char   *prefix;     /* of PEFT's paths, before "layers.": "model." or "model.language_model." */
    adapter_pair *pairs;
    size_t        count;
    uint64_t      bytes;      /* of all a and b */
    uint8_t       digest[32]; /* SHA-256 of the pairs, whatever the name and the form of the file */
} adapter;

bool adapter_is_embedding(const adapter_pair *p);
/* What it is, whatever the layer: "blk.3.attn_q.weight" → "attn_q", "v.blk.0.attn_q.weight" → "v.attn_q" */
const char *adapter_kind(const char *base, char out[ADAPTER_NAME]);
/* "path/to/name.gguf" → "name", as the reader names an adapter. NULL: no memory. */
char               *adapter_name_of(const char *path, arena *a);
const adapter_pair *adapter_find(const adapter *a, const char *base); /* NULL: it does not correct this tensor */

/* An adapter with the same pairs, whose values are all 0. */
gm_status adapter_like(const adapter *a, const char *name, adapter **out, error *e);

void adapter_hash(adapter *a); /* makes the digest anew, after values have changed */

/* ---- reading ---- */

typedef struct adapter_reader adapter_reader;

/* Reads `weights`, a safetensors file or a GGUF (the first bytes tell), and `config`, the adapter_config.json of the former (NULL
 * for a GGUF). The reader owns the sources and frees them, also if this fails. Sources may be in pieces. Tensors that are no
 * part of the adapter, such as the copy of the embedding that PEFT stores beside its adapter, are not read. */
gm_status adapter_reader_new(source *weights, source *config, const char *name, adapter_reader **out, error *e);
/* GM_AGAIN: bytes are missing, of adapter_reader_waiting. After GM_OK the caller owns *out. */
gm_status adapter_reader_step(adapter_reader *r, adapter **out, error *e);
source   *adapter_reader_waiting(adapter_reader *r);
void      adapter_reader_free(adapter_reader *r);

/* All of the above for a path: a PEFT folder, the safetensors file in one, or a GGUF file. */
gm_status adapter_open(const char *path, adapter **out, error *e);
/* The same for bytes in memory; config may be NULL for a GGUF. */
gm_status adapter_open_memory(str weights, str config, const char *name, adapter **out, error *e);
void      adapter_free(adapter *a);

/* ---- writing ---- */

/* Both forms keep every value of a and b, as f32. A GGUF has one alpha for all pairs, and its scale is alpha / rank: where a
 * pair's alpha is another than that of most pairs, the quotient is multiplied into b, which rounds b's values once. */
gm_status adapter_write_gguf(const adapter *a, gguf_sink sink, void *user, error *e);
/* The two files of a PEFT folder. GM_UNSUPPORTED: it has pairs of experts, which have no such form. */
gm_status adapter_write_safetensors(const adapter *a, gguf_sink sink, void *user, error *e);
gm_status adapter_write_config(const adapter *a, buffer *out, error *e);

/* Writes a GGUF if the path ends with ".gguf", otherwise a PEFT folder, which may exist. Each file appears when it is complete. */
gm_status adapter_save(const adapter *a, const char *path, error *e);

/* ---- comparing ---- */

/* The inner product of the changes scale · B · A of two pairs with the same shape, that is the sum of the products of their
 * elements. The ranks may differ. Of a pair with itself, it is the square of its norm. */
gm_status adapter_inner_product(const adapter_pair *x, const adapter_pair *y, double *out, error *e);

/* ---- models ---- */

/* Every pair corrects a tensor that the model has, and has its shape. `vision` and `audio` are the files to look for these towers in,
 * which may be the model's own; NULL: it has none. The error names the tensor. */
gm_status adapter_fits(const adapter *a, const model *m, const gguf *vision, const gguf *audio, error *e);

/* A pair that fits but changes nothing: K or V of a layer that uses those of an earlier layer. */
bool adapter_pair_is_unused(const adapter_pair *p, const model *m);

/* The part of the model that a pair corrects. */
model_part adapter_pair_part(const adapter_pair *p);
/* The tensor of a tower by its name in an adapter: Ollama's files have other names for some. NULL: there is none. */
const gguf_tensor *adapter_tower_tensor(const gguf *towers, const char *base);

#endif
