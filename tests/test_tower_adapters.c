/* Adapters of towers. A tower with an adapter computes what the tower of a model does into which the adapter was merged; jobs with
 * different adapters go on side by side, and with answers that use adapters; soft tokens belong to the adapters that they were
 * computed with.
 *
 *     test_tower_adapters [cpu|gpu] */

#include "adapter_files.h"
#include "distance.h"
#include "media/picture.h"
#include "media/sound.h"
#include "read_file.h"
#include "session/tower.h"
#include "sessions.h"

#include <stdlib.h>
#include <unistd.h>

static gm_backend device = GM_BACKEND_CPU;

#define MODEL "tests/fixtures/tiny-mm-ollama.gguf" /* its towers are in its own file, where merging finds them */

static double merged_tolerance(void) { return device == GM_BACKEND_CPU ? 1e-4 : 5e-3; }

static gm_engine *open_towers(const char *path) {
    return open_engine(&(gm_engine_options){ .model = path, .threads = 2, .backend = device, .precise = true });
}

/* ---- adapters ---- */

/* Tensors of an adapter for these linears; odd ranks. `names` has room for the names of all. */
typedef struct {
    made_tensor tensors[128];
    char        names[128][120];
    size_t      count;
} made_list;

static void list_add(made_list *l, const gguf *file, const char *name, const char *path, uint32_t rank) {
    const gguf_tensor *t = gguf_find_tensor(file, name);
    CHECK_MESSAGE(t && l->count + 2 < COUNT_OF(l->tensors), "%s", name);
    for (int half = 0; t && half < 2; half++, l->count++) {
        snprintf(l->names[l->count], sizeof l->names[0], "base_model.model.model.%s.lora_%c.weight", path,
                 half ? 'B' : 'A');
        l->tensors[l->count] = (made_tensor){ l->names[l->count], "F32", half ? (uint32_t)t->ne[1] : rank,
                                              half ? rank : (uint32_t)t->ne[0] };
    }
}

/* Every linear of the towers that adapters can correct, and one of the text model. */
static void list_towers(made_list *l, const gguf *file, bool seen, bool heard, uint32_t rank) {
    static const char *const vision[][2] = {
        { "attn_q", "self_attn.q_proj" },   { "attn_k", "self_attn.k_proj" }, { "attn_v", "self_attn.v_proj" },
        { "attn_out", "self_attn.o_proj" }, { "ffn_gate", "mlp.gate_proj" },  { "ffn_up", "mlp.up_proj" },
        { "ffn_down", "mlp.down_proj" },
    };
    static const char *const audio[][2] = {
        { "attn_q", "self_attn.q_proj" },
        { "attn_k", "self_attn.k_proj" },
        { "attn_v", "self_attn.v_proj" },
        { "attn_out", "self_attn.post" },
        { "ffn_up", "feed_forward1.ffw_layer_1" },
        { "ffn_down", "feed_forward1.ffw_layer_2" },
        { "ffn_up_1", "feed_forward2.ffw_layer_1" },
        { "ffn_down_1", "feed_forward2.ffw_layer_2" },
        { "conv_pw1", "lconv1d.linear_start" },
        { "conv_pw2", "lconv1d.linear_end" },
    };
    char name[80], path[80];
    for (size_t i = 0; seen && i < COUNT_OF(vision); i++) {
        snprintf(name, sizeof name, "v.blk.0.%s.weight", vision[i][0]);
        snprintf(path, sizeof path, "vision_tower.encoder.layers.0.%s.linear", vision[i][1]);
        list_add(l, file, name, path, rank + (uint32_t)i % 2);
    }
    if (seen) list_add(l, file, "mm.input_projection.weight", "embed_vision.embedding_projection", rank);
    for (size_t i = 0; heard && i < COUNT_OF(audio); i++) {
        snprintf(name, sizeof name, "a.blk.0.%s.weight", audio[i][0]);
        snprintf(path, sizeof path, "audio_tower.layers.0.%s.linear", audio[i][1]);
        list_add(l, file, name, path, rank + (uint32_t)i % 2);
    }
    if (heard) { /* the file has Ollama's names for two of these */
        list_add(l, file, "a.pre_encode.out.weight", "audio_tower.subsample_conv_projection.input_proj_linear", rank);
        list_add(l, file, "mm.a.fc.weight", "audio_tower.output_proj", rank);
        list_add(l, file, "mm.a.input_projection.weight", "embed_audio.embedding_projection", rank);
    }
}

