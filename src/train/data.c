/* A dataset: scanning it once, and reading its examples by number. */

#include "train/data_parts.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEWEST_TOKENS = 8 }; /* of a sequence that could say anything */

/* ---- opening ---- */

static gm_status data_check_options(const data_options *o, error *e) {
    if (o->max_tokens && o->max_tokens < FEWEST_TOKENS)
        return fail(e, GM_BAD_ARGUMENT, "expected at least %d tokens for an example, found %zu", FEWEST_TOKENS,
                    o->max_tokens);
    if (!(o->eval_share >= 0 && o->eval_share < 1))
        return fail(e, GM_BAD_ARGUMENT, "the share kept for evaluation must be from 0 to less than 1, found %g",
                    o->eval_share);
    return GM_OK;
}

static gm_status data_copy(const char *text, char **out, error *e) {
    if (!text) return GM_OK;
    *out = strdup(text);
    return *out ? GM_OK : fail_memory(e, "the data", strlen(text));
}

gm_status dataset_open(const data_source *from, const data_options *options, dataset **out, error *e) {
    *out = NULL;
    TRY(data_check_options(options, e));
    dataset *d = calloc(1, sizeof *d);
    if (!d) return fail_memory(e, "the data", sizeof *d);
    d->source = *from;
    d->options = *options;
    d->reader.file = d->reader.folder = -1;
    gm_status status = data_copy(from->path ? from->path : from->name, &d->path, e);
    if (!status) status = data_copy(options->system, &d->system, e);
    if (from->path) d->source.path = d->path;
    else d->source.name = d->path;
    d->options.system = d->system;
    if (!status) status = data_reader_open(&d->reader, &d->source, e);
    if (!status) status = data_records_start(&d->reader, &d->cursor, &d->container, e);
    if (status) dataset_free(d);
    else *out = d;
    return status;
}

void dataset_free(dataset *d) {
    if (!d) return;
    data_reader_close(&d->reader);
    arena_free(&d->cursor.memory);
    free(d->entries);
    free(d->examples);
    free(d->path);
    free(d->system);
    free(d);
}

/* ---- plain text ---- */

/* The longest beginning that ends between paragraphs, lines, words or characters, whichever there is in its second half. */
static size_t text_cut(str text, size_t most) {
    size_t line = 0, word = 0;
    for (size_t i = most; i > most / 2; i--) {
        if (text.data[i - 1] == '\n' && i >= 2 && text.data[i - 2] == '\n') return i;
        if (!line && text.data[i - 1] == '\n') line = i;
        if (!word && text.data[i - 1] == ' ') word = i - 1; /* the space belongs to the next word */
    }
    if (line || word) return line ? line : word;
    while (most > 1 && ((unsigned char)text.data[most] & 0xc0) == 0x80) most--;
    return most;
}

static gm_status text_check_utf8(str text, bool whole, size_t *valid, uint64_t line, error *e) {
    *valid = 0;
    while (*valid < text.length) {
        const int n = utf8_length((str){ text.data + *valid, text.length - *valid });
        if (n < 0 && !whole) break; /* the end cuts a character */
        if (n <= 0) {
            for (size_t i = 0; i < *valid; i++) line += text.data[i] == '\n';
            return fail(e, GM_BAD_FILE, "line %llu: expected UTF-8, found the byte 0x%02x", (unsigned long long)line,
                        (unsigned char)text.data[*valid]);
        }
        *valid += (size_t)n;
    }
    return GM_OK;
}

/* Bytes of as many tokens as fit; all of them if they fit. */
static gm_status text_fit(const dataset *d, str text, size_t most, size_t *out, error *e) {
    token_list ids = { 0 };
    size_t     bytes = 0;
    gm_status  status = tokenizer_encode_plain(d->options.words, text, &ids, e);
    if (!status && ids.failed) status = fail_memory(e, "the text", text.length);
    for (size_t i = 0; i < ids.count && i < most && !status; i++)
        bytes += tokenizer_text(d->options.words, ids.ids[i]).length;
    *out = ids.count <= most ? text.length : min_size(bytes, text.length - 1);
    token_list_free(&ids);
    return status;
}

