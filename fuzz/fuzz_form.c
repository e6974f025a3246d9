/* Fuzzes the parser of forms in `gemmule serve`: the first line is the Content-Type, the rest the body. It refuses them with a reason, or
 * the fields lie within the body, in order. */

#include "fuzz.h"
#include "serve/multipart.h"
#include "serve/transcription_request.h"

#include <string.h>

static void fuzz_fields(str body, const char *content_type) {
    form  all;
    error e = { 0 };
    if (form_parse(body, content_type, &all, &e)) {
        REQUIRE(e.why[0]);
        return;
    }
    REQUIRE(is_form_type(content_type) && all.count <= FORM_MOST_FIELDS);
    const char *at = body.data;
    for (size_t i = 0; i < all.count; i++) {
        const form_field *f = &all.fields[i];
        REQUIRE(f->name.data >= at && f->name.data + f->name.length <= f->value.data);
        at = f->value.data + f->value.length;
        REQUIRE(at <= body.data + body.length);
    }
}

static void fuzz_transcription(buffer *body, const char *content_type) {
    transcription_request r;
    error                 e = { 0 };
    char                  param[TRANSCRIPTION_PARAM_SIZE];
    if (transcription_request_parse(body, content_type, &r, param, &e))
        REQUIRE(e.why[0] && strlen(param) < sizeof param);
    else REQUIRE(r.file.length && r.temperature >= 0 && r.temperature <= 1 && !param[0]);
    transcription_request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = size ? memchr(data, '\n', size) : NULL;
    const size_t   length = end ? (size_t)(end - data) : 0;
    char           type[200] = "";
    buffer         body = { 0 };
    if (!end || length >= sizeof type) return 0;
    memcpy(type, data, length);
    buffer_append(&body, end + 1, size - length - 1);
    fuzz_fields(buffer_view(&body), type);
    fuzz_transcription(&body, type);
    return 0;
}
