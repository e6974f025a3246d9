/* See transcription_request.h. */

#include "serve/transcription_request.h"

#include "base/decimal.h"
#include "base/utf8.h"
#include "serve/multipart.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    transcription_request *out;
    bool                   granular; /* timestamp_granularities was given */
    error                 *e;
} form_reader;

/* ---- fields ---- */

static gm_status form_copy_text(const form_reader *r, const form_field *f, const char **out) {
    if (!utf8_valid(f->value) || (f->value.length && memchr(f->value.data, 0, f->value.length)))
        return fail(r->e, GM_BAD_ARGUMENT, "%.*s must be UTF-8 text without NUL characters", STR_ARGS(f->name));
    *out = f->value.length ? arena_copy(&r->out->memory, f->value) : NULL;
    return *out || !f->value.length ? GM_OK : fail_memory(r->e, "the request", f->value.length);
}

static gm_status form_fail_value(const form_reader *r, const form_field *f, gm_status status, const char *expected) {
    const int shown = (int)min_size(f->value.length, 40);
    return fail(r->e, status, "%.*s must be %s, not \"%.*s\"", STR_ARGS(f->name), expected,
                utf8_valid((str){ f->value.data, (size_t)shown }) ? shown : 0, f->value.data);
}

static gm_status form_read_file(form_reader *r, const form_field *f) {
    if (!f->value.length) return fail(r->e, GM_BAD_ARGUMENT, "the file is empty: it has 0 bytes");
    r->out->file = f->value;
    return GM_OK;
}

static gm_status form_read_model(form_reader *r, const form_field *f) { return form_copy_text(r, f, &r->out->model); }

static gm_status form_read_prompt(form_reader *r, const form_field *f) {
    if (f->value.length > TRANSCRIPTION_MOST_PROMPT)
        return fail(r->e, GM_BAD_ARGUMENT, "prompt has %zu bytes; at most %d were expected", f->value.length,
                    TRANSCRIPTION_MOST_PROMPT);
    return form_copy_text(r, f, &r->out->prompt);
}

/* ISO 639, with or without a region: "de", "yue", "pt-BR". */
static gm_status form_read_language(form_reader *r, const form_field *f) {
    size_t letters = 0;
    while (letters < f->value.length && f->value.data[letters] >= 'a' && f->value.data[letters] <= 'z') letters++;
    const str region = { f->value.data + letters, f->value.length - letters };
    bool      good = (letters == 2 || letters == 3) && (!region.length || region.data[0] == '-');
    for (size_t i = 1; i < region.length; i++) {
        const char c = region.data[i];
        good &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    }
    if (f->value.length && (!good || region.length == 1 || region.length > 16))
        return form_fail_value(r, f, GM_BAD_ARGUMENT, "the ISO 639 code of a language, such as en");
    return form_copy_text(r, f, &r->out->language);
}

static gm_status form_read_format(form_reader *r, const form_field *f) {
    static const char *const names[] = { [TRANSCRIPTION_JSON] = "json",
                                         [TRANSCRIPTION_TEXT] = "text",
                                         [TRANSCRIPTION_SRT] = "srt",
                                         [TRANSCRIPTION_VTT] = "vtt",
                                         [TRANSCRIPTION_VERBOSE] = "verbose_json" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        r->out->format = (transcription_format)i;
        if (str_is(f->value, names[i])) return GM_OK;
    }
    return form_fail_value(r, f, GM_UNSUPPORTED, "json, text, srt, vtt or verbose_json");
}

static gm_status form_read_temperature(form_reader *r, const form_field *f) {
    double value = 0;
    if (!f->value.length || f->value.length > 40 || !decimal_parse(f->value, &value) || !(value >= 0 && value <= 1))
        return form_fail_value(r, f, GM_BAD_ARGUMENT, "a number from 0 to 1");
    r->out->temperature = (float)value;
    return GM_OK;
}

static gm_status form_read_stream(form_reader *r, const form_field *f) {
    r->out->stream = str_is(f->value, "true");
    if (r->out->stream || str_is(f->value, "false")) return GM_OK;
    return form_fail_value(r, f, GM_BAD_ARGUMENT, "true or false");
}