/* The next piece of a text: as long as fits, after BOS. */
static gm_status text_next(dataset *d, data_place *out, error *e) {
    const size_t most = (d->options.max_tokens ? d->options.max_tokens : DATA_TEXT_TOKENS) - 1;
    data_cursor *c = &d->cursor;
    str          text;
    size_t       want = 8 * most + 64, valid, fits;
    for (;;) {
        TRY(data_reader_peek(&d->reader, c->at, want, &text, e));
        if (text.length && (text.data[0] == '\n' || text.data[0] == '\r')) { /* a piece begins with text */
            c->line += text.data[0] == '\n';
            c->at++;
            continue;
        }
        if (!text.length) return GM_DONE;
        text.length = min_size(text.length, want);
        const bool whole = c->at + text.length >= d->reader.length;
        TRY(text_check_utf8(text, whole, &valid, c->line, e));
        text.length = valid;
        TRY(text_fit(d, text, most, &fits, e));
        if (fits == text.length && !whole) {
            want *= 2;
            continue;
        }
        while (fits < text.length) { /* fewer bytes may be more tokens, where a word is cut */
            text.length = max_size(text_cut(text, max_size(fits, 1)), 1);
            TRY(text_fit(d, text, most, &fits, e));
        }
        break;
    }
    *out = (data_place){ .offset = c->at, .line = c->line, .length = text.length };
    for (size_t i = 0; i < text.length; i++) c->line += text.data[i] == '\n';
    c->at += text.length;
    return GM_OK;
}

/* ---- a record ---- */

static gm_status data_next(dataset *d, data_place *out, error *e) {
    if (d->container == DATA_PLAIN_TEXT) return text_next(d, out, e);
    return data_records_next(&d->reader, &d->cursor, d->container, out, e);
}

static uint64_t data_bytes_digest(str text) {
    uint8_t  digest[32];
    uint64_t out;
    sha256   s;
    sha256_start(&s);
    sha256_add(&s, text.data, text.length);
    sha256_end(&s, digest);
    memcpy(&out, digest, sizeof out);
    return out;
}

/* A file has one form: the first record's. */
static gm_status data_check_form(const dataset *d, const json *object, error *e) {
    data_form form;
    TRY(data_form_of(object, &form, e));
    if (!d->form_line || form == d->form) return GM_OK;
    return fail(e, GM_BAD_FILE, "expected %s as in line %llu, found %s", data_form_names[d->form],
                (unsigned long long)d->form_line, data_form_names[form]);
}

static gm_status data_make(const dataset *d, str text, uint64_t line, arena *a, data_form *form, data_sequences *out,
                           error *e) {
    data_record record = { .form = DATA_TEXT };
    json       *object = NULL;
    if (d->container == DATA_PLAIN_TEXT) {
        const char *copy = arena_copy(a, text);
        if (!copy) return fail_memory(e, "the text", text.length);
        record.text = (str){ copy, text.length };
        TRY(data_check_text(record.text, e));
    } else {
        TRY(data_record_parse(&d->cursor, d->container, text, line, a, &object, e));
        TRY(data_check_form(d, object, e));
        TRY(data_record_read(object, &d->options, a, &record, e));
    }
    *form = record.form;
    return data_sequences_make(&d->reader, &d->options, &record, a, out, e);
}

/* ---- scanning ---- */

/* Doubles an array that is full. */
static gm_status data_grow(void **items, size_t count, size_t *capacity, size_t size, error *e) {
    if (count < *capacity) return GM_OK;
    if (count >= UINT32_MAX / 2) return fail(e, GM_UNSUPPORTED, "the data have more than %zu examples", count);
    const size_t more = *capacity ? 2 * *capacity : 256;
    void        *grown = realloc(*items, more * size);
    if (!grown) return fail_memory(e, "the index of the data", more * size);
    *items = grown;
    *capacity = more;
    return GM_OK;
}

