/* Adapters: both forms written and read again, merging, and comparing. */

#include "adapter/adapter.h"
#include "adapter/merge.h"
#include "adapter_files.h"
#include "base/json.h"

#include <math.h>
#include <unistd.h>

/* ---- writing ---- */

static adapter *through_gguf(const adapter *a) {
    buffer   file = { 0 };
    adapter *out = NULL;
    error    e = { 0 };
    CHECK_MESSAGE(adapter_write_gguf(a, buffer_sink, &file, &e) == GM_OK && !file.failed, "%s", e.why);
    CHECK_MESSAGE(adapter_open_memory(buffer_view(&file), (str){ 0 }, a->name, &out, &e) == GM_OK, "%s", e.why);
    buffer_free(&file);
    return out;
}

static adapter *through_peft(const adapter *a) {
    buffer   weights = { 0 }, config = { 0 };
    adapter *out = NULL;
    error    e = { 0 };
    CHECK_MESSAGE(adapter_write_safetensors(a, buffer_sink, &weights, &e) == GM_OK, "%s", e.why);
    CHECK_MESSAGE(adapter_write_config(a, &config, &e) == GM_OK, "%s", e.why);
    CHECK_MESSAGE(!adapter_open_memory(buffer_view(&weights), buffer_view(&config), a->name, &out, &e), "%s", e.why);
    buffer_free(&weights);
    buffer_free(&config);
    return out;
}

/* The largest difference of scale · b, relative to the largest value; INFINITY if anything else differs. */
static double scaled_difference(const adapter *x, const adapter *y) {
    double most = 0, difference = 0;
    if (!x || !y || x->count != y->count || strcmp(x->prefix, y->prefix)) return INFINITY;
    for (size_t i = 0; i < x->count; i++) {
        const adapter_pair *p = &x->pairs[i], *q = &y->pairs[i];
        const size_t        per_rank = (size_t)p->rank * p->experts;
        if (strcmp(p->base, q->base) || p->rank != q->rank || p->in != q->in || p->out != q->out) return INFINITY;
        if (memcmp(p->a, q->a, per_rank * p->in * sizeof *p->a)) return INFINITY;
        for (size_t j = 0; j < per_rank * p->out; j++) {
            most = fmax(most, fabs((double)p->b[j] * p->scale));
            difference = fmax(difference, fabs((double)p->b[j] * p->scale - (double)q->b[j] * q->scale));
        }
    }
    return difference / most;
}

static void test_round_trips(void) {
    static const made_tensor outer[] = {
        { BASE "language_model.embed_tokens.lora_embedding_A", "F32", 2, 4 },
        { BASE "language_model.embed_tokens.lora_embedding_B", "F32", 3, 2 },
        { BASE "vision_tower.encoder.layers.0.mlp.up_proj.linear.lora_A.weight", "F32", 2, 3 },
        { BASE "vision_tower.encoder.layers.0.mlp.up_proj.linear.lora_B.weight", "F32", 3, 2 },
        { 0 }
    };
    const char *const folders[] = { DENSE, PART, HEAD, MOE, NULL };
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        TEST("PEFT, GGUF, PEFT: %s", folders[i] ? folders[i] : "embedding and a tower");
        adapter *a = folders[i] ? open_adapter(folders[i]) : open_made(outer, "{\"base_model_name_or_path\":\"g/m\"}");
        adapter *b = a ? through_gguf(a) : NULL, *c = b ? through_peft(b) : NULL;
        CHECK(c && scaled_difference(a, c) <= (folders[i] && !strcmp(folders[i], MOE) ? 1e-7 : 0));
        if (c && strcmp(folders[i] ? folders[i] : "", MOE)) /* there two alphas become one */
            CHECK(!memcmp(a->digest, b->digest, 32) && !memcmp(a->digest, c->digest, 32));
        if (c && !folders[i]) CHECK(c->base_model && !strcmp(c->base_model, "g/m"));
        adapter_free(a);
        adapter_free(b);
        adapter_free(c);
    }
    TEST("PEFT keeps patterns of ranks and alphas");
    adapter *a = open_adapter(MOE), *b = a ? through_peft(a) : NULL;
    CHECK(b && !memcmp(a->digest, b->digest, 32));
    adapter_free(a);
    adapter_free(b);

    TEST("an rslora, and an alpha of 0, in GGUF");
    a = open_made(two_layers, "{\"use_rslora\":true,\"lora_alpha\":3,\"alpha_pattern\":{\"up_proj\":0}}");
    b = a ? through_gguf(a) : NULL;
    CHECK_MESSAGE(scaled_difference(a, b) < 2e-7, "%g", scaled_difference(a, b));
    adapter_free(a);
    adapter_free(b);
}

