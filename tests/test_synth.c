/* Models with random weights: compares the tensors with the real files, checks the statistics of blocks, compares the vocabulary with
 * llama.cpp's results, and writes files. */

#include "base/table.h"
#include "model/synth.h"
#include "model/synth_parts.h"
#include "model/towers.h"
#include "test.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <signal.h>
#include <sys/resource.h>
#endif

/* ---- tensors ---- */

static gguf_tensor *list_of(const synth_options *o, arena *a, size_t *count) {
    error        e = { 0 };
    gguf_tensor *tensors = NULL;
    *count = 0;
    CHECK_MESSAGE(synth_tensors(o, a, &tensors, count, &e) == GM_OK, "%s", e.why);
    return tensors;
}

static const gguf_tensor *find(const gguf_tensor *tensors, size_t count, const char *name) {
    static const gguf_tensor none;
    for (size_t i = 0; i < count; i++)
        if (str_is(tensors[i].name, name)) return &tensors[i];
    return &none;
}

/* Counts of types, bytes and parameters of the released files. */
static void test_mixes(void) {
    static const struct {
        const char *size, *flavour;
        int         f32, q4_k, q6_k, q5_0, q8_0, bf16;
        double      gigabytes, billions;
    } rows[] = {
        { "e2b", "llama.cpp", 283, 281, 36, 0, 0, 1, 3.412, 4.647 },
        { "e2b", "ollama", 283, 282, 35, 0, 0, 1, 6.163, 4.647 },
        { "e4b", "llama.cpp", 339, 336, 44, 0, 0, 1, 5.319, 7.518 },
        { "e4b", "ollama", 339, 337, 43, 0, 0, 1, 8.605, 7.518 },
        { "12b", "llama.cpp", 338, 284, 45, 0, 0, 0, 7.366, 11.907 },
        { "12b", "ollama", 338, 284, 45, 0, 0, 0, 7.366, 11.907 },
        { "26b", "llama.cpp", 392, 192, 14, 32, 28, 0, 16.780, 25.233 },
        { "31b", "llama.cpp", 422, 355, 56, 0, 0, 0, 18.671, 30.697 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("the tensors of %s, %s", rows[i].size, rows[i].flavour);
        arena        a = { 0 };
        size_t       count, types[TYPE_COUNT] = { 0 };
        gguf_tensor *t = list_of(&(synth_options){ .size = rows[i].size, .flavour = rows[i].flavour }, &a, &count);
        double       bytes = 0, parameters = 0;
        for (size_t j = 0; j < count; j++) {
            types[t[j].type]++;
            bytes += (double)t[j].bytes;
            parameters += (double)t[j].count;
        }
        CHECK_MESSAGE(types[TYPE_F32] == (size_t)rows[i].f32, "%zu F32", types[TYPE_F32]);
        CHECK_MESSAGE(types[TYPE_Q4_K] == (size_t)rows[i].q4_k, "%zu Q4_K", types[TYPE_Q4_K]);
        CHECK_MESSAGE(types[TYPE_Q6_K] == (size_t)rows[i].q6_k, "%zu Q6_K", types[TYPE_Q6_K]);
        CHECK_MESSAGE(types[TYPE_Q5_0] == (size_t)rows[i].q5_0, "%zu Q5_0", types[TYPE_Q5_0]);
        CHECK_MESSAGE(types[TYPE_Q8_0] == (size_t)rows[i].q8_0, "%zu Q8_0", types[TYPE_Q8_0]);
        CHECK_MESSAGE(types[TYPE_BF16] == (size_t)rows[i].bf16, "%zu BF16", types[TYPE_BF16]);
        CHECK_MESSAGE(fabs(bytes / 1e9 - rows[i].gigabytes) < 0.0006, "%.4f GB", bytes / 1e9);
        CHECK_MESSAGE(fabs(parameters / 1e9 - rows[i].billions) < 0.0006, "%.4f billion parameters", parameters / 1e9);
        arena_free(&a);
    }
}

static void test_synth_shapes(void) {
    static const struct {
        const char *size, *name;
        uint64_t    ne[3];
    } rows[] = {
        { "e2b", "per_layer_token_embd.weight", { 8960, 262144, 1 } },
        { "e2b", "blk.3.attn_q.weight", { 1536, 2048, 1 } },
        { "e2b", "blk.4.attn_q.weight", { 1536, 4096, 1 } },
        { "e2b", "blk.34.attn_v.weight", { 1536, 512, 1 } },
        { "e2b", "blk.14.ffn_down.weight", { 6144, 1536, 1 } },
        { "e2b", "blk.15.ffn_down.weight", { 12288, 1536, 1 } },
        { "12b", "blk.4.attn_v.weight", { 3840, 2048, 1 } },
        { "12b", "blk.5.attn_v.weight", { 0 } },
        { "12b", "blk.5.attn_k.weight", { 3840, 512, 1 } },
        { "26b", "blk.29.ffn_gate_up_exps.weight", { 2816, 1408, 128 } },
        { "26b", "blk.0.ffn_down_exps.weight", { 704, 2816, 128 } },
        { "diffusion", "blk.29.ffn_gate_up_exps.weight", { 2816, 1408, 128 } },
        { "diffusion", "blk.29.enc_layer_output_scale.weight", { 1, 1, 1 } },
        { "diffusion", "self_cond_pre_norm.weight", { 2816, 1, 1 } },
        { "diffusion", "self_cond_gate.weight", { 2816, 2112, 1 } },
        { "diffusion", "self_cond_up.weight", { 2816, 2112, 1 } },
        { "diffusion", "self_cond_down.weight", { 2112, 2816, 1 } },
        { "31b", "blk.59.attn_output.weight", { 16384, 5376, 1 } },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("shape of %s in %s", rows[i].name, rows[i].size);
        arena              a = { 0 };
        size_t             count;
        const gguf_tensor *all = list_of(&(synth_options){ .size = rows[i].size }, &a, &count);
        const gguf_tensor *t = find(all, count, rows[i].name);
        CHECK_MESSAGE(memcmp(t->ne, rows[i].ne, sizeof rows[i].ne) == 0, "%llu × %llu × %llu",
                      (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2]);
        arena_free(&a);
    }
}

/* ---- towers ---- */

static bool write_head(void *user, const void *data, size_t length) { return fwrite(data, 1, length, user) == length; }

/* A file with these tensors and no data: the rest of it is a hole. */
static void write_hole(const char *path, const synth_plan *plan, const synth_tensor *tensors, size_t count) {
    error        e = { 0 };
    gguf_writer *w = NULL;
    FILE        *file = fopen(path, "wb");
    CHECK(file && !gguf_writer_new(&w, &e));
    if (plan->ollama) synth_write_tower_keys(plan, w);
    else synth_write_projector_keys(plan, w);
    for (size_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", STR_ARGS(tensors[i].info.name));
        gguf_write_tensor(w, name, tensors[i].info.type, tensors[i].info.dims, tensors[i].info.ne);
    }
    CHECK_MESSAGE(!gguf_writer_head(w, write_head, file, &e), "%s", e.why);
    fflush(file);
    CHECK(!ftruncate(fileno(file), (off_t)gguf_writer_size(w)));
    fclose(file);
    gguf_writer_free(w);
}

/* The sizes of the released towers, and that the vision tower's weights are found. */
static void test_synth_towers(void) {
    static const struct {
        const char *size, *flavour;
        uint32_t    width, tower_width, layers;
        double      vision, audio; /* millions of parameters, without what connects them to the text model */
    } rows[] = {
        { "e2b", "llama.cpp", 1536, 768, 16, 167, 305 }, { "e4b", "ollama", 2560, 768, 16, 167, 305 },
        { "12b", "llama.cpp", 3840, 3840, 0, 35.2, 0 },  { "26b", "llama.cpp", 2816, 1152, 27, 569, 0 },
        { "31b", "ollama", 5376, 1152, 27, 569, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("the towers of %s, %s", rows[i].size, rows[i].flavour);
        error          e = { 0 };
        arena          a = { 0 };
        synth_plan     plan;
        synth_tensor  *tensors = NULL;
        size_t         count = 0;
        double         vision = 0, audio = 0;
        gguf          *file = NULL;
        vision_weights w = { 0 };
        const char    *path = "build/towers.hole.gguf";
        CHECK(!synth_plan_make(&(synth_options){ .size = rows[i].size, .flavour = rows[i].flavour, .towers = true },
                               &plan, &e));
        CHECK(!synth_list_projector(&plan, &a, &tensors, &count, &e));
        for (size_t j = 0; j < count; j++) {
            const str name = tensors[j].info.name;
            if (str_starts_with(name, "v.")) vision += (double)tensors[j].info.count / 1e6;
            if (str_starts_with(name, "a.") || str_starts_with(name, "mm.a.fc."))
                audio += (double)tensors[j].info.count / 1e6;
        }
        CHECK_MESSAGE(fabs(vision - rows[i].vision) < 0.6, "%.2f million parameters", vision);
        CHECK_MESSAGE(fabs(audio - rows[i].audio) < 0.6, "%.2f million parameters", audio);
        write_hole(path, &plan, tensors, count);
        CHECK_MESSAGE(!gguf_open_file(path, &file, &e), "%s", e.why);
        if (file) CHECK_MESSAGE(!vision_shapes(file, rows[i].width, &w, &e), "%s", e.why);
        CHECK(w.config.width == rows[i].tower_width && w.config.layers == rows[i].layers);
        vision_free(&w);
        gguf_free(file);
        arena_free(&a);
        unlink(path);
    }
}

/* Whatever is cut away, the last layer is full, and the layers before the first sharing one are a sliding and a full one. */
static void test_cutting(void) {
    static const struct {
        const char *size;
        int         layers;
        uint32_t    sharing;
    } rows[] = { { "e2b", 2, 0 },   { "e2b", 5, 0 },   { "e2b", 6, 1 },   { "e2b", 10, 5 },
                 { "e2b", 17, 12 }, { "e2b", 20, 10 }, { "e2b", 35, 20 }, { "e4b", 7, 1 },
                 { "e4b", 12, 6 },  { "e4b", 42, 18 }, { "12b", 9, 0 } };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("%s cut to %d layers", rows[i].size, rows[i].layers);
        error      e = { 0 };
        synth_plan plan;
        CHECK(synth_plan_make(&(synth_options){ .size = rows[i].size, .layers = rows[i].layers }, &plan, &e) == GM_OK);
        CHECK_MESSAGE(plan.sharing == rows[i].sharing, "%u layers share", plan.sharing);
        CHECK(synth_layer_is_full(&plan, plan.layers - 1) && !synth_layer_is_full(&plan, 0));
        const uint32_t first = plan.layers - plan.sharing;
        if (plan.sharing) CHECK(synth_layer_is_full(&plan, first - 1) && !synth_layer_is_full(&plan, first - 2));
    }
    for (const char *const *size = (const char *const[]){ "e2b", "e4b", NULL }; *size; size++)
        for (int layers = 2; layers < 35; layers++) {
            TEST("donors of %s cut to %d layers", *size, layers);
            error      e = { 0 };
            synth_plan plan;
            CHECK(synth_plan_make(&(synth_options){ .size = *size, .layers = layers }, &plan, &e) == GM_OK);
            const uint32_t first = plan.layers - plan.sharing;
            CHECK(!plan.sharing || (first % plan.size->period == 0 && first >= plan.size->period));
        }
}

static void test_bad_options(void) {
    static const struct {
        synth_options options;
        const char   *says;
    } rows[] = {
        { { .size = "7b" }, "unknown size '7b': choose e2b" },
        { { 0 }, "unknown size ''" },
        { { .size = "e2b", .quant = "q3" }, "unknown quantisation 'q3'" },
        { { .size = "e2b", .flavour = "vanilla" }, "unknown flavour 'vanilla'" },
        { { .size = "e2b", .layers = 36 }, "2 to 35 layers, not 36" },
        { { .size = "e2b", .layers = -1 }, "not -1" },
        { { .size = "e2b", .layers = 1 }, "not 1" },
        { { .size = "e2b", .vocabulary = 511 }, "512 to 262144 tokens, not 511" },
        { { .size = "e2b", .window = 513 }, "1 to 512 positions, not 513" },
        { { .size = "12b", .window = -1 }, "1 to 1024 positions, not -1" },
        { { .size = "diffusion", .flavour = "ollama" },
          "Ollama has no diffusion models: choose the flavour llama.cpp" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("options: %s", rows[i].says);
        error e = { 0 };
        CHECK(synth_write(&rows[i].options, "never-written.gguf", NULL, NULL, &e) == GM_BAD_ARGUMENT);
        CHECK_MESSAGE(strstr(e.why, rows[i].says), "says '%s'", e.why);
        CHECK(access("never-written.gguf", F_OK) != 0);
    }
}

/* ---- blocks ---- */

static void test_synth_blocks(void) {
    static const quant_type types[] = { TYPE_F16, TYPE_BF16, TYPE_Q4_0, TYPE_Q5_0, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q6_K };
    enum { ROWS = 512, ROW = 2816 };
    uint8_t *data = malloc(ROWS * ROW * 2), *again = malloc(ROWS * ROW * 2);
    float   *values = malloc(ROWS * ROW * sizeof *values);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        const quant_format *format = quant_format_of(types[i]);
        const synth_tensor  filled = { .info = { .type = types[i], .format = format }, .fill = FILL_MATRIX };
        const size_t bytes = (size_t)quant_row_bytes(format, ROWS * ROW), row = (size_t)quant_row_bytes(format, ROW);
        synth_random random;
        TEST("random blocks of %s", format->name);
        synth_random_start(&random, 7, 3);
        synth_fill_data(&random, &filled, data, 0, ROWS * ROW);
        synth_random_start(&random, 7, 3);
        synth_fill_data(&random, &filled, again, 0, ROWS * ROW / 2);
        synth_fill_data(&random, &filled, again + bytes / 2, ROWS * ROW / 2, ROWS * ROW / 2);
        CHECK(memcmp(data, again, bytes) == 0); /* in two halves as in one */
        synth_random_start(&random, 8, 3);
        synth_fill_data(&random, &filled, again, 0, ROWS * ROW);
        CHECK(memcmp(data, again, row) != 0);
        size_t equal = 0;
        for (size_t j = 1; j < ROWS; j++) equal += memcmp(data, data + j * row, row) == 0;
        CHECK_MESSAGE(equal == 0, "%zu rows equal the first", equal);

        format->dequantise(values, data, ROWS * ROW / format->block);
        double sum = 0, squares = 0, largest = 0;
        for (size_t j = 0; j < ROWS * ROW; j++) {
            sum += (double)values[j];
            squares += (double)values[j] * (double)values[j];
            largest = fmax(largest, fabs((double)values[j]));
        }
        const double mean = sum / (ROWS * ROW), spread = sqrt(squares / (ROWS * ROW) - mean * mean);
        CHECK_MESSAGE(fabs(mean) < 0.0006, "mean %g", mean);
        CHECK_MESSAGE(spread > 0.017 && spread < 0.024, "spread %g", spread);
        CHECK_MESSAGE(largest < 0.12, "largest %g", largest);
    }
    free(data);
    free(again);
    free(values);
}

static void test_small_tensors(void) {
    static const struct {
        synth_fill fill;
        float      low, high;
    } rows[] = { { FILL_NORM, 0.9f, 1.1f },
                 { FILL_QUERY_KEY_NORM, 0.27f, 0.33f },
                 { FILL_ATTENTION_NORM, 0.135f, 0.165f },
                 { FILL_BRANCH_NORM, 0.45f, 0.55f },
                 { FILL_OUTPUT_NORM, -1.1f, 1.1f },
                 { FILL_LAYER_SCALE, 0.95f, 1 },
                 { FILL_ROUTER, -7, 7 },
                 { FILL_SKEWED_ROUTER, -12.6f, 12.6f } };
    float values[1000];
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("values of small tensors %zu", i);
        const synth_tensor filled = { .info = { .type = TYPE_F32, .format = quant_format_of(TYPE_F32), .ne = { 10 } },
                                      .fill = rows[i].fill };
        synth_random       random;
        synth_random_start(&random, 1, 1);
        synth_fill_data(&random, &filled, values, 0, COUNT_OF(values));
        float low = values[0], high = values[0];
        for (size_t j = 0; j < COUNT_OF(values); j++) {
            low = fminf(low, values[j]);
            high = fmaxf(high, values[j]);
        }
        CHECK(low >= rows[i].low && high <= rows[i].high && high - low > 0.6f * (rows[i].high - rows[i].low));
    }
    TEST("the rope factors");
    const synth_tensor rope = { .info = { .type = TYPE_F32, .format = quant_format_of(TYPE_F32) }, .fill = FILL_ROPE };
    synth_random       random = { { 0 } };
    synth_fill_data(&random, &rope, values, 0, 256);
    CHECK(values[0] == 1 && values[63] == 1 && values[64] == 1e30f && values[255] == 1e30f);
}