static void data_count(dataset *d, const data_sequence *q, size_t sequences) {
    data_stats *s = &d->stats;
    uint64_t    tokens = 0;
    size_t      bin = 0;
    for (size_t i = 0; i < sequences; i++) {
        tokens += q[i].count;
        s->counted += q[i].counted;
        s->media += q[i].media_count;
    }
    while (bin < DATA_BINS - 1 && tokens > (uint64_t)32 << bin) bin++;
    s->histogram[bin]++;
    s->examples++;
    s->tokens += tokens;
    if (s->examples == 1 || tokens < s->shortest) s->shortest = tokens;
    if (tokens > s->longest) s->longest = tokens;
    d->examples[d->example_count].tokens = (uint32_t)tokens;
}

static gm_status data_add(dataset *d, const data_place *place, uint64_t digest, data_sequences *s, error *e) {
    uint8_t      content[32];
    const size_t each = d->form == DATA_PAIRS ? 2 : 1;
    d->stats.truncated += s->truncated;
    d->stats.left_out += s->left_out;
    if (s->left_out && !d->stats.left_out_line) d->stats.left_out_line = place->line;
    if (!s->count) return GM_OK;
    TRY(data_grow((void **)&d->entries, d->entry_count, &d->entry_capacity, sizeof *d->entries, e));
    data_entry *entry = &d->entries[d->entry_count];
    *entry = (data_entry){
        .offset = place->offset, .line = place->line, .digest = digest, .length = (uint32_t)place->length
    };
    sha256_end(&s->content, content);
    memcpy(entry->content, content, sizeof entry->content);
    for (size_t i = 0; i < s->count; i += each) {
        TRY(data_grow((void **)&d->examples, d->example_count, &d->example_capacity, sizeof *d->examples, e));
        d->examples[d->example_count] = (data_index){ .entry = (uint32_t)d->entry_count, .part = (uint32_t)(i / each) };
        data_count(d, &s->items[i], each);
        d->example_count++;
    }
    d->entry_count++;
    return GM_OK;
}

static gm_status data_scan_record(dataset *d, const data_place *place, arena *a, error *e) {
    data_sequences made = { 0 };
    data_form      form;
    str            text;
    TRY(data_reader_peek(&d->reader, place->offset, place->length, &text, e));
    text.length = place->length;
    const uint64_t digest = data_bytes_digest(text);
    TRY(data_make(d, text, place->line, a, &form, &made, e));
    if (!d->form_line) {
        d->form = form;
        d->form_line = place->line;
    }
    return data_add(d, place, digest, &made, e);
}

static void data_note(dataset *d, uint64_t line, const char *why) {
    const bool names_line = !strncmp(why, "line ", 5), names_column = !strncmp(why, "column ", 7);
    if (d->problem_count == DATA_PROBLEMS) return;
    char *out = d->problems[d->problem_count++];
    if (names_line) snprintf(out, sizeof d->problems[0], "%s", why);
    else
        snprintf(out, sizeof d->problems[0], "line %llu%s%s", (unsigned long long)line, names_column ? ", " : ": ",
                 why);
}

static gm_status data_finish(dataset *d, error *e) {
    const char *name = d->reader.name;
    if (d->problem_count == 1) return fail(e, GM_BAD_FILE, "%s, %s", name, d->problems[0]);
    if (d->problem_count)
        return fail(e, GM_BAD_FILE, "%s has %s%zu bad lines; %s", name,
                    d->problem_count == DATA_PROBLEMS ? "at least " : "", d->problem_count, d->problems[0]);
    TRY(data_reader_check(&d->reader, e));
    if (!d->stats.records) return fail(e, GM_BAD_FILE, "%s has no examples", name);
    if (!d->example_count)
        return fail(e, GM_BAD_FILE, "%s: nothing that counts is within the first %zu tokens of any example", name,
                    d->options.max_tokens);
    TRY(dataset_split(d, e));
    d->scanned = true;
    return GM_OK;
}