/* PEFT makes an adapter for each module whose path is in the list, or ends with an item and a dot before it. */
static void test_targets(void) {
    static const made_tensor tensors[] = {
        { BASE "language_model.layers.1.mlp.up_proj.lora_A.weight", "F32", 2, 5 },
        { BASE "language_model.layers.1.mlp.up_proj.lora_B.weight", "F32", 3, 2 },
        { BASE "vision_tower.encoder.layers.0.mlp.up_proj.linear.lora_A.weight", "F32", 2, 3 },
        { BASE "vision_tower.encoder.layers.0.mlp.up_proj.linear.lora_B.weight", "F32", 3, 2 },
        { 0 }
    };
    TEST("target_modules has whole paths, so that no other module gets an adapter");
    adapter *a = open_made(tensors, "{}");
    buffer   config = { 0 };
    arena    memory = { 0 };
    json    *root = NULL;
    error    e = { 0 };
    CHECK(a && !adapter_write_config(a, &config, &e) && !json_parse(buffer_view(&config), &memory, &root, &e));
    const json *targets = json_get(root, "target_modules");
    CHECK(json_is(targets, JSON_ARRAY) && targets->count == 2);
    CHECK(targets && str_is(json_string(targets->first, ""), "model.language_model.layers.1.mlp.up_proj"));
    CHECK(targets &&
          str_is(json_string(targets->first->next, ""), "model.vision_tower.encoder.layers.0.mlp.up_proj.linear"));
    arena_free(&memory);
    buffer_free(&config);
    adapter_free(a);
}

static void test_path_prefixes(void) {
    static const made_tensor plain[] = {
        { "base_model.model.layers.1.mlp.up_proj.lora_A.weight", "F32", 2, 5 },
        { "base_model.model.layers.1.mlp.up_proj.lora_B.weight", "F32", 3, 2 },
        { 0 },
    };
    static const char *const bad[] = { "mo\"del.", "model", "layers.", "model.\n", "other." };
    TEST("paths of a text model alone come back as they were");
    adapter *a = open_made(plain, "{}"), *b = a ? through_gguf(a) : NULL, *c = b ? through_peft(b) : NULL;
    CHECK(c && !*a->prefix && !*b->prefix && !*c->prefix && !memcmp(a->digest, c->digest, 32));
    for (size_t i = 0; a && i < COUNT_OF(bad); i++) {
        TEST("a GGUF with the prefix %zu, which is none", i);
        adapter changed = *a, *out = NULL;
        buffer  file = { 0 };
        error   e = { 0 };
        changed.prefix = bad[i];
        CHECK(!adapter_write_gguf(&changed, buffer_sink, &file, &e));
        CHECK(adapter_open_memory(buffer_view(&file), (str){ 0 }, "x", &out, &e) == GM_BAD_FILE && !out);
        CHECK_MESSAGE(strstr(e.why, "gemmule.peft_prefix") && strstr(e.why, "such as 'model.'"), "%s", e.why);
        buffer_free(&file);
    }
    adapter_free(a);
    adapter_free(b);
    adapter_free(c);
}

static void test_experts_to_peft(void) {
    static const gguf_spec tensors[] = { { "blk.0.ffn_down_exps.weight.lora_a", TYPE_F32, 3, { 5, 2, 4 } },
                                         { "blk.0.ffn_down_exps.weight.lora_b", TYPE_F32, 3, { 2, 3, 4 } },
                                         { 0 } };
    TEST("experts keep their GGUF form, and have no other");
    buffer   file = made_gguf("adapter", "gemma4", 4, false, tensors), out = { 0 };
    adapter *a = NULL;
    error    e = { 0 };
    CHECK(adapter_open_memory(buffer_view(&file), (str){ 0 }, "x", &a, &e) == GM_OK);
    adapter *b = a ? through_gguf(a) : NULL;
    CHECK(a && b && !memcmp(a->digest, b->digest, 32));
    CHECK(a && adapter_write_safetensors(a, buffer_sink, &out, &e) == GM_UNSUPPORTED && strstr(e.why, "experts"));
    CHECK(a && adapter_write_config(a, &out, &(error){ 0 }) == GM_UNSUPPORTED);
    buffer_free(&out);
    buffer_free(&file);
    adapter_free(a);
    adapter_free(b);
}

/* ---- merging ---- */

static float *merged_values(const gguf *g, const gguf_tensor *t) {
    float *values = malloc(t->count * sizeof *values);
    t->format->dequantise(values, gguf_tensor_data(g, t), t->count / t->format->block);
    return values;
}

/* The change of one element, by the formula. */
static double change_at(const adapter_pair *p, uint64_t matrix, uint64_t row, uint64_t column) {
    double sum = 0;
    for (size_t k = 0; k < p->rank; k++) {
        if (adapter_is_embedding(p)) sum += (double)p->b[column * p->rank + k] * p->a[row * p->rank + k];
        else sum += (double)p->b[(matrix * p->out + row) * p->rank + k] * p->a[(matrix * p->rank + k) * p->in + column];
    }
    return sum * p->scale;
}