/* ---- vocabulary ---- */

/* The head of a file with the vocabulary and one small tensor, in memory. */
static gguf *vocabulary_file(const char *flavour, buffer *bytes) {
    error        e = { 0 };
    gguf_writer *w = NULL;
    gguf        *g = NULL;
    synth_plan   plan;
    const float  one = 1;
    CHECK(synth_plan_make(&(synth_options){ .size = "12b", .flavour = flavour }, &plan, &e) == GM_OK);
    CHECK(gguf_writer_new(&w, &e) == GM_OK);
    gguf_write_str(w, "general.architecture", str_of("gemma4"));
    CHECK(synth_write_vocabulary(&plan, w, &e) == GM_OK);
    gguf_write_tensor(w, "one", TYPE_F32, 1, (uint64_t[]){ 1 });
    CHECK(gguf_writer_head(w, buffer_sink, bytes, &e) == GM_OK);
    CHECK(gguf_writer_data(w, &one, sizeof one, &e) == GM_OK && gguf_writer_end(w, &e) == GM_OK);
    gguf_writer_free(w);
    CHECK_MESSAGE(gguf_open_memory(bytes->data, bytes->length, &g, &e) == GM_OK, "%s", e.why);
    return g;
}

static void check_merges(const gguf *g, const table *tokens) {
    const gguf_value *merges = gguf_find(g, "tokenizer.ggml.merges");
    const uint8_t    *at = merges->data;
    size_t            unknown = 0;
    uint32_t          id;
    CHECK_MESSAGE(merges->count > 400000, "%llu merges", (unsigned long long)merges->count);
    for (uint64_t i = 0; i < merges->count; i++) {
        const str   merge = gguf_next_string(&at);
        const char *space = memchr(merge.data + 1, ' ', merge.length - 1);
        char        joined[128];
        if (!space || merge.length >= sizeof joined) {
            unknown++;
            continue;
        }
        const size_t left = (size_t)(space - merge.data), right = merge.length - left - 1;
        memcpy(joined, merge.data, left);
        memcpy(joined + left, space + 1, right);
        unknown += !table_find(tokens, (str){ merge.data, left }, &id);
        unknown += !table_find(tokens, (str){ space + 1, right }, &id);
        unknown += !table_find(tokens, (str){ joined, left + right }, &id);
    }
    CHECK_MESSAGE(unknown == 0, "%zu pieces of merges are not in the vocabulary", unknown);
}

