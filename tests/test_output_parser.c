/* The output parser: each case must give the same events whole, character by character and in random pieces. */

#include "base/clock.h"
#include "base/random.h"
#include "base/utf8.h"
#include "test.h"
#include "text/chat.h"

#define Q "<|\"|>"

/* Events as text: content in (), thinking in [], calls as NAME{…}, with ! behind them if repaired. Neighbours of the same
 * kind are one, since where content is cut depends on how it came. */
typedef struct {
    buffer      text;
    output_kind open;
    bool        any;
} record;

static void record_close_event(record *r) {
    if (r->any && r->open != OUTPUT_CALL) buffer_char(&r->text, r->open == OUTPUT_CONTENT ? ')' : ']');
    r->any = false;
}

static void record_take_events(output_parser *p, record *r) {
    for (output_event event; output_parser_next(p, &event);) {
        if (!r->any || r->open != event.kind) {
            record_close_event(r);
            if (event.kind != OUTPUT_CALL) buffer_char(&r->text, event.kind == OUTPUT_CONTENT ? '(' : '[');
        }
        r->any = true;
        r->open = event.kind;
        CHECK(event.kind == OUTPUT_CALL || event.text.length);
        buffer_str(&r->text, event.kind == OUTPUT_CALL ? event.name : event.text);
        if (event.kind == OUTPUT_CALL) buffer_str(&r->text, event.arguments);
        if (event.repaired) buffer_char(&r->text, '!');
    }
}

static uint32_t random_state;

static uint32_t random_below(uint32_t n) {
    uint32_t out[4];
    philox((uint32_t[4]){ random_state++, 0, 0, 0 }, (uint32_t[2]){ 3, 14 }, out);
    return out[0] % n;
}

typedef enum { WHOLE, CHARACTERS, RANDOM_CUTS } cutting;

static void parse(str text, const json *tools, bool think, bool starts_thinking, cutting cut, record *r) {
    output_parser *p = NULL;
    error          e = { 0 };
    CHECK(!output_parser_new(tools, think, starts_thinking, &p, &e));
    for (size_t at = 0, n; at < text.length; at += n) {
        size_t characters = cut == WHOLE ? SIZE_MAX : cut == CHARACTERS ? 1 : 1 + random_below(7);
        for (n = 0; characters-- && at + n < text.length;)
            n += (size_t)utf8_length((str){ text.data + at + n, text.length - at - n });
        CHECK(!output_parser_feed(p, (str){ text.data + at, n }, &e));
        record_take_events(p, r);
    }
    CHECK(!output_parser_end(p, &e));
    record_take_events(p, r);
    record_close_event(r);
    output_parser_free(p);
}

enum { THINK = 1, STARTS = 2 };

static const char tools_text[] =
    "[{\"function\":{\"name\":\"note\",\"parameters\":{\"properties\":{\"text\":{\"type\":\"string\"},\"n\":{\"type\":"
    "\"number\"},\"tag\":{\"type\":[\"null\",\"string\"]}}}}}]";

