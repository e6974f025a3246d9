/* Byte pair encoding with a heap and a linked list, O(n log n) in the length of a stretch. */

#include "text/bpe.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { JOINT_BITS = 22, LOWER_BLOCK = 0x2581 };

/* ---- the table of merges ---- */

static uint32_t merge_slot(const bpe_merges *m, uint32_t left, uint32_t right) {
    return (uint32_t)(((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u >> m->shift);
}

static bpe_merge *find_merge(const bpe_merges *m, uint32_t left, uint32_t right) {
    for (uint32_t i = merge_slot(m, left, right);; i = (i + 1) & (m->slot_count - 1)) {
        bpe_merge *slot = &m->slots[i];
        if (slot->left == SYMBOL_NONE || (slot->left == left && slot->right == right)) return slot;
    }
}

static uint32_t joint_bit(uint32_t first, uint32_t second) {
    return (uint32_t)(((uint64_t)first << 32 | second) * 0xff51afd7ed558ccdu >> (64 - JOINT_BITS));
}

static bool can_join(const bpe_merges *m, uint32_t first, uint32_t second) {
    uint32_t bit = joint_bit(first, second);
    return m->joints[bit / 64] >> bit % 64 & 1;
}

/* A byte that does not start a valid character stands for itself, with a number above all code points. */
static uint32_t read_character(str text, size_t at, size_t *length) {
    unsigned char c = (unsigned char)text.data[at];
    *length = 1;
    if (c == ' ') return LOWER_BLOCK;
    if (c < 0x80) return c;
    int n = utf8_length((str){ text.data + at, text.length - at });
    if (n < 1) return 0x200000u | c;
    *length = (size_t)n;
    return utf8_decode(text.data + at, n);
}

/* The text's last character, decoded from the left as encoding does, within the last few bytes. */
static uint32_t last_character(str text) {
    size_t at = text.length - 1, length;
    while (at && text.length - at < 4 && ((unsigned char)text.data[at] & 0xc0) == 0x80) at--;
    uint32_t code = read_character(text, at, &length);
    if (at + length != text.length) code = read_character(text, text.length - 1, &length);
    return code;
}

static gm_status bpe_add_merge(bpe_merges *m, symbols *s, str text, uint32_t rank, error *e) {
    const char *space = text.length > 2 ? memchr(text.data + 1, ' ', text.length - 2) : NULL;
    if (!space) {
        return fail(e, GM_BAD_FILE, "tokenizer.ggml.merges[%u] must be two texts separated by a space, found \"%.*s\"",
                    rank, STR_ARGS(text));
    }
    str      left = { text.data, (size_t)(space - text.data) }, right = { space + 1, text.length - left.length - 1 };
    str      nothing = { "", 0 };
    uint32_t a = symbols_intern(s, left, nothing), b = symbols_intern(s, right, nothing),
             result = symbols_intern(s, left, right);
    if (a == SYMBOL_NONE || b == SYMBOL_NONE || result == SYMBOL_NONE)
        return fail_memory(e, "the merges' texts", s->extra.length);
    bpe_merge *slot = find_merge(m, a, b);
    if (slot->left == SYMBOL_NONE) *slot = (bpe_merge){ a, b, rank, result }; /* of equal merges the first wins */
    size_t   length;
    uint32_t bit = joint_bit(last_character(left), read_character(right, 0, &length));
    m->joints[bit / 64] |= (uint64_t)1 << bit % 64;
    return GM_OK;
}

gm_status bpe_merges_init(bpe_merges *m, symbols *s, const gguf_value *merges, error *e) {
    if (merges->count > INT32_MAX / 4) {
        return fail(e, GM_UNSUPPORTED, "tokenizer.ggml.merges has %llu items, more than this build supports",
                    (unsigned long long)merges->count);
    }
    unsigned bits = 8;
    while ((uint64_t)1 << bits < merges->count + merges->count / 2) bits++;
    m->slot_count = (uint32_t)1 << bits;
    m->shift = 64 - bits;
    m->slots = calloc(m->slot_count, sizeof *m->slots);
    m->joints = calloc(((size_t)1 << JOINT_BITS) / 64, sizeof *m->joints);
    if (!m->slots || !m->joints) return fail_memory(e, "the merges", (uint64_t)m->slot_count * sizeof *m->slots);
    for (uint32_t i = 0; i < m->slot_count; i++) m->slots[i].left = SYMBOL_NONE;
    const uint8_t *cursor = merges->data;
    for (uint32_t rank = 0; rank < merges->count; rank++) {
        gm_status status = bpe_add_merge(m, s, gguf_next_string(&cursor), rank, e);
        if (status) return status;
    }
    return GM_OK;
}

void bpe_merges_free(bpe_merges *m) {
    free(m->slots);
    free(m->joints);
}

/* ---- the heap: smallest key first ---- */

static bool heap_push(bpe_work *w, uint64_t key) {
    if (w->heap_count == w->heap_capacity) {
        size_t    capacity = w->heap_capacity ? w->heap_capacity * 2 : 256;
        uint64_t *heap = capacity <= SIZE_MAX / sizeof *heap ? realloc(w->heap, capacity * sizeof *heap) : NULL;
        if (!heap) return false;
        w->heap = heap;
        w->heap_capacity = capacity;
    }
    size_t at = w->heap_count++;
    for (size_t parent; at && w->heap[parent = (at - 1) / 2] > key; at = parent) w->heap[at] = w->heap[parent];
    w->heap[at] = key;
    return true;
}

static uint64_t heap_pop(bpe_work *w) {
    uint64_t top = w->heap[0], key = w->heap[--w->heap_count];
    size_t   at = 0;
    for (size_t child; (child = 2 * at + 1) < w->heap_count; at = child) {
        if (child + 1 < w->heap_count && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= key) break;
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = key;
    return top;
}

void bpe_work_free(bpe_work *w) {
    free(w->parts);
    free(w->heap);
}

/* ---- encoding ---- */

/* Looks up the merge of part i with its right neighbour. A heap entry is valid only while its part still has that rank. A rank
 * identifies both symbols, so stale entries need not be removed when a neighbour changes. */
static bool find_right_merge(const bpe *b, bpe_work *w, uint32_t i) {
    bpe_part *part = &w->parts[i];
    part->rank = SYMBOL_NONE;
    if (part->next == SYMBOL_NONE || part->symbol == SYMBOL_NONE) return true;
    const bpe_merge *merge = find_merge(b->merges, part->symbol, w->parts[part->next].symbol);
    if (merge->left == SYMBOL_NONE) return true;
    part->rank = merge->rank;
    part->result = merge->result;
    return heap_push(w, (uint64_t)merge->rank << 32 | i);
}

static bool merge_parts(const bpe *b, bpe_work *w, uint32_t count) {
    w->heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        w->parts[i].previous = i ? i - 1 : SYMBOL_NONE;
        w->parts[i].next = i + 1 < count ? i + 1 : SYMBOL_NONE;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!find_right_merge(b, w, i)) return false;
    }
    while (w->heap_count) {
        uint64_t  key = heap_pop(w);
        uint32_t  i = (uint32_t)key;
        bpe_part *part = &w->parts[i];
        if (part->rank != key >> 32) continue;
        bpe_part *right = &w->parts[part->next];
        part->symbol = part->result;
        part->next = right->next;
        right->rank = SYMBOL_NONE;
        if (part->next != SYMBOL_NONE) w->parts[part->next].previous = i;
        if (!find_right_merge(b, w, i)) return false;
        if (part->previous != SYMBOL_NONE && !find_right_merge(b, w, part->previous)) return false;
    }
    return true;
}

static void append_part(const bpe *b, const bpe_part *part, str text, token_list *out) {
    if (part->symbol < b->symbols->tokens) {
        token_list_add(out, (int32_t)part->symbol);
        return;
    }
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] != ' ') {
            token_list_add(out, b->bytes[(unsigned char)text.data[i]]);
            continue;
        }
        for (const unsigned char *at = (const unsigned char *)"\xe2\x96\x81"; *at; at++)
            token_list_add(out, b->bytes[*at]);
    }
}

