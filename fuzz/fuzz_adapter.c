/* Fuzzes the readers of adapters: two bytes with the length of the configuration, the configuration, and the weights (safetensors
 * or GGUF). What is read whole and in pieces must agree, and every value of an adapter that opens is finite. */

#include "adapter/adapter.h"
#include "fuzz.h"

#include <math.h>
#include <string.h>

static void read_values(const adapter *a) {
    double sum = 0;
    for (size_t i = 0; i < a->count; i++) {
        const adapter_pair *p = &a->pairs[i];
        const size_t        per_rank = (size_t)p->rank * p->experts;
        REQUIRE(p->rank && p->in && p->out && p->experts && strlen(p->base) < sizeof p->base);
        REQUIRE(adapter_find(a, p->base) == p);
        for (size_t j = 0; j < per_rank * p->in; j++) sum += !isfinite(p->a[j]);
        for (size_t j = 0; j < per_rank * p->out; j++) sum += !isfinite(p->b[j]);
    }
    REQUIRE(sum == 0);
}

static gm_status read_in_pieces(str weights, str config, adapter **out) {
    source         *from = NULL, *beside = NULL;
    adapter_reader *r = NULL;
    error           e = { 0 };
    gm_status       status = source_pieces(weights.length, &from, &e);
    if (!status && config.data) status = source_pieces(config.length, &beside, &e);
    if (!status) source_set_piece(from, 64);
    if (!status) status = adapter_reader_new(from, beside, "fuzz", &r, &e);
    REQUIRE(!status);
    while ((status = adapter_reader_step(r, out, &e)) == GM_AGAIN) {
        source  *waiting = adapter_reader_waiting(r);
        uint64_t offset = 0, length = 0;
        REQUIRE(waiting && source_wanted(waiting, &offset, &length));
        const str bytes = waiting == beside ? config : weights;
        REQUIRE(!source_give(waiting, offset, bytes.data + offset, length, &e));
    }
    adapter_reader_free(r);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    adapter *whole = NULL, *pieces = NULL;
    error    e = { 0 };
    if (size < 2) return 0;
    const size_t    length = min_size(data[0] | (size_t)data[1] << 8, size - 2);
    const str       config = { length ? (const char *)data + 2 : NULL, length };
    const str       weights = { (const char *)data + 2 + length, size - 2 - length };
    const gm_status status = adapter_open_memory(weights, config, "fuzz", &whole, &e);
    REQUIRE((status == GM_OK) == (whole != NULL) && (whole || e.why[0]));
    if (whole) read_values(whole);
    const gm_status again = read_in_pieces(weights, config, &pieces);
    REQUIRE(again == status);
    REQUIRE(!whole || !memcmp(whole->digest, pieces->digest, sizeof whole->digest));
    adapter_free(whole);
    adapter_free(pieces);
    return 0;
}
