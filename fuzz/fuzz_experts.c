/* Fuzzes the reader of profiles of experts. What is written after it, whether it took the bytes or not, must be a profile that it takes. */

#include "fuzz.h"
#include "gpu/experts_profile.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { LAYERS = 2, EXPERTS = 3 };
    uint32_t     known[LAYERS][EXPERTS] = { 0 }, seen[LAYERS][EXPERTS] = { 0 };
    float        score[LAYERS][EXPERTS] = { 0 };
    expert_layer layers[LAYERS];
    expert_cache c = { .layers = layers, .layer_count = LAYERS, .slots = 2, .warm = LAYERS };
    buffer       again = { 0 };
    error        e = { 0 };
    for (size_t i = 0; i < LAYERS; i++)
        layers[i] =
            (expert_layer){ .experts = EXPERTS, .used = 1, .known = known[i], .seen = seen[i], .score = score[i] };
    const gm_status status = expert_profile_read(&c, data, size, &e);
    REQUIRE(status ? *e.why && c.warm == LAYERS : size == expert_profile_size(&c) && c.warm == 0);
    expert_profile_write(&c, &again);
    REQUIRE(!again.failed && again.length == expert_profile_size(&c));
    error second = { 0 };
    REQUIRE(!expert_profile_read(&c, (const uint8_t *)again.data, again.length, &second));
    for (size_t i = 0; i < LAYERS; i++) {
        for (size_t x = 0; x < EXPERTS; x++) REQUIRE(score[i][x] >= 0 && score[i][x] <= 1e6f);
    }
    buffer_free(&again);
    return 0;
}