gm_status dataset_scan(dataset *d, double deadline, error *e) {
    while (!d->scanned) {
        data_place place = { .line = d->cursor.line };
        arena      a = { 0 };
        error      inner = { 0 };
        gm_status  status = data_next(d, &place, &inner);
        const bool lost = status && status != GM_DONE; /* where the next record begins */
        if (!status) {
            d->stats.records++;
            status = data_scan_record(d, &place, &a, &inner);
        }
        arena_free(&a);
        if (status == GM_NO_MEMORY || status == GM_IO) return fail(e, status, "%s", inner.why);
        if (status && status != GM_DONE) data_note(d, place.line, inner.why);
        if (status == GM_DONE || lost || d->problem_count == DATA_PROBLEMS) return data_finish(d, e);
        if (clock_seconds() > deadline) return GM_AGAIN;
    }
    return GM_OK;
}

/* ---- what is known ---- */

void dataset_progress(const dataset *d, uint64_t *done, uint64_t *total) {
    *done = min_size(d->cursor.at, d->reader.length);
    *total = d->reader.length;
}

const char *dataset_problem(const dataset *d, size_t index) {
    return index < d->problem_count ? d->problems[index] : NULL;
}

const data_stats *dataset_stats(const dataset *d) { return &d->stats; }
data_container    dataset_container(const dataset *d) { return d->container; }
data_form         dataset_form(const dataset *d) { return d->form; }

const char *dataset_describe(const dataset *d) {
    static const char *const texts[][DATA_TEXT + 1] = {
#define DATA_WITH(container)                                                                                           \
    { container " with messages",                                                                                      \
      container " with prompt and completion",                                                                         \
      container " with instruction, input and output",                                                                 \
      container " with conversations",                                                                                 \
      container " with prompt, chosen and rejected",                                                                   \
      container " with text" }
        [DATA_JSONL] = DATA_WITH("JSONL"),
        [DATA_JSON_LIST] = DATA_WITH("JSON"),
        [DATA_CSV] = DATA_WITH("CSV"),
#undef DATA_WITH
    };
    return d->container == DATA_PLAIN_TEXT ? "plain text" : texts[d->container][d->form];
}

void dataset_digest(const dataset *d, uint8_t digest[32]) {
    const data_options *o = &d->options;
    const uint64_t      facts[] = { o->max_tokens, o->variant, o->seed, d->entry_count, d->example_count };
    sha256              s;
    sha256_start(&s);
    sha256_add(&s, facts, sizeof facts);
    sha256_add(&s, &o->eval_share, sizeof o->eval_share);
    for (size_t i = 0; i < d->entry_count; i++) sha256_add(&s, d->entries[i].content, sizeof d->entries[i].content);
    sha256_end(&s, digest);
}

size_t dataset_count(const dataset *d) { return d->example_count; }
size_t dataset_tokens(const dataset *d, size_t index) { return d->examples[index].tokens; }
bool   dataset_is_eval(const dataset *d, size_t index) { return d->entries[d->examples[index].entry].eval; }

/* ---- reading one again ---- */

gm_status dataset_example(dataset *d, size_t index, data_example *out, error *e) {
    const data_index *which = &d->examples[index];
    const data_entry *entry = &d->entries[which->entry];
    const size_t      each = d->form == DATA_PAIRS ? 2 : 1, first = which->part * each;
    data_sequences    made = { .first = first, .end = first + each };
    data_form         form;
    str               text;
    *out = (data_example){ .line = entry->line, .sequences = each };
    TRY(data_reader_check(&d->reader, e));
    TRY(data_reader_peek(&d->reader, entry->offset, entry->length, &text, e));
    if (text.length < entry->length) return data_changed(&d->reader, e);
    text.length = entry->length;
    if (data_bytes_digest(text) != entry->digest) return data_changed(&d->reader, e);
    const gm_status status = data_make(d, text, entry->line, &out->memory, &form, &made, e);
    size_t          tokens = 0;
    for (size_t i = first; i < first + each && i < made.count; i++) tokens += made.items[i].count;
    if (!status && first + each <= made.count && tokens == which->tokens) {
        memcpy(out->sequence, made.items + first, each * sizeof *made.items);
        return GM_OK;
    }
    data_example_free(out);
    return status ? status : data_changed(&d->reader, e); /* a picture beside it has */
}

void data_example_free(data_example *x) {
    arena_free(&x->memory);
    *x = (data_example){ 0 };
}