static gm_status form_read_granularity(form_reader *r, const form_field *f) {
    r->granular = true;
    if (str_is(f->value, "segment")) return GM_OK;
    return form_fail_value(r, f, GM_UNSUPPORTED, "segment (the model gives no times for words)");
}

/* We always cut long sound ourselves, where it is quiet. */
static gm_status form_read_chunking(form_reader *r, const form_field *f) {
    return str_is(f->value, "auto") ? GM_OK : form_fail_value(r, f, GM_UNSUPPORTED, "auto");
}

/* ---- the form ---- */

typedef gm_status (*form_field_reader)(form_reader *r, const form_field *f);

static const struct {
    const char       *name;
    form_field_reader read;
    bool              list; /* may come several times */
} form_readers[] = {
    { "file", form_read_file, false },
    { "model", form_read_model, false },
    { "prompt", form_read_prompt, false },
    { "language", form_read_language, false },
    { "response_format", form_read_format, false },
    { "temperature", form_read_temperature, false },
    { "stream", form_read_stream, false },
    { "timestamp_granularities[]", form_read_granularity, true },
    { "timestamp_granularities", form_read_granularity, true },
    { "chunking_strategy", form_read_chunking, false },
};

static gm_status form_read_one(form_reader *r, const form *all, size_t number) {
    const form_field *f = &all->fields[number];
    if (!utf8_valid(f->name)) return fail(r->e, GM_BAD_ARGUMENT, "the name of field %zu is not UTF-8", number + 1);
    for (size_t i = 0; i < COUNT_OF(form_readers); i++) {
        if (!str_is(f->name, form_readers[i].name)) continue;
        for (size_t k = 0; k < number && !form_readers[i].list; k++) {
            if (str_equal(all->fields[k].name, f->name))
                return fail(r->e, GM_BAD_ARGUMENT, "the form has the field '%s' twice", form_readers[i].name);
        }
        return form_readers[i].read(r, f);
    }
    return fail(r->e, GM_UNSUPPORTED, "this server does not support '%.*s'", (int)min_size(f->name.length, 60),
                f->name.data);
}

static gm_status form_read(form_reader *r, const form *all, char *param) {
    for (size_t i = 0; i < all->count; i++) {
        const str name = all->fields[i].name;
        snprintf(param, TRANSCRIPTION_PARAM_SIZE, "%.*s", (int)min_size(name.length, TRANSCRIPTION_PARAM_SIZE - 1),
                 name.data);
        TRY(form_read_one(r, all, i));
    }
    snprintf(param, TRANSCRIPTION_PARAM_SIZE, "file");
    if (!r->out->file.length) return fail(r->e, GM_BAD_ARGUMENT, "the form must have a field 'file', the sound");
    snprintf(param, TRANSCRIPTION_PARAM_SIZE, "timestamp_granularities");
    if (r->granular && r->out->format != TRANSCRIPTION_VERBOSE)
        return fail(r->e, GM_BAD_ARGUMENT, "timestamp_granularities needs a response_format of verbose_json");
    snprintf(param, TRANSCRIPTION_PARAM_SIZE, "stream");
    if (r->out->stream && r->out->format != TRANSCRIPTION_JSON && r->out->format != TRANSCRIPTION_TEXT)
        return fail(r->e, GM_UNSUPPORTED, "stream needs a response_format of json or text");
    param[0] = 0;
    return GM_OK;
}

gm_status transcription_request_parse(buffer *body, const char *content_type, transcription_request *out,
                                      char param[TRANSCRIPTION_PARAM_SIZE], error *e) {
    form        all;
    form_reader r = { .out = out, .e = e };
    *out = (transcription_request){ .body = *body };
    *body = (buffer){ 0 };
    param[0] = 0;
    buffer_text(&out->body, ""); /* there may have been no body */
    if (out->body.failed) return fail_memory(e, "the request", 1);
    TRY(form_parse(buffer_view(&out->body), content_type, &all, e));
    return form_read(&r, &all, param);
}

void transcription_request_free(transcription_request *r) {
    buffer_free(&r->body);
    arena_free(&r->memory);
    *r = (transcription_request){ 0 };
}