static void test_vocabulary(void) {
    static const struct {
        uint32_t    id;
        const char *text;
    } fixed[] = { { 0, "<pad>" },          { 2, "<bos>" },         { 48, "<|tool_call>" }, { 52, "<|\"|>" },
                  { 98, "<|think|>" },     { 106, "<turn|>" },     { 107, "\n" },          { 109, "\n\n\n" },
                  { 138, "▁▁" },           { 141, "▁▁▁▁▁" },       { 212, "</s>" },        { 238, "<0x00>" },
                  { 493, "<0xFF>" },       { 236743, "▁" },        { 255968, "\t" },       { 255999, "<|image>" },
                  { 258881, "<|audio|>" }, { 258883, "<audio|>" }, { 258884, "<|video|>" } };
    TEST("vocabulary: unique, specials in their places, merges known");
    buffer            bytes = { 0 };
    gguf             *g = vocabulary_file("llama.cpp", &bytes);
    const gguf_value *tokens = g ? gguf_find(g, "tokenizer.ggml.tokens") : NULL;
    CHECK(tokens && tokens->count == SYNTH_VOCABULARY);
    table    all = { 0 };
    bool     failed = false;
    size_t   twice = 0;
    uint32_t id = 0;
    CHECK(table_reserve(&all, SYNTH_VOCABULARY));
    const uint8_t *at = tokens->data;
    for (uint32_t i = 0; i < SYNTH_VOCABULARY; i++) twice += !table_add(&all, gguf_next_string(&at), i, &failed);
    CHECK_MESSAGE(!failed && twice == 0, "%zu tokens are there twice", twice);
    for (size_t i = 0; i < COUNT_OF(fixed); i++)
        CHECK_MESSAGE(table_find(&all, str_of(fixed[i].text), &id) && id == fixed[i].id, "%s is %u", fixed[i].text, id);
    check_merges(g, &all);
    table_free(&all);
    gguf_free(g);
    buffer_free(&bytes);
}