typedef struct {
    buffer file;
    char   config[80];
} made_file;

static made_file made_adapter(const gguf *file, bool seen, bool heard, bool text, uint32_t rank) {
    made_list *l = calloc(1, sizeof *l);
    made_file  out = { 0 };
    list_towers(l, file, seen, heard, rank);
    if (text) list_add(l, file, "blk.0.attn_q.weight", "layers.0.self_attn.q_proj", rank);
    out.file = made_safetensors(l->tensors);
    snprintf(out.config, sizeof out.config, "{\"peft_type\":\"LORA\",\"lora_alpha\":%g}", 0.004 * rank);
    free(l);
    return out;
}

static gm_adapter *load_made(gm_engine *engine, const made_file *m, const char *name) {
    gm_adapter *out = NULL;
    CHECK_MESSAGE(!gm_adapter_load_data(engine, name, m->file.data, m->file.length, m->config, strlen(m->config), &out,
                                        why, sizeof why),
                  "%s", why);
    return out;
}

/* ---- encoding ---- */

typedef struct {
    picture picture;
    sound   sound;
} shown;

static shown shown_open(void) {
    shown   out = { 0 };
    picture raw = { 0 };
    error   e = { 0 };
    buffer  bytes = file_read("tests/fixtures/tiny-mm.png"), wave = file_read("tests/fixtures/tiny-mm.wav");
    CHECK_MESSAGE(!picture_decode(bytes.data, bytes.length, &raw, &e) && !picture_fitted(&raw, 70, &out.picture, &e),
                  "%s", e.why);
    sound_decoder *d = NULL;
    gm_status      status = sound_decoder_new(wave.data, wave.length, &d, &e);
    while (!status && (status = sound_decoder_step(d, INFINITY, &out.sound, &e)) == GM_AGAIN) status = GM_OK;
    CHECK_MESSAGE(!status, "%s", e.why);
    sound_decoder_free(d);
    picture_free(&raw);
    buffer_free(&bytes);
    buffer_free(&wave);
    return out;
}

static tower_job *encoding_new(gm_engine *engine, const shown *what, bool heard, uint32_t set) {
    const tower_picture p = { .width = what->picture.width,
                              .height = what->picture.height,
                              .pixels = what->picture.pixels };
    const tower_sound   s = { .samples = what->sound.samples, .count = what->sound.count };
    tower_job          *job = NULL;
    error               e = { 0 };
    engine_enter(engine);
    const gm_status status =
        heard ? tower_encode_sounds(engine, &s, 1, &job, &e) : tower_encode_pictures(engine, &p, 1, &job, &e);
    if (!status) tower_job_use(job, set);
    engine_leave(engine);
    CHECK_MESSAGE(!status, "%s", e.why);
    return job;
}

static bool job_goes_on(gm_engine *engine, tower_job *job) {
    error e = { 0 };
    engine_enter(engine);
    const gm_status status = tower_job_step(job, &e);
    engine_leave(engine);
    CHECK_MESSAGE(!status || status == GM_AGAIN, "%s", e.why);
    return status == GM_AGAIN;
}

static size_t encoded_values(const tower_job *job, const float **rows, const gm_engine *engine) {
    size_t count = 0;
    *rows = tower_job_rows(job, 0, &count);
    return count * engine->weights.config.width;
}

/* How far apart what two jobs made is. */
static double jobs_distance(const tower_job *a, const gm_engine *x, const tower_job *b, const gm_engine *y) {
    const float *one, *two;
    const size_t n = encoded_values(a, &one, x);
    return n && n == encoded_values(b, &two, y) ? distance(one, two, n) : 1e9;
}

static void job_close(gm_engine *engine, tower_job *job) {
    engine_enter(engine);
    tower_job_free(job);
    engine_leave(engine);
}

/* ---- cases ---- */

static gm_session *session_adapted(gm_engine *engine, gm_adapter *a) {
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    CHECK_MESSAGE(!gm_session_adapters(s, &a, NULL, a != NULL, why, sizeof why), "%s", why);
    return s;
}

