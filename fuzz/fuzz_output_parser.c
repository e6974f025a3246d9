/* Fuzzes the output parser: a text must produce the same events whole and in pieces, and a call's arguments must always be a JSON
 * object. The first bytes choose the flags and where the text is cut. */

#include "fuzz.h"

#include "base/utf8.h"
#include "text/chat.h"

static const char tools_text[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
                                 "\"string\"},\"n\":{\"type\":\"number\"}}}}}]";

static void check_arguments(str text) {
    arena memory = { 0 };
    error e = { 0 };
    json *value = NULL;
    REQUIRE(!json_parse(text, &memory, &value, &e) && value->kind == JSON_OBJECT);
    arena_free(&memory);
}

/* Events as bytes; neighbours of the same kind count as one. */
static void fuzz_take_events(output_parser *p, buffer *out, int *last) {
    for (output_event event; output_parser_next(p, &event);) {
        if (event.kind == OUTPUT_CALL) check_arguments(event.arguments);
        if ((int)event.kind != *last || event.kind == OUTPUT_CALL) buffer_char(out, (char)event.kind);
        *last = (int)event.kind;
        buffer_str(out, event.kind == OUTPUT_CALL ? event.name : event.text);
        if (event.kind == OUTPUT_CALL) buffer_str(out, event.arguments);
    }
}

static void parse_in_pieces(const json *tools, str text, uint8_t flags, uint64_t cuts, buffer *out) {
    output_parser *p = NULL;
    error          e = { 0 };
    int            last = -1;
    REQUIRE(!output_parser_new(tools, flags & 1, flags & 2, &p, &e));
    for (size_t at = 0; at < text.length;) {
        size_t n = cuts ? 0 : text.length - at;
        if (cuts) {
            cuts = cuts * 6364136223846793005u + 1442695040888963407u;
            for (size_t characters = 1 + (cuts >> 60); characters && at + n < text.length; characters--) {
                int length = utf8_length((str){ text.data + at + n, text.length - at - n });
                n += length < 1 ? 1 : (size_t)length;
            }
        }
        REQUIRE(!output_parser_feed(p, (str){ text.data + at, n }, &e));
        fuzz_take_events(p, out, &last);
        at += n;
    }
    REQUIRE(!output_parser_end(p, &e));
    fuzz_take_events(p, out, &last);
    output_parser_free(p);
}

/* The parser requires whole characters, as the detokenizer produces them. */
static void make_valid(const uint8_t *data, size_t size, buffer *out) {
    for (size_t at = 0; at < size;) {
        int n = utf8_length((str){ (const char *)data + at, size - at });
        if (n > 0) buffer_append(out, data + at, (size_t)n);
        else buffer_text(out, "\xef\xbf\xbd");
        at += n > 0 ? (size_t)n : 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    arena  memory = { 0 };
    json  *tools = NULL;
    error  e = { 0 };
    buffer text = { 0 }, whole = { 0 }, cut = { 0 };
    REQUIRE(!json_parse(str_of(tools_text), &memory, &tools, &e));
    make_valid(data + 2, size - 2, &text);
    parse_in_pieces(tools, buffer_view(&text), data[0], 0, &whole);
    parse_in_pieces(tools, buffer_view(&text), data[0], 1 + data[1], &cut);
    REQUIRE(str_equal(buffer_view(&whole), buffer_view(&cut)));
    buffer_free(&text);
    buffer_free(&whole);
    buffer_free(&cut);
    arena_free(&memory);
    return 0;
}
