/* Finds special tokens. A walk through a trie finds the longest candidate at each place; then candidates are accepted or rejected
 * from the longest to the shortest. A rejected candidate is replaced by the next shorter one at its place. A text without special
 * tokens costs one table lookup per byte. */

#include "text/specials.h"

#include <stdlib.h>
#include <string.h>

struct specials_node {
    uint32_t parent, child, sibling;
    uint32_t shorter; /* the nearest ancestor that ends a token */
    uint32_t depth;   /* bytes from the start */
    int32_t  id;      /* of the token that ends here, or -1 */
    uint8_t  byte;
    bool     control;
};

/* ---- the trie ---- */

static uint32_t child_of(const specials *s, uint32_t parent, uint8_t byte) {
    uint32_t node = s->nodes[parent].child;
    while (node && s->nodes[node].byte != byte) node = s->nodes[node].sibling;
    return node;
}

static uint32_t add_node(specials *s, uint32_t parent, uint8_t byte, uint32_t depth) {
    if (s->count + 1 >= s->capacity) {
        uint32_t       capacity = s->capacity ? s->capacity * 2 : 64;
        specials_node *nodes =
            capacity < INT32_MAX / sizeof *nodes ? realloc(s->nodes, capacity * sizeof *nodes) : NULL;
        if (!nodes) return 0;
        s->nodes = nodes;
        s->capacity = capacity;
    }
    if (!s->count) s->count = 1; /* node 0 */
    uint32_t node = s->count++, *link = parent ? &s->nodes[parent].child : &s->roots[byte];
    s->nodes[node] = (specials_node){ .parent = parent, .sibling = *link, .byte = byte, .depth = depth, .id = -1 };
    return *link = node;
}

bool specials_add(specials *s, str text, int32_t id, bool control) {
    uint32_t node = 0;
    for (size_t i = 0; i < text.length; i++) {
        uint8_t  byte = (uint8_t)text.data[i];
        uint32_t next = node ? child_of(s, node, byte) : s->roots[byte];
        if (!next && !(next = add_node(s, node, byte, (uint32_t)i + 1))) return false;
        node = next;
    }
    if (!node || s->nodes[node].id >= 0) return true;
    s->nodes[node].id = id;
    s->nodes[node].control = control;
    return true;
}

void specials_finish(specials *s) {
    for (uint32_t i = 1; i < s->count; i++) { /* parents come before their children */
        uint32_t parent = s->nodes[i].parent;
        if (parent) s->nodes[i].shorter = s->nodes[parent].id >= 0 ? parent : s->nodes[parent].shorter;
    }
}

void specials_free(specials *s) { free(s->nodes); }

/* ---- candidates ---- */

typedef struct {
    uint32_t start, node, next; /* next: in its bucket, 1 + index */
} candidate;

typedef struct {
    const specials *s;
    bool            control;
    candidate      *candidates;
    size_t          count, capacity;
    uint32_t        longest;
    uint32_t       *buckets; /* [longest + 1] candidates by length, 1 + index */
    uint64_t       *keys;    /* [count] of one bucket, to sort */
    uint64_t       *taken;   /* a bit a byte of the text */
    special_match  *matches;
    size_t          match_count, match_capacity;
} search;

/* The node, or its nearest ancestor, that ends a wanted token; 0: none. */
static uint32_t wanted_ending(const search *f, uint32_t node) {
    while (node && (f->s->nodes[node].id < 0 || (f->s->nodes[node].control && !f->control)))
        node = f->s->nodes[node].shorter;
    return node;
}

static bool add_candidate(search *f, size_t start, uint32_t node) {
    if (f->count == f->capacity) {
        size_t     capacity = f->capacity ? f->capacity * 2 : 64;
        candidate *candidates =
            capacity <= SIZE_MAX / sizeof *candidates ? realloc(f->candidates, capacity * sizeof *candidates) : NULL;
        if (!candidates) return false;
        f->candidates = candidates;
        f->capacity = capacity;
    }
    f->candidates[f->count++] = (candidate){ .start = (uint32_t)start, .node = node };
    if (f->s->nodes[node].depth > f->longest) f->longest = f->s->nodes[node].depth;
    return true;
}