/* Plain, with the adapter, and merged; the first job begins before the tower is there, and answers with adapters go on meanwhile. */
static void test_against_merged(gm_engine *engine, gm_engine *merged, const shown *what, bool heard, gm_session *s) {
    TEST("%s with an adapter, and with the adapter in the weights", heard ? "a sound" : "a picture");
    const int32_t tokens[] = { 301, 305, 330, 399, 301, 310 };
    tower_job *plain = encoding_new(engine, what, heard, 0), *adapted = encoding_new(engine, what, heard, s->adapters);
    bool       one = true, two = true;
    gm_status  text = GM_AGAIN;
    while (one || two || text == GM_AGAIN) {
        if (two) two = job_goes_on(engine, adapted);
        if (text == GM_AGAIN) text = gm_session_set(s, tokens, COUNT_OF(tokens), why, sizeof why);
        CHECK_MESSAGE(!text || text == GM_AGAIN, "%s", why);
        if (one) one = job_goes_on(engine, plain);
        if (test_bad) return;
    }
    tower_job *want = encoding_new(merged, what, heard, 0);
    while (job_goes_on(merged, want)) {}
    const double off = jobs_distance(adapted, engine, want, merged),
                 apart = jobs_distance(adapted, engine, plain, engine);
    CHECK_MESSAGE(off <= merged_tolerance(), "they differ by %g", off);
    CHECK_MESSAGE(apart > 20 * merged_tolerance() && apart < 1e3, "the adapter changes %g", apart);
    job_close(engine, plain);
    job_close(engine, adapted);
    job_close(merged, want);
}

/* A higher rank makes sites and graphs anew while the job runs. */
static void test_loading_meanwhile(gm_engine *engine, const gguf *file, const shown *what, const gm_session *s) {
    TEST("an adapter is loaded while a picture is encoded with another one");
    tower_job *whole = encoding_new(engine, what, false, s->adapters),
              *disturbed = encoding_new(engine, what, false, s->adapters);
    while (job_goes_on(engine, whole)) {}
    bool        more = job_goes_on(engine, disturbed);
    made_file   large = made_adapter(file, true, true, true, 18);
    gm_adapter *a = load_made(engine, &large, "large");
    while (more) more = job_goes_on(engine, disturbed);
    tower_job *after = encoding_new(engine, what, false, s->adapters);
    while (job_goes_on(engine, after)) {}
    CHECK(jobs_distance(whole, engine, disturbed, engine) <= 1e-5 &&
          jobs_distance(whole, engine, after, engine) <= 1e-5);
    job_close(engine, whole);
    job_close(engine, disturbed);
    job_close(engine, after);
    gm_adapter_free(a);
    buffer_free(&large.file);
}

/* ---- sessions ---- */

static size_t count_spans(const gm_session *s) { return s->soft.span_count; }

/* Says a picture and a word, and gives back how many tokens of the prompt were held already. */
static size_t say_picture(gm_session *s, const buffer *png) {
    const gm_part    parts[] = { { .kind = GM_PART_IMAGE, .data = png->data, .size = png->length, .budget = 70 },
                                 { .kind = GM_PART_TEXT, .text = "Hello" } };
    const gm_message message = { .role = "user", .parts = parts, .part_count = COUNT_OF(parts) };
    gm_sampling      greedy;
    gm_reply        *reply = NULL;
    gm_piece         piece;
    gm_reply_stats   stats = { 0 };
    gm_status        status;
    gm_sampling_default(s->engine, &greedy);
    greedy.temperature = 0;
    const gm_reply_options options = { .sampling = &greedy, .max_tokens = 2 };
    CHECK_MESSAGE(!gm_reply_start(s, &message, 1, &options, &reply, why, sizeof why), "%s", why);
    if (!reply) return 0;
    while ((status = gm_reply_next(reply, &piece, why, sizeof why)) == GM_OK || status == GM_AGAIN) {}
    CHECK_MESSAGE(status == GM_DONE, "%s", why);
    gm_reply_get_stats(reply, &stats);
    gm_reply_free(reply);
    return stats.cached_tokens;
}

static bool same_rows(const gm_session *a, const gm_session *b) {
    return count_spans(a) == 1 && count_spans(b) == 1 && a->soft.row_count == b->soft.row_count &&
           distance(a->soft.rows, b->soft.rows, a->soft.row_count * a->soft.width) <= 1e-5;
}