static void check_merged_tensors(const gguf *old, const gguf *new_one, const adapter *a, double scale, bool head) {
    for (size_t i = 0; i < gguf_tensor_count(new_one); i++) {
        const gguf_tensor *t = gguf_tensor_at(new_one, i);
        const bool         is_head = head && str_is(t->name, "output.weight");
        char               name[64];
        snprintf(name, sizeof name, "%.*s", STR_ARGS(t->name));
        const gguf_tensor  *from = gguf_find_tensor(old, is_head ? "token_embd.weight" : name);
        const adapter_pair *p = adapter_find(a, name);
        CHECK_MESSAGE(from && from->count == t->count, "%s", name);
        if (!from) continue;
        if (!p)
            CHECK_MESSAGE(t->type == from->type &&
                              !memcmp(gguf_tensor_data(new_one, t), gguf_tensor_data(old, from), t->bytes),
                          "%s", name);
        if (!p) continue;
        float *before = merged_values(old, from), *after = merged_values(new_one, t);
        double worst = 0;
        for (uint64_t j = 0; j < t->count; j++) {
            const uint64_t row = j / t->ne[0];
            worst = fmax(
                worst, fabs(before[j] + scale * change_at(p, row / t->ne[1], row % t->ne[1], j % t->ne[0]) - after[j]));
        }
        CHECK_MESSAGE(worst < 2e-5, "%s: %g", name, worst);
        free(before);
        free(after);
    }
}

static void merge_and_check(const char *model_path, const adapter *a, double scale, bool head) {
    char         path[] = "/tmp/test_adapter_XXXXXX";
    gguf        *old = NULL, *merged = NULL;
    model        m = { 0 };
    arena        memory = { 0 };
    merge_report report;
    error        e = { 0 };
    const int    file = mkstemp(path);
    CHECK(file >= 0 && !gguf_open_file(model_path, &old, &e) && !model_shapes(old, &m, &e));
    const gm_status status =
        adapter_merge(old, &m, &(merge_part){ a, scale }, 1, path,
                      &(merge_options){ .retype = true, .type = TYPE_F32, .threads = 2 }, &memory, &report, &e);
    CHECK_MESSAGE(status == GM_OK, "%s", e.why);
    if (!status && !gguf_open_file(path, &merged, &e)) {
        CHECK(gguf_tensor_count(merged) == gguf_tensor_count(old) + head);
        CHECK(gguf_value_count(merged) == gguf_value_count(old));
        CHECK(report.all.tensors == a->count && report.all.lost == 0 && report.all.change > 0);
        check_merged_tensors(old, merged, a, scale, head);
    }
    gguf_free(merged);
    model_free(&m);
    gguf_free(old);
    arena_free(&memory);
    remove(path);
    close(file);
}

static void test_merge(void) {
    static const gguf_spec tensors[] = { { "blk.1.ffn_down_exps.weight.lora_a", TYPE_F32, 3, { 32, 2, 8 } },
                                         { "blk.1.ffn_down_exps.weight.lora_b", TYPE_F32, 3, { 2, 64, 8 } },
                                         { "blk.0.ffn_gate_inp.weight.lora_a", TYPE_F32, 2, { 64, 3 } },
                                         { "blk.0.ffn_gate_inp.weight.lora_b", TYPE_F32, 2, { 3, 8 } },
                                         { "token_embd.weight.lora_a", TYPE_F32, 2, { 2, 640 } },
                                         { "token_embd.weight.lora_b", TYPE_F32, 2, { 2, 64 } },
                                         { "output.weight.lora_a", TYPE_F32, 2, { 64, 1 } },
                                         { "output.weight.lora_b", TYPE_F32, 2, { 1, 640 } },
                                         { 0 } };
    TEST("merging a PEFT folder: W + scale · B · A, and nothing else");
    adapter *a = open_adapter(DENSE);
    if (a) merge_and_check("tests/fixtures/tiny-dense.gguf", a, 0.5, false);
    adapter_free(a);
    TEST("merging experts, router, embedding and head, which gets a tensor of its own");
    buffer file = made_gguf("adapter", "gemma4", 1, false, tensors);
    error  e = { 0 };
    CHECK_MESSAGE(adapter_open_memory(buffer_view(&file), (str){ 0 }, "x", &a, &e) == GM_OK, "%s", e.why);
    if (a) fits("tests/fixtures/tiny-moe.gguf", a, NULL);
    if (a) merge_and_check("tests/fixtures/tiny-moe.gguf", a, 1, true);
    adapter_free(a);
    buffer_free(&file);
}

static void test_inner_products(void) {
    TEST("inner products of changes, by the formula");
    adapter *a = open_adapter(DENSE), *b = open_adapter(PART);
    for (size_t i = 0; a && b && i < b->count; i++) {
        const adapter_pair *y = &b->pairs[i], *x = adapter_find(a, y->base);
        double              want = 0, got = 0;
        error               e = { 0 };
        for (size_t row = 0; x && row < y->out; row++)
            for (size_t column = 0; column < y->in; column++)
                want += change_at(x, 0, row, column) * change_at(y, 0, row, column);
        CHECK(x && adapter_inner_product(x, y, &got, &e) == GM_OK);
        CHECK_MESSAGE(fabs(got - want) <= 1e-9 * (1 + fabs(want)), "%g instead of %g", got, want);
    }
    adapter_free(a);
    adapter_free(b);
}

int main(void) {
    test_round_trips();
    test_targets();
    test_path_prefixes();
    test_experts_to_peft();
    test_merge();
    test_inner_products();
    return test_end();
}
