/* Numbers for texts: a hash table with linear probing whose keys are not copied. */

#include "text/symbols.h"

#include <stdlib.h>
#include <string.h>

static uint32_t symbols_hash(uint32_t hash,
                             str      text) { /* FNV-1a, which can continue from the left half to the right one */
    for (size_t i = 0; i < text.length; i++) hash = (hash ^ (unsigned char)text.data[i]) * 16777619u;
    return hash;
}

static uint32_t hash_halves(str left, str right) {
    uint32_t hash = symbols_hash(symbols_hash(2166136261u, left), right);
    return hash ^ hash >> 15; /* the low bits choose the slot */
}

str symbols_text(const symbols *s, uint32_t symbol) {
    if (symbol < s->tokens) {
        const uint8_t *at = s->stored + s->offsets[symbol];
        return gguf_next_string(&at);
    }
    uint32_t i = symbol - s->tokens;
    size_t   start = i ? s->extra_end[i - 1] : 0;
    return (str){ s->extra.data + start, s->extra_end[i] - start };
}

static bool equals_halves(str text, str left, str right) {
    if (text.length != left.length + right.length) return false;
    return (!left.length || !memcmp(text.data, left.data, left.length)) &&
           (!right.length || !memcmp(text.data + left.length, right.data, right.length));
}

/* The slot of the text, or the free slot for it. */
static symbol_slot *find_slot(const symbols *s, uint32_t hash, str left, str right) {
    for (uint32_t i = hash & (s->slot_count - 1);; i = (i + 1) & (s->slot_count - 1)) {
        symbol_slot *slot = &s->slots[i];
        if (!slot->symbol) return slot;
        if (slot->hash == hash && equals_halves(symbols_text(s, slot->symbol - 1), left, right)) return slot;
    }
}

uint32_t symbols_find(const symbols *s, str left, str right) {
    return find_slot(s, hash_halves(left, right), left, right)->symbol - 1; /* 0 - 1 is SYMBOL_NONE */
}

static bool symbols_make_room(symbols *s, uint64_t count) {
    uint64_t wanted = 256;
    while (wanted < count + count / 2) wanted *= 2;
    if (wanted <= s->slot_count) return true;
    if (wanted > (uint64_t)1 << 31) return false;
    symbol_slot *slots = calloc((size_t)wanted, sizeof *slots);
    if (!slots) return false;
    for (uint32_t i = 0; i < s->slot_count; i++) {
        if (!s->slots[i].symbol) continue;
        uint64_t at = s->slots[i].hash & (wanted - 1);
        while (slots[at].symbol) at = (at + 1) & (wanted - 1);
        slots[at] = s->slots[i];
    }
    free(s->slots);
    s->slots = slots;
    s->slot_count = (uint32_t)wanted;
    return true;
}

gm_status symbols_init(symbols *s, const gguf_value *tokens, error *e) {
    if (tokens->bytes > UINT32_MAX || tokens->count > INT32_MAX / 4) {
        return fail(e, GM_UNSUPPORTED,
                    "tokenizer.ggml.tokens has %llu tokens in %llu bytes, more than this build supports",
                    (unsigned long long)tokens->count, (unsigned long long)tokens->bytes);
    }
    const size_t count = (size_t)tokens->count;
    s->stored = tokens->data;
    s->offsets = calloc(count, sizeof *s->offsets);
    if (!s->offsets || !symbols_make_room(s, count)) return fail_memory(e, "the vocabulary", (uint64_t)count * 16);
    const uint8_t *cursor = tokens->data;
    for (uint32_t i = 0; i < count; i++) {
        s->offsets[i] = (uint32_t)(cursor - tokens->data);
        s->tokens = i + 1;
        str          text = gguf_next_string(&cursor), nothing = { "", 0 };
        uint32_t     hash = hash_halves(text, nothing);
        symbol_slot *slot = find_slot(s, hash, text, nothing);
        if (!slot->symbol) *slot = (symbol_slot){ hash, i + 1 };
    }
    return GM_OK;
}

void symbols_free(symbols *s) {
    free(s->offsets);
    free(s->extra_end);
    free(s->slots);
    buffer_free(&s->extra);
}

static bool add_extra(symbols *s, str left, str right) {
    if (s->extras == s->extra_capacity) {
        uint32_t capacity = s->extra_capacity ? s->extra_capacity * 2 : 64;
        size_t  *ends = capacity < INT32_MAX / 2 ? realloc(s->extra_end, capacity * sizeof *ends) : NULL;
        if (!ends) return false;
        s->extra_end = ends;
        s->extra_capacity = capacity;
    }
    buffer_str(&s->extra, left);
    buffer_str(&s->extra, right);
    s->extra_end[s->extras] = s->extra.length;
    return !s->extra.failed;
}

uint32_t symbols_intern(symbols *s, str left, str right) {
    uint32_t     hash = hash_halves(left, right);
    symbol_slot *slot = find_slot(s, hash, left, right);
    if (slot->symbol) return slot->symbol - 1;
    uint32_t symbol = s->tokens + s->extras;
    if (!symbols_make_room(s, (uint64_t)symbol + 1) || !add_extra(s, left, right)) return SYMBOL_NONE;
    s->extras++;
    *find_slot(s, hash, left, right) = (symbol_slot){ hash, symbol + 1 };
    return symbol;
}
