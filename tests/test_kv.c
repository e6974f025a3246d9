/* Keys and values of sessions: how much memory copies of the rings may take, and what they are good for. */

#include "session/kv.h"
#include "test.h"

#include <stdlib.h>

/* One sliding layer with the given heads, and a full one. */
static model_config config_of(layer_config layers[2], uint32_t window, uint32_t kv_heads, uint32_t head) {
    layers[0] =
        (layer_config){ .sliding = true, .owns_kv = true, .heads = kv_heads, .kv_heads = kv_heads, .head = head };
    layers[1] = (layer_config){ .owns_kv = true, .donor = 1, .heads = 1, .kv_heads = 1, .head = 32 };
    return (model_config){ .layers = 2, .window = window, .context = 4096, .layer = layers };
}

/* Marks of 64 MiB each, as large models have them. */
static void test_large_marks(void) {
    TEST("two copies of the rings fit, however large the model is");
    layer_config       layers[2];
    const model_config config = config_of(layers, 64, 512, 512);
    kv_store           store;
    kv_cache           kv;
    error              e = { 0 };
    CHECK(kv_mark_bytes(&config, TYPE_F16, false) == 64 << 20 && kv_mark_budget(&config, TYPE_F16, false) == 128 << 20);
    CHECK(!kv_store_open(&store, &config, NULL, TYPE_F16, &e) && !kv_open(&kv, &store, 4096, &e));
    const size_t turns[] = { 100, 500, 900 };
    CHECK(!kv_reserve(&kv, 0, 100, &e));
    for (size_t i = 0; i < 3; i++) {
        kv_written(&kv, turns[i]);
        kv_add_mark(&kv, turns[i]);
    }
    kv_written(&kv, 1400);
    CHECK(kv_rollback(&kv, 950) == 900);
    CHECK(kv_rollback(&kv, 890) ==
          500); /* the mark at 900 holds only the window, and a query at 890 sees what came before */
    kv_written(&kv, 1400);
    CHECK(kv_rollback(&kv, 600) == 500);
    kv_written(&kv, 1400);
    CHECK(kv_rollback(&kv, 499) == 0); /* the third mark made the first one go */
    kv_close(&kv);
    CHECK(!store.marks && !store.mark_bytes && !store.spaces[KV_FULL].extents && !store.spaces[KV_RINGS].extents);
    kv_store_close(&store);
}

int main(void) {
    test_large_marks();
    return test_end();
}
