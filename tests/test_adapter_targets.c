/* Adapters of every target on every kind of model: with the adapter, a model computes what it computes with the adapter in its weights. Of
 * several tokens and of one; the targets are all linears of the text model that adapters can correct, the embedding and the head.
 *
 *     test_adapter_targets [gpu] */

#include "adapter/modules.h"
#include "adapter_files.h"
#include "distance.h"
#include "sessions.h"

#include <stdlib.h>
#include <unistd.h>

enum { MOST = 600, PROMPT = 21 };

static gm_backend device = GM_BACKEND_CPU;

static double target_tolerance(void) { return device == GM_BACKEND_CPU ? 2e-5 : 2e-4; }

/* ---- the adapter ---- */

typedef struct {
    gguf_spec tensors[MOST];
    char      names[MOST][80];
    size_t    count;
} target_list;

static void target_add(target_list *l, const char *name, char half, uint64_t columns, uint64_t rows, uint64_t experts) {
    CHECK(l->count + 1 < MOST);
    snprintf(l->names[l->count], sizeof l->names[0], "%s.lora_%c", name, half);
    l->tensors[l->count] =
        (gguf_spec){ l->names[l->count], TYPE_F32, experts > 1 ? 3 : 2, { columns, rows, experts > 1 ? experts : 1 } };
    l->count++;
}

/* Ranks of 1 to 9 in turn. An embedding's A has a row for each token. */
static void target_add_pair(target_list *l, const char *name, const gguf_tensor *t, bool embedding) {
    const uint64_t rank = 1 + l->count / 2 % 9, experts = t->dims > 2 ? t->ne[2] : 1;
    if (embedding) target_add(l, name, 'a', rank, t->ne[1], 1);
    else target_add(l, name, 'a', t->ne[0], rank, experts);
    target_add(l, name, 'b', rank, embedding ? t->ne[0] : t->ne[1], experts);
}

static target_list *targets_of(const gguf *file) {
    target_list *l = calloc(1, sizeof *l);
    for (size_t i = 0; l && i < gguf_tensor_count(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        module_id          module;
        char               name[64];
        if (!module_of_tensor(t->name, &module) || module_is_tower(module)) continue;
        snprintf(name, sizeof name, "%.*s", STR_ARGS(t->name));
        target_add_pair(l, name, t, module_is_embedding(module));
    }
    if (l && !gguf_find_tensor(file, "output.weight"))
        target_add_pair(l, "output.weight", gguf_find_tensor(file, "token_embd.weight"), false);
    return l;
}

static bool targets_have(const target_list *l, const char *part) {
    for (size_t i = 0; i < l->count; i++) {
        if (strstr(l->names[i], part)) return true;
    }
    return false;
}

/* ---- sessions ---- */

static gm_session *open_target(const char *path) {
    return open_session(
        open_engine(&(gm_engine_options){ .model = path, .backend = device, .threads = 2, .precise = true }), GM_KV_F32,
        0);
}

static void close_target(gm_session *s) {
    gm_engine *engine = s ? s->engine : NULL;
    gm_session_free(s);
    gm_engine_close(engine);
}

/* ---- comparing ---- */

/* Several tokens in one run, then one. */
static void compare_targets(gm_session *adapted, gm_session *merged, gm_session *plain) {
    int32_t tokens[PROMPT + 1];
    make_tokens(tokens, COUNT_OF(tokens), 3);
    for (size_t i = 0; i < COUNT_OF(tokens); i++)
        tokens[i] = 300 + tokens[i] % 200; /* the smallest vocabulary has these */
    for (int step = 0; step < 2; step++) {
        const size_t n = adapted->engine->weights.config.vocabulary, from = step ? PROMPT : 0,
                     count = step ? 1 : PROMPT;
        CHECK_MESSAGE(!append_tokens(adapted, tokens + from, count) && !append_tokens(merged, tokens + from, count) &&
                          !append_tokens(plain, tokens + from, count),
                      "%s", why);
        if (test_bad) return;
        const double off = distance(gm_session_logits(adapted), gm_session_logits(merged), n);
        const double change = distance(gm_session_logits(plain), gm_session_logits(merged), n);
        CHECK_MESSAGE(off < target_tolerance(), "%zu tokens: off by %g, the adapter changes %g", count, off, change);
        CHECK_MESSAGE(change > 0.02 && change < 3, "%zu tokens: the adapter changes %g", count, change);
    }
}

/* `has`: kinds of targets that must be among those of the model. */
static void test_targets_of(const char *name, const char *const *has) {
    TEST("every target of %s", name);
    char  path[120], merged_path[40];
    gguf *file = NULL;
    error e = { 0 };
    snprintf(path, sizeof path, "tests/fixtures/%s.gguf", name);
    CHECK_MESSAGE(!gguf_open_file(path, &file, &e), "%s", e.why);
    target_list *l = file ? targets_of(file) : NULL;
    if (!l) return;
    for (; *has; has++) CHECK_MESSAGE(targets_have(l, *has), "no %s", *has);
    buffer made = made_gguf("adapter", "gemma4", 0.004f, false, l->tensors);
    merge_made(file, &made, NULL, merged_path);
    gm_session *adapted = open_target(path), *merged = open_target(merged_path), *plain = open_target(path);
    gm_adapter *a = NULL;
    if (adapted && merged && plain) {
        CHECK_MESSAGE(
            !gm_adapter_load_data(adapted->engine, "made", made.data, made.length, NULL, 0, &a, why, sizeof why), "%s",
            why);
        CHECK_MESSAGE(a && !gm_session_adapters(adapted, &a, NULL, 1, why, sizeof why), "%s", why);
        compare_targets(adapted, merged, plain);
    }
    gm_adapter_free(a);
    close_target(adapted);
    close_target(merged);
    close_target(plain);
    remove(merged_path);
    buffer_free(&made);
    gguf_free(file);
    free(l);
}

#define SEVEN "attn_q.", "attn_k.", "attn_output.", "ffn_gate.", "ffn_up.", "ffn_down.", "output.", "token_embd."

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    test_targets_of("tiny-dense",
                    (const char *[]){ SEVEN, "attn_v.", "inp_gate.", ".proj.", "per_layer_model_proj.", NULL });
    test_targets_of("tiny-moe",
                    (const char *[]){ SEVEN, "ffn_gate_inp.", "ffn_gate_up_exps.", "ffn_down_exps.", NULL });
    if (device == GM_BACKEND_GPU) return test_end(); /* in software it is slow, and the others have the same kernels */
    test_targets_of("tiny-moe-split", (const char *[]){ SEVEN, "ffn_gate_exps.", "ffn_up_exps.", NULL });
    test_targets_of("tiny-unified", (const char *[]){ SEVEN, NULL });
    test_targets_of("tiny-mm-bidir", (const char *[]){ SEVEN, NULL });
    test_targets_of("odd-dense", (const char *[]){ SEVEN, NULL });
    test_targets_of("odd-moe", (const char *[]){ SEVEN, "ffn_down_exps.", NULL });
    return test_end();
}