/* What llama.cpp makes of the same texts with this vocabulary. */
static void test_tokenizing(void) {
    static const struct {
        const char *text;
        int32_t     ids[12];
        size_t      count;
    } rows[] = {
        { "Hello world", { 4362, 17930, 580, 29567 }, 4 },
        { "the quick brown fox", { 23224, 574, 8641, 6933, 9561, 20243, 563, 8086 }, 8 },
        { "  two\n\nlines\t", { 138, 23624, 108, 17851, 7131, 255968 }, 6 },
        { "我想 😁", { 241975, 241689, 236743, 478, 397, 390, 367 }, 7 },
        { "                               x", { 167, 236831 }, 2 },
    };
    for (const char *const *flavour = (const char *const[]){ "llama.cpp", "ollama", NULL }; *flavour; flavour++) {
        buffer     bytes = { 0 };
        error      e = { 0 };
        tokenizer *t = NULL;
        TEST("our tokenizer takes the vocabulary, %s", *flavour);
        gguf *g = vocabulary_file(*flavour, &bytes);
        CHECK_MESSAGE(tokenizer_new(g, &t, &e) == GM_OK, "%s", e.why);
        CHECK(t && tokenizer_is_suppressed(t, 258883) == (strcmp(*flavour, "ollama") != 0));
        for (size_t i = 0; t && i < COUNT_OF(rows); i++) {
            TEST("tokens of '%s', %s", rows[i].text, *flavour);
            token_list ids = { 0 };
            CHECK(tokenizer_encode(t, str_of(rows[i].text), true, &ids, &e) == GM_OK);
            CHECK_MESSAGE(ids.count == rows[i].count && memcmp(ids.ids, rows[i].ids, ids.count * sizeof *ids.ids) == 0,
                          "%zu tokens, the first %d", ids.count, ids.count ? ids.ids[0] : -1);
            token_list_free(&ids);
        }
        tokenizer_free(t);
        gguf_free(g);
        buffer_free(&bytes);
    }
}