static const struct {
    const char *name;
    int         flags;
    const char *text;
    const char *events;
} cases[] = {
    /* content */
    { "nothing", 0, "", "" },
    { "content", 0, "Hello, world! 東京 🙂", "(Hello, world! 東京 🙂)" },
    { "white space around stays", 0, "  Hello \n\n", "(  Hello \n\n)" },
    { "only white space", 0, " \n\t", "( \n\t)" },
    { "almost a tag", 0, "a <|chan <|tool_cal> <<|channe|> <", "(a <|chan <|tool_cal> <<|channe|> <)" },
    { "a tag that does not come to its end", 0, "a \n<|tool_cal", "(a \n<|tool_cal)" },
    { "comparisons", 0, "if a < b && b <| c", "(if a < b && b <| c)" },

    /* thinking */
    { "thought and answer", THINK, "<|channel>thought\nLet me see.\n<channel|>Yes.", "[Let me see.](Yes.)" },
    { "white space around the thought", THINK, "Hm \n <|channel>thought\n  a\n b \n\n<channel|>\n\n Yes. ",
      "(Hm)[  a\n b](Yes. )" },
    { "not asked for", 0, "<|channel>thought\nsecret<channel|>\nYes.", "(Yes.)" },
    { "empty thought", THINK, "<|channel>thought\n<channel|>Yes.", "(Yes.)" },
    { "blank thought", THINK, "<|channel>thought\n \n <channel|>Yes.", "(Yes.)" },
    { "no name", THINK, "<|channel>other\nx<channel|>Yes.", "[other\nx](Yes.)" },
    { "nearly the name", THINK, "<|channel>thoughts\nx<channel|>Yes.", "[thoughts\nx](Yes.)" },
    { "not closed", THINK, "<|channel>thought\nStill thinking \n", "[Still thinking \n]" },
    { "cut off in the name", THINK, "<|channel>thought", "" },
    { "cut off in the tag", THINK, "<|channel>thought\nab<chan", "[ab<chan]" },
    { "two thoughts", THINK, "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d", "[a](b)[c](d)" },
    { "started by the prompt", THINK | STARTS, "a b <channel|> c", "[a b](c)" },
    { "started by the prompt, not asked for", STARTS, "a b <channel|> c", "(c)" },
    { "tags of other states inside a thought", THINK, "<|channel>thought\na<|tool_call>b<|channel>c<channel|>d",
      "[a<|tool_call>b<|channel>c](d)" },
    { "a stray end is swallowed", 0, "Yes.<channel|>", "(Yes.)" },
    { "an empty thought behind the answer", THINK, "Yes.\n<|channel>thought\n<channel|>", "(Yes.)" },
    { "wide white space", THINK, "a\u3000\u00a0<|channel>thought\nb\u2003<channel|>\u2028c", "(a)[b](c)" },

    /* calls */
    { "call", 0, "<|tool_call>call:f{a:1,b:" Q "x" Q "}<tool_call|>", "f{\"a\":1,\"b\":\"x\"}" },
    { "content before a call is trimmed", 0, "Sure. \n<|tool_call>call:f{}<tool_call|>", "(Sure.)f{}" },
    { "thought, call", THINK, "<|channel>thought\nhm<channel|><|tool_call>call:f{}<tool_call|><|tool_response>",
      "[hm]f{}" },
    { "two calls", 0, "<|tool_call>call:f{}<tool_call|>\n<|tool_call>call:g{x:true}<tool_call|>", "f{}g{\"x\":true}" },
    { "stray tags behind a call", 0,
      "<|tool_call>call:f{}<tool_call|> \n<tool_call|><tool_call|> <|tool_response>\n Done.", "f{}(Done.)" },
    { "content behind a call", 0, "<|tool_call>call:f{}<tool_call|><b>", "f{}(<b>)" },
    { "thought behind a call", THINK, "<|tool_call>call:f{}<tool_call|><|channel>thought\nx<channel|>y", "f{}[x](y)" },
    { "call cut off", 0, "<|tool_call>call:f{a:1}", "f{\"a\":1}" },
    { "call cut off in the tag", 0, "<|tool_call>call:f{a:1}<tool_ca", "f{\"a\":1}" },
    { "call cut off in the arguments", 0, "<|tool_call>call:f{a:" Q "b", "f{\"a\":\"b\"}!" },
    { "after a call, almost a stray tag", 0, "<|tool_call>call:f{}<tool_call|> <tool", "f{}(<tool)" },
    { "no call", 0, "a <|tool_call>hello<tool_call|> b", "(a<|tool_call>hello<tool_call|>b)" },
    { "no name", 0, "<|tool_call>call:{}<tool_call|>", "(<|tool_call>call:{}<tool_call|>)" },
    { "no call, cut off", 0, "<|tool_call>call:", "(<|tool_call>call:)" },
    { "beyond repair", 0, "<|tool_call>call:f{a:1}}<tool_call|>", "(<|tool_call>call:f{a:1}}<tool_call|>)" },
    { "white space in the call", 0, "<|tool_call>\n call:f { a : 1 , b:[ 1 , 2 ]\n}\n<tool_call|>",
      "f{\"a\":1,\"b\":[1,2]}" },

    /* arguments */
    { "all kinds of values", 0, "<|tool_call>call:f{a:null,b:true,c:-1.5e3,d:[],e:{},f:{g:[{h:" Q Q "}]}}<tool_call|>",
      "f{\"a\":null,\"b\":true,\"c\":-1.5e3,\"d\":[],\"e\":{},\"f\":{\"g\":[{\"h\":\"\"}]}}" },
    { "quotes, newlines, braces in strings", 0,
      "<|tool_call>call:f{a:" Q "say \"hi\"\n{x:1}, b: \\ <|" Q ",b:" Q "é東" Q "}<tool_call|>",
      "f{\"a\":\"say \\\"hi\\\"\\n{x:1}, b: \\\\ <|\",\"b\":\"é東\"}" },
    { "keys of any script", 0, "<|tool_call>call:f{größe:1, 名前:2,a_1:3,user-id:4}<tool_call|>",
      "f{\"größe\":1,\"名前\":2,\"a_1\":3,\"user-id\":4}" },
    { "keys in quotes", 0, "<|tool_call>call:f{" Q "a b" Q ":1,\"c,d:e\":2}<tool_call|>", "f{\"a b\":1,\"c,d:e\":2}" },
    { "plain JSON", 0, "<|tool_call>call:f{\"a\": \"x, y: \\\"z\\\"\", \"b\": [1, 2]}<tool_call|>",
      "f{\"a\":\"x, y: \\\"z\\\"\",\"b\":[1,2]}" },
    { "large integers survive", 0, "<|tool_call>call:f{n:12345678901234567890}<tool_call|>",
      "f{\"n\":12345678901234567890}" },
    { "newlines between", 0, "<|tool_call>call:f{\n  a: 1,\n  b: " Q "x" Q "\n}<tool_call|>",
      "f{\"a\":1,\"b\":\"x\"}" },

    /* repairs */
    { "single quotes", 0, "<|tool_call>call:f{a:'it\\'s, {ok}',b:['x','y z'],c:1}<tool_call|>",
      "f{\"a\":\"it's, {ok}\",\"b\":[\"x\",\"y z\"],\"c\":1}!" },
    { "an apostrophe inside single quotes", 0, "<|tool_call>call:f{a:'it's so'}<tool_call|>", "f{\"a\":\"it's so\"}!" },
    { "string not closed", 0, "<|tool_call>call:f{a:" Q "hello}<tool_call|>", "f{\"a\":\"hello\"}!" },
    { "string not closed in a list", 0, "<|tool_call>call:f{a:[" Q "hello]}<tool_call|>", "f{\"a\":[\"hello\"]}!" },
    { "second string not closed", 0, "<|tool_call>call:f{a:" Q "x" Q ",b:" Q "y}<tool_call|>",
      "f{\"a\":\"x\",\"b\":\"y\"}!" },
    { "brace missing", 0, "<|tool_call>call:f{a:" Q "x" Q "<tool_call|>", "f{\"a\":\"x\"}!" },
    { "brackets missing", 0, "<|tool_call>call:f{a:{b:[1,2<tool_call|>", "f{\"a\":{\"b\":[1,2]}}!" },
    { "string and brace missing", 0, "<|tool_call>call:f{a:" Q "x<tool_call|>", "f{\"a\":\"x\"}!" },
    { "raw text", 0, "<|tool_call>call:note{text:Buy milk, eggs: 2, 5\" nails,n:3,tag:urgent stuff}<tool_call|>",
      "note{\"text\":\"Buy milk, eggs: 2, 5\\\" nails\",\"n\":3,\"tag\":\"urgent stuff\"}!" },
    { "raw text with braces", 0, "<|tool_call>call:note{n:3, text: if (x) { y } }<tool_call|>",
      "note{\"n\":3,\"text\":\"if (x) { y }\"}!" },
    { "raw text, brace missing", 0, "<|tool_call>call:note{text:Buy milk<tool_call|>", "note{\"text\":\"Buy milk\"}!" },
    { "null stays null beside raw text", 0, "<|tool_call>call:note{tag:null,text:a b}<tool_call|>",
      "note{\"tag\":null,\"text\":\"a b\"}!" },
    { "no text at all", 0, "<|tool_call>call:note{text:,n:1}<tool_call|>", "note{\"text\":\"\",\"n\":1}!" },
    { "raw text of an unknown function", 0, "<|tool_call>call:other{text:a b}<tool_call|>",
      "(<|tool_call>call:other{text:a b}<tool_call|>)" },
};

