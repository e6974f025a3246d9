/* Fuzzes the reader of examples. The first byte chooses the name's ending, the limit of tokens and the variant; the rest is the file. Data
 * that are accepted must give the same examples when they are read again, within the limit, with something that counts in each, and
 * every example must be in an epoch once.
 *
 * Runs with the repository's root as working directory. */

#include "fuzz.h"

#include "train/data.h"

#include <string.h>

static gguf      *file;
static tokenizer *vocabulary;

static void fuzz_load_vocabulary(void) {
    error e = { 0 };
    if (gguf_open_file("tests/fixtures/tiny-mm-ollama.gguf", &file, &e) || tokenizer_new(file, &vocabulary, &e)) {
        fprintf(stderr, "%s\n", e.why);
        exit(1);
    }
}

static gm_status no_media(void *host, const char *path, buffer *out, error *e) {
    (void)host, (void)out;
    REQUIRE(path[0] != '/' && path[0] != '.' && !strstr(path, "/.") && !strchr(path, '\\'));
    return fail(e, GM_NOT_FOUND, "there is no %s", path);
}

static void check_example(dataset *d, size_t index, size_t most) {
    data_example x;
    error        e = { 0 };
    size_t       tokens = 0;
    REQUIRE(!dataset_example(d, index, &x, &e));
    for (size_t k = 0; k < x.sequences; k++) {
        const data_sequence *q = &x.sequence[k];
        size_t               counted = 0;
        buffer               text = { 0 };
        tokens += q->count;
        REQUIRE(q->count && (!most || q->count <= most) && q->weights[0] == 0);
        for (size_t i = 0; i < q->count; i++) {
            REQUIRE(q->ids[i] >= 0 && (size_t)q->ids[i] < tokenizer_size(vocabulary));
            counted += q->weights[i] != 0;
        }
        REQUIRE(counted && counted == q->counted);
        data_preview(vocabulary, q, "{+", "+}", &text);
        REQUIRE(!text.failed);
        buffer_free(&text);
    }
    REQUIRE(tokens == dataset_tokens(d, index));
    data_example_free(&x);
}

static void check_epoch(dataset *d) {
    data_epoch   p;
    error        e = { 0 };
    const size_t n = dataset_count(d), most = (size_t)dataset_stats(d)->longest;
    uint64_t     sum = 0;
    size_t       count = 0;
    for (int eval = 0; eval < 2; eval++) {
        REQUIRE(!dataset_epoch(d, eval, 1, 2, most, &p, &e));
        for (size_t i = 0; i < p.count; i++) sum += p.examples[i];
        count += p.count;
        for (size_t run = 0; run < p.run_count; run++) {
            size_t tokens = 0;
            for (size_t i = p.runs[run]; i < p.runs[run + 1]; i++) tokens += dataset_tokens(d, p.examples[i]);
            REQUIRE(tokens && tokens <= most);
        }
        data_epoch_free(&p);
    }
    REQUIRE(count == n && sum == (uint64_t)n * (n - 1) / 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = { "a", "a.jsonl", "a.csv", "a.txt" };
    dataset                 *d = NULL;
    error                    e = { 0 };
    if (!vocabulary) fuzz_load_vocabulary();
    if (!size) return 0;
    const data_source  from = { .bytes = { (const char *)data + 1, size - 1 },
                                .name = names[data[0] & 3],
                                .read_media = no_media };
    const data_options o = { .words = vocabulary,
                             .variant = data[0] & 4 ? CHAT_LARGE : CHAT_SMALL,
                             .max_tokens = data[0] & 8 ? 8 + (data[0] >> 4) * 4 : 0,
                             .eval_share = 0.25,
                             .model = file };
    gm_status          status = dataset_open(&from, &o, &d, &e);
    while (!status && (status = dataset_scan(d, 1e300, &e)) == GM_AGAIN) status = GM_OK;
    REQUIRE(!status || e.why[0]);
    for (size_t i = 0; !status && i < dataset_count(d); i++) check_example(d, i, o.max_tokens);
    if (!status) check_epoch(d);
    dataset_free(d);
    return 0;
}