/* ---- files ---- */

typedef struct {
    uint64_t done, total, stop_at;
    int      calls, backwards;
    bool (*meanwhile)(void); /* called once */
} watch;

static bool watch_progress(void *user, uint64_t done, uint64_t total) {
    watch *w = user;
    w->calls++;
    w->backwards += done < w->done || done > total;
    w->done = done;
    w->total = total;
    if (w->meanwhile) CHECK(w->meanwhile());
    w->meanwhile = NULL;
    return !w->stop_at || done < w->stop_at;
}

static void check_synth_file(const char *path, const synth_options *options) {
    error              e = { 0 };
    gguf              *g = NULL;
    arena              a = { 0 };
    size_t             count;
    const gguf_tensor *wanted = list_of(options, &a, &count);
    CHECK_MESSAGE(gguf_open_file(path, &g, &e) == GM_OK, "%s", e.why);
    if (!g) return;
    CHECK(gguf_tensor_count(g) == count);
    for (size_t i = 0; i < count && i < gguf_tensor_count(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        CHECK(str_equal(t->name, wanted[i].name) && t->type == wanted[i].type && t->bytes == wanted[i].bytes);
    }
    uint32_t layers = 0, sharing = 9;
    bool     sliding[2] = { false, true };
    CHECK(gguf_get_u32(g, "gemma4.block_count", &layers, NULL, &e) == GM_OK && layers == 2);
    CHECK(gguf_get_u32(g, "gemma4.attention.shared_kv_layers", &sharing, NULL, &e) == GM_OK && sharing == 0);
    CHECK(gguf_get_bools(g, "gemma4.attention.sliding_window_pattern", sliding, 2, NULL, &e) == GM_OK && sliding[0] &&
          !sliding[1]);
    /* the end of the last matrix is random, not left out */
    const gguf_tensor *t = gguf_find_tensor(g, "blk.1.proj.weight");
    const uint8_t     *data = t ? gguf_tensor_data(g, t) : NULL;
    float              values[256];
    CHECK(data);
    if (data) t->format->dequantise(values, data + t->bytes - t->format->bytes, 1);
    CHECK(data && values[0] != values[1] && fabsf(values[0]) < 0.1f && fabsf(values[31]) < 0.1f);
    gguf_free(g);
    arena_free(&a);
}

static size_t files_beside(const char *where) {
    char command[300];
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", where);
    FILE  *pipe = popen(command, "r");
    size_t count = 999;
    if (!pipe || fscanf(pipe, "%zu", &count) != 1) count = 999;
    if (pipe) pclose(pipe);
    return count;
}

static char                folder[200], path[240];
static const synth_options options = { .size = "e2b", .layers = 2, .quant = "q4_0", .seed = 5 };

/* Another writer of the same path, which is stopped. */
static bool write_also(void) {
    error e = { 0 };
    watch stop = { .stop_at = 1 << 20 };
    return synth_write(&options, path, watch_progress, &stop, &e) == GM_CANCELLED;
}

static void test_files(void) {
    const char *base = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    snprintf(folder, sizeof folder, "%s/gemmule-synth-XXXXXX", base);
    TEST("writing a file");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/model.gguf", folder);

#ifdef __linux__
    TEST("a disk that is full: a clear error, nothing left, the old file kept");
    FILE *old = fopen(path, "wb");
    CHECK(old && fputs("old", old) >= 0 && fclose(old) == 0);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 30 << 20;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    error     e = { 0 };
    gm_status status = synth_write(&options, path, NULL, NULL, &e);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    struct stat info = { 0 };
    CHECK(status == GM_IO);
    CHECK_MESSAGE(strstr(e.why, path) && strstr(e.why, "cannot write"), "says '%s'", e.why);
    CHECK(files_beside(folder) == 1 && stat(path, &info) == 0 && info.st_size == 3);
#endif
    TEST("stopping in the middle leaves nothing and keeps what was there");
    struct stat kept = { 0 };
    CHECK(write_also());
    CHECK(files_beside(folder) == 1 && stat(path, &kept) == 0 && kept.st_size == 3);
    TEST("writing replaces the old file, tells how far it is, is not disturbed by another writer, and leaves nothing "
         "beside");
    error e2 = { 0 };
    watch w = { .meanwhile = write_also };
    CHECK_MESSAGE(synth_write(&options, path, watch_progress, &w, &e2) == GM_OK, "%s", e2.why);
    CHECK(w.calls > 20 && w.backwards == 0 && w.done == w.total && files_beside(folder) == 1);
    check_synth_file(path, &options);
    unlink(path);

    static const char *const refused[] = { "", "/no-such-folder/model.gguf" };
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        TEST("a path that cannot be written: '%s'", refused[i]);
        error e3 = { 0 };
        CHECK(synth_write(&options, refused[i], NULL, NULL, &e3) != GM_OK && e3.why[0]);
    }
    TEST("a folder is not overwritten");
    error e4 = { 0 };
    CHECK(synth_write(&options, folder, NULL, NULL, &e4) == GM_IO && strstr(e4.why, "is a folder"));
    rmdir(folder);
}

int main(void) {
    test_mixes();
    test_synth_shapes();
    test_synth_towers();
    test_cutting();
    test_bad_options();
    test_synth_blocks();
    test_small_tensors();
    test_vocabulary();
    test_tokenizing();
    test_files();
    return test_end();
}