static void test_parser_cases(const json *tools) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TEST("output: %s", cases[i].name);
        for (int round = 0; round < 12; round++) {
            record  r = { 0 };
            cutting cut = round == 0 ? WHOLE : round == 1 ? CHARACTERS : RANDOM_CUTS;
            buffer_text(&r.text, "");
            parse(str_of(cases[i].text), tools, cases[i].flags & THINK, cases[i].flags & STARTS, cut, &r);
            CHECK_MESSAGE(str_is(buffer_view(&r.text), cases[i].events), "cut %d\n    got  %s\n    want %s", cut,
                          r.text.data, cases[i].events);
            buffer_free(&r.text);
        }
    }
}

/* Random sequences of what matters to the parser. */
static void test_parser_random(const json *tools) {
    static const char *const bits[] = { "<|channel>",
                                        "<channel|>",
                                        "<|tool_call>",
                                        "<tool_call|>",
                                        "<|tool_response>",
                                        "thought\n",
                                        "call:f{",
                                        "call:note{text:",
                                        "}",
                                        Q,
                                        "a:",
                                        "1",
                                        ",",
                                        " ",
                                        "\n",
                                        "x",
                                        "<",
                                        "|",
                                        "é",
                                        "\u3000",
                                        "'",
                                        "\"",
                                        "[",
                                        "]",
                                        "\\" };
    TEST("random outputs do not depend on how they are cut");
    for (int round = 0; round < 3000 && !test_bad; round++) {
        buffer text = { 0 };
        record whole = { 0 };
        bool   think = random_below(2), starts = random_below(4) == 0;
        for (uint32_t n = 1 + random_below(30); n; n--) buffer_text(&text, bits[random_below(COUNT_OF(bits))]);
        parse(buffer_view(&text), tools, think, starts, WHOLE, &whole);
        for (int cut = CHARACTERS; cut <= RANDOM_CUTS; cut++) {
            record r = { 0 };
            parse(buffer_view(&text), tools, think, starts, (cutting)cut, &r);
            CHECK_MESSAGE(str_equal(buffer_view(&r.text), buffer_view(&whole.text)), "%s\n    whole %s\n    cut   %s",
                          text.data, whole.text.data, r.text.data);
            buffer_free(&r.text);
        }
        buffer_free(&text);
        buffer_free(&whole.text);
    }
}

