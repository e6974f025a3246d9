/* On the tiny models, GPU and CPU, both precise, must choose the same greedy tokens, past the end of a ring. A comparison may end early
 * only where the two best logits are closer than 1e-4, because there rounding decides; it prints the position.
 *
 *     test_gpu_greedy [long] */

#include "session/session.h"
#include "sessions.h"

#include <math.h>

enum { PROMPT = 230 }; /* a ring has 272 slots */

static int tokens[] = { 80, 20 }; /* behind each prompt */

static gm_engine *open_precise(const char *path, gm_backend backend) {
    return open_engine(&(gm_engine_options){ .model = path, .backend = backend, .precise = true, .threads = 1 });
}

/* The likeliest token, and how far the second best is behind. */
static int32_t best_of(const gm_session *s, float *lead) {
    const float *logits = gm_session_logits(s);
    int32_t      best = 0;
    float        second = -INFINITY;
    for (int32_t i = 1; i < (int32_t)s->engine->weights.config.vocabulary; i++) {
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) second = logits[i];
    }
    *lead = logits[best] - second;
    return best;
}

static void test_gpu_greedy(const char *path, gm_engine *on_cpu, gm_engine *on_gpu, uint32_t seed) {
    gm_session *cpu = open_session(on_cpu, GM_KV_DEFAULT, 0), *gpu = open_session(on_gpu, GM_KV_DEFAULT, 0);
    int32_t     prompt[PROMPT];
    for (uint32_t i = 0; i < COUNT_OF(prompt); i++) prompt[i] = (int32_t)(300 + (i * 37 + seed * 11) % 300);
    bool going =
        cpu && gpu && !append_tokens(cpu, prompt, COUNT_OF(prompt)) && !append_tokens(gpu, prompt, COUNT_OF(prompt));
    CHECK_MESSAGE(going, "%s", why);
    for (int i = 0; i < tokens[seed] && going; i++) {
        float         lead, ignored;
        const int32_t want = best_of(cpu, &lead), got = best_of(gpu, &ignored);
        if (want != got && lead < 1e-4f) {
            printf("%s, prompt %u: ends at token %d, where the two best logits differ by %g\n", path, seed, i,
                   (double)lead);
            break;
        }
        CHECK_MESSAGE(want == got, "token %d is %d, the CPU says %d, ahead by %g", i, got, want, (double)lead);
        going = want == got && !append_tokens(cpu, &want, 1) && !append_tokens(gpu, &want, 1);
    }
    gm_session_free(cpu);
    gm_session_free(gpu);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "long")) tokens[0] = 500, tokens[1] = 120;
    static const char *const files[] = { "tests/fixtures/tiny-dense.gguf", "tests/fixtures/tiny-moe.gguf" };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        gm_engine *cpu = NULL, *gpu = NULL;
        for (uint32_t seed = 0; seed < COUNT_OF(tokens); seed++) {
            TEST("%s, prompt %u", files[i], seed);
            if (!cpu) cpu = open_precise(files[i], GM_BACKEND_CPU);
            if (!gpu) gpu = open_precise(files[i], GM_BACKEND_GPU);
            test_gpu_greedy(files[i], cpu, gpu, seed);
        }
        gm_engine_close(cpu);
        gm_engine_close(gpu);
    }
    return test_end();
}
