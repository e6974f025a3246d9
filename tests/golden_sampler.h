/* The tokens that every backend must draw. Another program, in another language, computed them from the specification at the top of
 * src/text/sampler.c. */

#ifndef GM_GOLDEN_SAMPLER_H
#define GM_GOLDEN_SAMPLER_H

#include <gemmule.h>

enum { GOLDEN_VOCABULARY = 262144, GOLDEN_POSITIONS = 8 };

/* Whole multiples of 2^-12 between −8 and 8: the same on every machine. */
static inline void golden_logits(float *logits /* [GOLDEN_VOCABULARY] */) {
    for (uint32_t i = 0; i < GOLDEN_VOCABULARY; i++)
        logits[i] = (float)((int32_t)(i * 2654435761u >> 16) - 32768) / 4096;
}

static const uint64_t golden_positions[GOLDEN_POSITIONS] = { 0, 1, 2, 3, 1000, 65536, 1ull << 32, (1ull << 40) + 5 };
static const int32_t  golden_history[12] = { 5, 9, 9, 233, 610, 987, 377, 987, 1597, 2584, 4181, 6765 };

static const struct {
    const char *name;
    gm_sampling sampling;
    int32_t     tokens[GOLDEN_POSITIONS];
} golden_rows[] = {
    { "greedy",
      { .temperature = 0, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 },
      { 50549, 50549, 50549, 50549, 50549, 50549, 50549, 50549 } },
    { "plain",
      { .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 },
      { 242629, 156237, 242176, 95603, 201353, 247033, 242396, 41119 } },
    { "plain, another seed",
      { .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 42 },
      { 192389, 3090, 113890, 225625, 203699, 204356, 38870, 23167 } },
    { "a seed of 64 bits",
      { .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 0x123456789abcdef },
      { 64862, 204521, 128135, 215090, 237728, 17575, 229560, 71580 } },
    { "hot",
      { .temperature = 1.7f, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 3 },
      { 188656, 256536, 187504, 128878, 164397, 195363, 28432, 94991 } },
    { "cold",
      { .temperature = 0.25f, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 4 },
      { 37773, 61948, 147542, 83764, 74936, 124930, 249457, 103826 } },
    { "very cold",
      { .temperature = 0.001f, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 4 },
      { 151647, 85971, 198015, 101098, 39603, 180304, 257913, 202196 } },
    { "very hot",
      { .temperature = 100, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 4 },
      { 215331, 146565, 134810, 249004, 145943, 107066, 38849, 109683 } },
    { "top-k",
      { .temperature = 1, .top_k = 40, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 5 },
      { 198015, 129755, 125574, 96917, 158412, 147466, 75025, 35422 } },
    { "top-k above a thousand",
      { .temperature = 0.8f, .top_k = 5000, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 5 },
      { 252101, 6066, 17588, 223677, 123799, 7341, 7252, 2550 } },
    { "top-p",
      { .temperature = 1, .top_p = 0.9f, .typical_p = 1, .repetition_penalty = 1, .seed = 6 },
      { 4901, 198536, 235411, 59008, 99378, 206775, 99250, 225023 } },
    { "min-p",
      { .temperature = 1.2f, .top_p = 1, .min_p = 0.05f, .typical_p = 1, .repetition_penalty = 1, .seed = 7 },
      { 25288, 115602, 22879, 111654, 9637, 24670, 177076, 74402 } },
    { "typical",
      { .temperature = 1, .top_p = 1, .typical_p = 0.5f, .repetition_penalty = 1, .seed = 8 },
      { 194918, 86678, 94875, 44457, 140908, 80756, 248593, 188661 } },
    { "typical within top-k",
      { .temperature = 1.2f,
        .top_k = 500,
        .top_p = 0.9f,
        .min_p = 0.2f,
        .typical_p = 0.6f,
        .repetition_penalty = 1,
        .seed = 14 },
      { 203183, 159399, 248941, 41577, 170345, 108850, 185472, 113031 } },
    { "Gemma 4's own",
      { .temperature = 1, .top_k = 64, .top_p = 0.95f, .typical_p = 1, .repetition_penalty = 1, .seed = 9 },
      { 255329, 96917, 129755, 31241, 252745, 244383, 215726, 2584 } },
    { "Ollama's fall-back",
      { .temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .typical_p = 1, .repetition_penalty = 1, .seed = 10 },
      { 237618, 68260, 237618, 180304, 118809, 35422, 17711, 241799 } },
    { "all cuts",
      { .temperature = 0.9f,
        .top_k = 2000,
        .top_p = 0.9f,
        .min_p = 0.3f,
        .typical_p = 0.9f,
        .repetition_penalty = 1,
        .seed = 11 },
      { 252046, 150804, 259044, 210469, 224986, 172319, 85738, 85738 } },
    { "penalties",
      { .temperature = 0.2f,
        .top_k = 64,
        .top_p = 1,
        .typical_p = 1,
        .repetition_penalty = 1.1f,
        .presence_penalty = 0.3f,
        .frequency_penalty = 0.7f,
        .penalty_window = 8,
        .seed = 12 },
      { 50549, 143285, 165177, 193834, 46368, 64079, 165177, 129755 } },
    { "penalties that reward",
      { .temperature = 0.5f,
        .top_k = 64,
        .top_p = 1,
        .typical_p = 1,
        .repetition_penalty = 0.3f,
        .presence_penalty = -5.1f,
        .frequency_penalty = -1.3f,
        .penalty_window = 64,
        .seed = 13 },
      { 987, 987, 987, 987, 987, 987, 377, 6765 } },
};

#endif