static gm_status encode_stretch(const bpe *b, bpe_work *w, uint32_t count, str run, size_t end, token_list *out,
                                error *e) {
    if (count > 1 && !merge_parts(b, w, count)) return fail_memory(e, "tokenising", w->heap_capacity * sizeof *w->heap);
    if (count == 1) w->parts[0].next = SYMBOL_NONE;
    for (uint32_t i = 0; i != SYMBOL_NONE; i = w->parts[i].next) {
        const bpe_part *part = &w->parts[i];
        size_t          stop = part->next == SYMBOL_NONE ? end : w->parts[part->next].start;
        append_part(b, part, (str){ run.data + part->start, stop - part->start }, out);
    }
    return GM_OK;
}

static bool room_for_part(bpe_work *w, size_t count) {
    if (count < w->part_capacity) return true;
    size_t    capacity = w->part_capacity ? w->part_capacity * 2 : 256;
    bpe_part *parts = capacity <= SIZE_MAX / sizeof *parts ? realloc(w->parts, capacity * sizeof *parts) : NULL;
    if (!parts) return false;
    w->parts = parts;
    w->part_capacity = capacity;
    return true;
}

gm_status bpe_encode(const bpe *b, bpe_work *w, str run, token_list *out, error *e) {
    uint32_t count = 0, before = 0;
    for (size_t at = 0, length; at < run.length; at += length) {
        uint32_t code = read_character(run, at, &length);
        if (count && !can_join(b->merges, before, code)) {
            gm_status status = encode_stretch(b, w, count, run, at, out, e);
            if (status) return status;
            count = 0;
        }
        unsigned char c = (unsigned char)run.data[at];
        str           text = { run.data + at, length }, nothing = { "", 0 };
        if (!room_for_part(w, count)) return fail_memory(e, "tokenising", run.length * sizeof *w->parts);
        w->parts[count++] = (bpe_part){ .symbol = c < 0x80 ? b->ascii[c] : symbols_find(b->symbols, text, nothing),
                                        .start = (uint32_t)at };
        before = code;
    }
    return count ? encode_stretch(b, w, count, run, run.length, out, e) : GM_OK;
}