static void test_sessions(gm_engine *engine, gm_adapter *sees, gm_adapter *text_only) {
    TEST("a session's pictures are encoded with its adapters, and again when these change");
    buffer      png = file_read("tests/fixtures/tiny-mm.png");
    gm_session *plain = session_adapted(engine, NULL), *adapted = session_adapted(engine, sees),
               *changing = session_adapted(engine, NULL);
    void  *data = NULL;
    size_t size = 0;
    say_picture(plain, &png);
    say_picture(adapted, &png);
    say_picture(changing, &png);
    CHECK(same_rows(plain, changing) && count_spans(adapted) == 1 && !same_rows(plain, adapted));
    CHECK(say_picture(changing, &png) > 20); /* what it holds is not encoded again */
    CHECK(!gm_session_adapters(changing, &text_only, NULL, 1, why, sizeof why));
    CHECK(count_spans(changing) == 1); /* this one corrects text only */
    CHECK(!gm_session_adapters(changing, &sees, NULL, 1, why, sizeof why));
    CHECK(count_spans(changing) == 0 && gm_session_tokens(changing, NULL) < 10);
    say_picture(changing, &png);
    CHECK(same_rows(adapted, changing));

    TEST("a snapshot's pictures belong to the adapters of the towers");
    CHECK_MESSAGE(!gm_session_save_buffer(adapted, &data, &size, why, sizeof why), "%s", why);
    CHECK_MESSAGE(!gm_session_restore_buffer(changing, data, size, why, sizeof why), "%s", why);
    CHECK(changing->computed > 20 && same_rows(adapted, changing));
    CHECK_MESSAGE(!gm_session_restore_buffer(plain, data, size, why, sizeof why), "%s", why);
    CHECK(count_spans(plain) == 0 && gm_session_tokens(plain, NULL) < 10);
    gm_free(data);
    buffer_free(&png);
    gm_session_free(plain);
    gm_session_free(adapted);
    gm_session_free(changing);
}

static void test_tower_refusals(gm_engine *engine, const gguf *file) {
    TEST("what an adapter cannot correct is refused");
    made_list  *l = calloc(1, sizeof *l);
    gm_adapter *out = NULL;
    list_add(l, file, "a.blk.0.linear_pos.weight", "audio_tower.layers.0.self_attn.relative_k_proj", 2);
    buffer b = made_safetensors(l->tensors);
    CHECK(gm_adapter_load_data(engine, "x", b.data, b.length, "{}", 2, &out, why, sizeof why) == GM_UNSUPPORTED);
    CHECK_MESSAGE(strstr(why, "relative positions"), "%s", why);
    gm_engine *blind = open_towers("tests/fixtures/tiny-dense.gguf");
    made_file  seen = made_adapter(file, true, false, false, 2);
    CHECK(gm_adapter_load_data(blind, "x", seen.file.data, seen.file.length, "{}", 2, &out, why, sizeof why) && !out);
    CHECK_MESSAGE(strstr(why, "corrects the vision tower, but the model has none"), "%s", why);
    gm_engine_close(blind);
    buffer_free(&seen.file);
    buffer_free(&b);
    free(l);
}

int main(int argc, char **argv) {
    error e = { 0 };
    gguf *file = NULL;
    char  path[40];
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    TEST("opening");
    CHECK(!gguf_open_file(MODEL, &file, &e));
    if (!file) return test_end();
    made_file all = made_adapter(file, true, true, false, 3), text = made_adapter(file, false, false, true, 3);
    merge_made(file, &all.file, all.config, path);
    gm_engine  *engine = open_towers(MODEL), *merged = open_towers(path);
    gm_adapter *sees = engine ? load_made(engine, &all, "sees") : NULL;
    const shown what = shown_open();
    if (!sees || !merged) return test_end();
    gm_session *s = session_adapted(engine, sees);
    for (int heard = 0; heard < 2; heard++) test_against_merged(engine, merged, &what, heard, s);
    gm_adapter *text_only = load_made(engine, &text, "reads");
    if (device == GM_BACKEND_CPU) { /* a GPU in software compiles for long */
        test_sessions(engine, sees, text_only);
        test_tower_refusals(engine, file);
        test_loading_meanwhile(engine, file, &what, s);
    }
    gm_session_free(s);
    gm_adapter_free(sees);
    gm_adapter_free(text_only);
    CHECK(!engine->adapters.count && !engine->towers[TOWER_VISION].adapted);
    gm_engine_close(engine);
    gm_engine_close(merged);
    remove(path);
    gguf_free(file);
    buffer_free(&all.file);
    buffer_free(&text.file);
    picture_free((picture *)&what.picture);
    sound_free((sound *)&what.sound);
    return test_end();
}