/* The longest candidate at each place. */
static bool collect_candidates(search *f, str text, text_range range) {
    for (size_t start = range.start; start < range.end; start++) {
        uint32_t deepest = f->s->roots[(uint8_t)text.data[start]];
        if (!deepest) continue;
        for (size_t at = start + 1; at < range.end; at++) {
            uint32_t next = child_of(f->s, deepest, (uint8_t)text.data[at]);
            if (!next) break;
            deepest = next;
        }
        uint32_t ending = wanted_ending(f, deepest);
        if (ending && !add_candidate(f, start, ending)) return false;
    }
    return true;
}

/* ---- accepting candidates ---- */

static bool is_taken(const search *f, size_t at) { return f->taken[at / 64] >> at % 64 & 1; }

static int compare_keys(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The candidates of one length as id << 32 | index, sorted: lower ids first, then from left to right. */
static size_t sorted_bucket(search *f, uint32_t length) {
    size_t count = 0;
    bool   sorted = true;
    for (uint32_t i = f->buckets[length]; i; i = f->candidates[i - 1].next) {
        uint64_t key = (uint64_t)f->s->nodes[f->candidates[i - 1].node].id << 32 | (i - 1);
        if (count && key < f->keys[count - 1]) sorted = false;
        f->keys[count++] = key;
    }
    if (!sorted) qsort(f->keys, count, sizeof *f->keys, compare_keys);
    return count;
}

static void put_into_bucket(search *f, uint32_t index) {
    candidate *c = &f->candidates[index];
    uint32_t  *bucket = &f->buckets[f->s->nodes[c->node].depth];
    c->next = *bucket;
    *bucket = index + 1;
}

static bool accept_match(search *f, size_t start, uint32_t length, int32_t id) {
    if (f->match_count == f->match_capacity) {
        size_t         capacity = f->match_capacity ? f->match_capacity * 2 : 16;
        special_match *matches =
            capacity <= SIZE_MAX / sizeof *matches ? realloc(f->matches, capacity * sizeof *matches) : NULL;
        if (!matches) return false;
        f->matches = matches;
        f->match_capacity = capacity;
    }
    f->matches[f->match_count++] = (special_match){ start, start + length, id };
    for (size_t at = start; at < start + length; at++) f->taken[at / 64] |= (uint64_t)1 << at % 64;
    return true;
}

static bool accept_length(search *f, uint32_t length) {
    size_t count = sorted_bucket(f, length);
    for (size_t i = 0; i < count; i++) {
        candidate *c = &f->candidates[(uint32_t)f->keys[i]];
        if (is_taken(f, c->start)) continue; /* shorter candidates overlap here too */
        /* Accepted matches are at least as long as this candidate, so checking both ends is enough. */
        if (!is_taken(f, c->start + length - 1)) {
            if (!accept_match(f, c->start, length, f->s->nodes[c->node].id)) return false;
        } else if ((c->node = wanted_ending(f, f->s->nodes[c->node].shorter))) {
            put_into_bucket(f, (uint32_t)f->keys[i]);
        }
    }
    return true;
}

static int compare_matches(const void *a, const void *b) {
    size_t x = ((const special_match *)a)->start, y = ((const special_match *)b)->start;
    return x < y ? -1 : x > y;
}

static bool accept_candidates(search *f, str text) {
    f->buckets = calloc((size_t)f->longest + 1, sizeof *f->buckets);
    f->keys = calloc(f->count, sizeof *f->keys);
    f->taken = calloc(text.length / 64 + 1, sizeof *f->taken);
    if (!f->buckets || !f->keys || !f->taken) return false;
    for (size_t i = f->count; i--;) put_into_bucket(f, (uint32_t)i);
    for (uint32_t length = f->longest; length; length--) {
        if (!accept_length(f, length)) return false;
    }
    if (f->match_count) qsort(f->matches, f->match_count, sizeof *f->matches, compare_matches);
    return true;
}

gm_status specials_find(const specials *s, str text, const text_range *ranges, size_t range_count, bool control,
                        special_match **matches, size_t *count, error *e) {
    search f = { .s = s, .control = control };
    bool   fine = true;
    for (size_t i = 0; i < range_count && fine && s->count; i++) fine = collect_candidates(&f, text, ranges[i]);
    if (fine && f.count) fine = accept_candidates(&f, text);
    free(f.candidates);
    free(f.buckets);
    free(f.keys);
    free(f.taken);
    *matches = f.matches;
    *count = f.match_count;
    if (fine) return GM_OK;
    free(f.matches);
    *matches = NULL;
    return fail_memory(e, "finding special tokens", text.length);
}
