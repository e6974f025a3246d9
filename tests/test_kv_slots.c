/* Extents of slots: gaps, sizes and packing, by hand and in a random walk against rows that say whose they are. */

#include "session/kv_slots.h"
#include "test.h"

enum { MOST_SLOTS = 512, MOST_EXTENTS = 12 };

static uint32_t rows[MOST_SLOTS]; /* what each slot holds */

static gm_status move_rows(void *user, size_t from, size_t to, size_t count, error *e) {
    (void)e;
    *(size_t *)user += count;
    memmove(rows + to, rows + from, count * sizeof *rows);
    return GM_OK;
}

static gm_status refuse(void *user, size_t from, size_t to, size_t count, error *e) {
    (void)user, (void)from, (void)to, (void)count;
    return fail(e, GM_DEVICE_LOST, "no");
}

static void test_gaps(void) {
    TEST("gaps are found, extents grow into them");
    kv_slots  s = { .capacity = 100 };
    kv_extent a = { 0 }, b = { 0 }, c = { 0 };
    size_t    first = 7;
    CHECK(kv_slots_find(&s, 100, &first) && first == 0);
    CHECK(!kv_slots_find(&s, 101, &first));
    kv_slots_place(&s, &a, 0, 30);
    kv_slots_place(&s, &b, 40, 30);
    CHECK(kv_slots_find(&s, 10, &first) && first == 30);
    CHECK(kv_slots_find(&s, 11, &first) && first == 70);
    CHECK(!kv_slots_find(&s, 31, &first));
    CHECK(!kv_slots_resize(&s, &a, 41) && a.count == 30);
    CHECK(kv_slots_resize(&s, &a, 40) && a.count == 40);
    CHECK(!kv_slots_find(&s, 31, &first) && kv_slots_find(&s, 30, &first) && first == 70);
    kv_slots_place(&s, &c, 70, 30);
    CHECK(kv_slots_taken(&s) == 100 && kv_slots_end(&s) == 100);
    kv_slots_remove(&s, &b);
    kv_slots_place(&s, &c, 50, 5); /* moves */
    CHECK(s.extents == &a && a.next == &c && !c.next && kv_slots_end(&s) == 55);
}

static void test_pack(void) {
    TEST("packing moves in both directions and overwrites nothing");
    kv_slots  s = { .capacity = 60 };
    kv_extent x[4] = { { .used = 10 }, { .used = 8 }, { .used = 10 }, { .used = 5 } };
    size_t    moved = 0;
    error     e = { 0 };
    kv_slots_place(&s, &x[0], 5, 10);
    kv_slots_place(&s, &x[1], 16, 10);
    kv_slots_place(&s, &x[2], 26, 10);
    kv_slots_place(&s, &x[3], 36, 10);
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t k = 0; k < x[i].used; k++) rows[x[i].first + k] = 100 * i + k;
    }
    CHECK(!kv_slots_pack(&s, &x[1], 25, move_rows, &moved, &e));
    CHECK(x[0].first == 0 && x[1].first == 10 && x[1].count == 25 && x[2].first == 35 && x[3].first == 45);
    CHECK(moved == 10 + 8 + 10 + 5);
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t k = 0; k < x[i].used; k++) CHECK(rows[x[i].first + k] == 100 * i + k);
    }
    moved = 0;
    CHECK(!kv_slots_pack(&s, NULL, 0, move_rows, &moved, &e) && !moved); /* there are no gaps left */
    kv_slots_remove(&s, &x[0]);
    CHECK(kv_slots_pack(&s, NULL, 0, refuse, NULL, &e) == GM_DEVICE_LOST && x[1].first == 10);
}

static uint32_t seed = 1;

static size_t slots_dice(size_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

typedef struct {
    kv_slots  slots;
    kv_extent extents[MOST_EXTENTS];
    bool      there[MOST_EXTENTS];
} walk;

/* The rows of an extent name it and count up. */
static void walk_fill(const walk *w, size_t i, size_t from) {
    for (size_t k = from; k < w->extents[i].used; k++) rows[w->extents[i].first + k] = (uint32_t)(1000 * i + k);
}

static bool walk_is_whole(const walk *w) {
    size_t at = 0, count = 0, there = 0;
    for (const kv_extent *x = w->slots.extents; x; x = x->next, count++) {
        if (x->first < at || x->used > x->count) return false;
        at = x->first + x->count;
    }
    for (size_t i = 0; i < MOST_EXTENTS; i++) {
        for (size_t k = 0; w->there[i] && k < w->extents[i].used; k++) {
            if (rows[w->extents[i].first + k] != 1000 * i + k) return false;
        }
        there += w->there[i];
    }
    return at <= w->slots.capacity && count == there;
}

/* What a store does for an extent that needs more room. False: there is none. */
static bool walk_resize(walk *w, kv_extent *x, size_t count) {
    error  e = { 0 };
    size_t first, moved = 0;
    if (kv_slots_resize(&w->slots, x, count)) return true;
    if (kv_slots_find(&w->slots, count, &first)) {
        move_rows(&moved, x->first, first, x->used, &e);
        kv_slots_place(&w->slots, x, first, count);
        return true;
    }
    if (kv_slots_taken(&w->slots) - x->count + count > w->slots.capacity) return false;
    return !kv_slots_pack(&w->slots, x, count, move_rows, &moved, &e);
}

static void slots_walk_step(walk *w) {
    const size_t i = slots_dice(MOST_EXTENTS), count = 1 + slots_dice(90);
    kv_extent   *x = &w->extents[i];
    size_t       first;
    if (!w->there[i]) {
        if (!kv_slots_find(&w->slots, count, &first)) return;
        *x = (kv_extent){ 0 };
        kv_slots_place(&w->slots, x, first, count);
        x->used = slots_dice(count + 1);
        w->there[i] = true;
        walk_fill(w, i, 0);
    } else if (slots_dice(4) == 0) {
        kv_slots_remove(&w->slots, x);
        w->there[i] = false;
    } else {
        const size_t used = x->used;
        if (count < used) x->used = count;
        const size_t free_before = w->slots.capacity - kv_slots_taken(&w->slots) + x->count;
        CHECK(walk_resize(w, x, count) == (count <= free_before));
        if (x->count >= count) x->used = count;
        walk_fill(w, i, used < x->used ? used : x->used);
    }
}

static void test_slots_walk(void) {
    TEST("20,000 random steps keep every row");
    walk w = { .slots = { .capacity = MOST_SLOTS } };
    for (size_t step = 0; step < 20000; step++) {
        slots_walk_step(&w);
        if (walk_is_whole(&w)) continue;
        CHECK_MESSAGE(false, "broken after step %zu", step);
        return;
    }
    CHECK(kv_slots_taken(&w.slots) > MOST_SLOTS / 2);
}

int main(void) {
    test_gaps();
    test_pack();
    test_slots_walk();
    return test_end();
}