/* Text must come out at once, unless it may be part of a tag or be trimmed. */
static void test_promptness(void) {
    static const struct {
        const char *fed, *out;
    } steps[] = { { "Hel", "Hel" }, { "lo ", "lo" },      { "wor<", " wor" }, { "ld", "<ld" },
                  { "\n<|to", "" }, { "p>", "\n<|top>" }, { " ", "" },        { "!", " !" } };
    output_parser *p = NULL;
    error          e = { 0 };
    TEST("text is held back only as long as it must");
    CHECK(!output_parser_new(NULL, false, false, &p, &e));
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        buffer       got = { 0 };
        output_event event;
        CHECK(!output_parser_feed(p, str_of(steps[i].fed), &e));
        while (output_parser_next(p, &event)) buffer_str(&got, event.text);
        CHECK_MESSAGE(str_is(buffer_view(&got), steps[i].out), "step %zu gave \"%.*s\"", i,
                      STR_ARGS(buffer_view(&got)));
        buffer_free(&got);
    }
    output_parser_free(p);
}

/* A megabyte byte by byte: with rescans this would take minutes. */
static void test_long(const json *tools) {
    static const struct {
        const char *name, *before, *unit, *after;
    } longs[] = {
        { "text", "", "word ", "" },
        { "white space", "a", " ", "b" },
        { "brackets", "", "<", "" },
        { "unfinished tags", "", "<|tool_", "" },
        { "a thought", "<|channel>thought\n", "x \n", "<channel|>y" },
        { "a call", "<|tool_call>call:f{a:" Q, "x\n ", Q "}<tool_call|>" },
        { "an open call", "<|tool_call>call:f{a:", "[", "" },
        { "a call of quotes", "<|tool_call>call:f{a:", "'", "<tool_call|>" },
        { "a call of raw text", "<|tool_call>call:note{text:", "a, b: '\"", "<tool_call|>" },
        { "calls", "", "<|tool_call>call:f{}<tool_call|>", "" },
    };
    for (size_t i = 0; i < COUNT_OF(longs); i++) {
        buffer text = { 0 };
        record r = { 0 };
        TEST("1 MB of %s", longs[i].name);
        buffer_text(&text, longs[i].before);
        while (text.length < 1000000) buffer_text(&text, longs[i].unit);
        buffer_text(&text, longs[i].after);
        double start = clock_seconds();
        parse(buffer_view(&text), tools, true, false, CHARACTERS, &r);
        printf("1 MB of %s, character by character: %.0f ms\n", longs[i].name, (clock_seconds() - start) * 1e3);
        CHECK(r.text.length > text.length / 16);
        CHECK(clock_seconds() - start < 300); /* not with the square of the length */
        buffer_free(&text);
        buffer_free(&r.text);
    }
}

int main(void) {
    arena memory = { 0 };
    json *tools = NULL;
    error e = { 0 };
    TEST("the tools parse");
    CHECK_MESSAGE(!json_parse(str_of(tools_text), &memory, &tools, &e), "%s", e.why);
    test_parser_cases(tools);
    test_parser_random(tools);
    test_promptness();
    test_long(tools);
    arena_free(&memory);
    return test_end();
}
