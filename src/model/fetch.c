/* Reads a model from a file that arrives in pieces: tensors into memory, and the samples that identify the model. */

#include "model/model.h"

#include "base/sha256.h"

#include <string.h>

enum { FETCH_BYTES = 4 << 20 };

/* ---- tensors ------------------------------------------------------------------------------------------------------------ */

model_part model_part_of(str name) {
    if (str_starts_with(name, "a.") || str_starts_with(name, "mm.a.")) return PART_AUDIO;
    return str_starts_with(name, "v.") || str_starts_with(name, "mm.") ? PART_VISION : PART_TEXT;
}

/* Tensors of the audio tower from which loading computes something: they are needed in memory on every backend. */
static bool fetch_is_input(str name) {
    return str_starts_with(name, "a.conv1d.") ||
           (str_starts_with(name, "a.blk.") &&
            (str_ends_with(name, ".conv_dw.weight") || str_ends_with(name, ".attn_k_rel.weight") ||
             str_ends_with(name, ".linear_pos.weight")));
}

static bool fetch_wants(const model_fetch *f, const gguf_tensor *t) {
    if (model_part_of(t->name) != f->part || source_whole(gguf_source(f->file, t->part))) return false;
    if ((t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1) || fetch_is_input(t->name)) return true;
    return f->matrices && !(f->rows && str_is(t->name, "per_layer_token_embd.weight"));
}

uint64_t model_fetch_bytes(const model_fetch *f) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < gguf_tensor_count(f->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(f->file, i);
        if (fetch_wants(f, t)) bytes += t->bytes; /* cannot overflow: tensors do not overlap in the file */
    }
    return bytes;
}

/* Asks for the next piece. GM_DONE: there is none. GM_AGAIN: no ticket is free. */
static gm_status ask_piece(model_fetch *f, error *e) {
    const gguf_tensor *t;
    while ((t = gguf_tensor_at(f->file, f->next)) && (f->asked == t->bytes || !fetch_wants(f, t))) {
        f->next++;
        f->asked = 0;
    }
    if (!t) return GM_DONE;
    source *from = gguf_source(f->file, t->part);
    if (!f->asked) f->room = source_room(from, t->offset, t->bytes, e);
    if (!f->room) return e->status;
    const read_order order = { .from = from,
                               .offset = t->offset + f->asked,
                               .length = t->bytes - f->asked < FETCH_BYTES ? t->bytes - f->asked : FETCH_BYTES,
                               .memory = f->room + f->asked };
    const uint32_t   ticket = reads_ask(f->reads, &order);
    if (!ticket) return GM_AGAIN;
    f->tickets[f->sent % MODEL_READS] = ticket;
    f->lengths[f->sent++ % MODEL_READS] = order.length;
    f->asked += order.length;
    return GM_OK;
}

gm_status model_fetch_step(model_fetch *f, error *e) {
    if (!f->total) f->total = model_fetch_bytes(f);
    for (;;) {
        gm_status status = GM_OK;
        while (!status && f->sent - f->arrived < MODEL_READS) status = ask_piece(f, e);
        if (status_failed(status)) return status;
        if (f->sent == f->arrived) return status == GM_AGAIN ? GM_AGAIN : GM_OK;
        status = reads_take(f->reads, f->tickets[f->arrived % MODEL_READS], e);
        if (status == GM_AGAIN) return status;
        f->done += f->lengths[f->arrived++ % MODEL_READS];
        if (status) return status;
    }
}

void model_fetch_drop(model_fetch *f) {
    for (; f->arrived < f->sent; f->arrived++) reads_drop(f->reads, f->tickets[f->arrived % MODEL_READS]);
}

void model_fetch_forget(const model_fetch *f) {
    for (size_t i = 0; i < gguf_tensor_count(f->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(f->file, i);
        if (fetch_wants(f, t)) source_forget(gguf_source(f->file, t->part), t->offset, t->bytes);
    }
}

/* ---- identity ------------------------------------------------------------------------------------------------------------ */

/* The range to sample: bytes from the middle of a tensor. */
static const gguf_tensor *sample_of(const model_hash *h, size_t i, uint64_t *offset, size_t *length) {
    const gguf_tensor *t = gguf_tensor_at(h->file, i * gguf_tensor_count(h->file) / MODEL_SAMPLES);
    if (!t) return NULL;
    const uint64_t half = t->bytes - t->bytes / 2;
    *offset = t->offset + t->bytes / 2;
    *length = (size_t)(half < MODEL_SAMPLE_BYTES ? half : MODEL_SAMPLE_BYTES);
    return t;
}

/* Asks for sample i unless it is in memory. False: no ticket is free. */
static bool ask_sample(model_hash *h, size_t i) {
    uint64_t           offset = 0;
    size_t             length = 0;
    const gguf_tensor *t = sample_of(h, i, &offset, &length);
    source            *from = t ? gguf_source(h->file, t->part) : NULL;
    const uint8_t     *held = from ? source_held(from, offset, length) : NULL;
    if (held) memcpy(h->samples[i], held, length);
    if (held || !from) return true;
    h->tickets[i] =
        reads_ask(h->reads, &(read_order){ .from = from, .offset = offset, .length = length, .memory = h->samples[i] });
    return h->tickets[i] != 0;
}

gm_status model_hash_step(model_hash *h, uint8_t digest[32], error *e) {
    while (h->asked < MODEL_SAMPLES && ask_sample(h, h->asked)) h->asked++;
    for (; h->arrived < h->asked; h->arrived++) {
        const uint32_t  ticket = h->tickets[h->arrived];
        const gm_status status = ticket ? reads_take(h->reads, ticket, e) : GM_OK;
        if (status) return status;
        h->tickets[h->arrived] = 0;
    }
    if (h->arrived < MODEL_SAMPLES) return GM_AGAIN;

    const uint64_t bytes = gguf_file_bytes(h->file);
    const str      head = gguf_head(h->file);
    sha256         s;
    sha256_start(&s);
    sha256_add(&s, head.data, head.length);
    sha256_add(&s, &bytes, sizeof bytes);
    for (size_t i = 0; i < MODEL_SAMPLES; i++) {
        uint64_t offset;
        size_t   length;
        if (sample_of(h, i, &offset, &length)) sha256_add(&s, h->samples[i], length);
    }
    sha256_end(&s, digest);
    return GM_OK;
}

void model_hash_drop(model_hash *h) {
    for (; h->arrived < h->asked; h->arrived++) reads_drop(h->reads, h->tickets[h->arrived]);
}
