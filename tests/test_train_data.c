/* Data to learn from: forms, what is refused, what the model sees and what counts, statistics, the split, epochs and runs, large files and
 * files that change. */

#include "train_data.h"

/* All examples, each after "|", the second of a pair after "/". */
static buffer preview_all(dataset *d) {
    buffer out = { 0 };
    for (size_t i = 0; d && i < dataset_count(d); i++) {
        data_example x;
        error        e = { 0 };
        CHECK_MESSAGE(!dataset_example(d, i, &x, &e), "%s", e.why);
        for (size_t k = 0; k < x.sequences; k++) {
            buffer_text(&out, k ? "/" : "|");
            data_preview(d->options.words, &x.sequence[k], "{", "}", &out);
            CHECK(x.sequence[k].weights[0] == 0);
        }
        data_example_free(&x);
    }
    buffer_text(&out, "");
    return out;
}

/* ---- forms ---- */

#define U "<|turn>user\n"
#define M "<|turn>model\n"
#define END "<turn|>\n"
#define Q "<|\"|>"
#define ADDED                                                                                                          \
    "<|tool_call>call:add{a:1,b:2}<tool_call|><|tool_response>}response:add{value:" Q "3" Q "}<tool_response|>"

static void test_forms(void) {
    static const struct {
        const char  *name, *text, *form, *sees;
        chat_variant variant;
    } cases[] = {
        { "a.jsonl", "{'messages':[{'role':'user','content':'Hi'},{'role':'assistant','content':' Yes. '}]}\n",
          "JSONL with messages", "|<bos>" U "Hi" END M "{Yes.<turn|>}", 0 },
        { "all answers count",
          "{'messages':[{'role':'system','content':'S'},{'role':'user','content':'a'},"
          "{'role':'assistant','content':'b'},{'role':'user','content':'c'},"
          "{'role':'assistant','content':'d'},{'role':'user','content':'e'}]}",
          "JSONL with messages", "|<bos><|turn>system\nS" END U "a" END M "{b<turn|>}\n" U "c" END M "{d<turn|>}", 0 },
        { "a weight of 0",
          "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'b','weight':0},"
          "{'role':'user','content':'c'},{'role':'assistant','content':'d','weight':1}]}",
          "JSONL with messages", "|<bos>" U "a" END M "b" END U "c" END M "{d<turn|>}", 0 },
        { "large: the empty thought is in the prompt only",
          "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'b'},"
          "{'role':'user','content':'c'},{'role':'assistant','content':'d'}]}",
          "JSONL with messages",
          "|<bos>" U "a" END M "<|channel>thought\n<channel|>{b<turn|>}|<bos>" U "a" END M "b" END U "c" END M
          "<|channel>thought\n<channel|>{d<turn|>}",
          CHAT_LARGE },
        { "thinking",
          "{'messages':[{'role':'user','content':'a'},{'role':'assistant','thinking':'T','content':'b'},"
          "{'role':'user','content':'c'},{'role':'assistant','content':'d','reasoning_content':'V'}]}",
          "JSONL with messages",
          "|<bos><|turn>system\n<|think|>\n" END U "a" END M "{<|channel>thought\nT\n<channel|>b<turn|>}"
          "|<bos><|turn>system\n<|think|>\n" END U "a" END M "b" END U "c" END M
          "{<|channel>thought\nV\n<channel|>d<turn|>}",
          0 },
        { "calls",
          "{'messages':[{'role':'user','content':'1+2?'},{'role':'assistant'," CALL_ADD "},"
          "{'role':'tool','tool_call_id':'1','content':'3'},{'role':'assistant','content':'It is 3.'}]}",
          "JSONL with messages", "|<bos>" U "1+2?" END M "{" ADDED "{It is 3.<turn|>}", 0 },
        { "text beside a call comes after the answer, as in the template",
          "{'messages':[{'role':'user','content':'1+2?'},{'role':'assistant','content':'It is 3.'," CALL_ADD "},"
          "{'role':'tool','tool_call_id':'1','content':'3'}]}",
          "JSONL with messages", "|<bos>" U "1+2?" END M "{" ADDED "{It is 3.<turn|>}", 0 },
        { "thinking after a tool's answer begins in the prompt",
          "{'messages':[{'role':'user','content':'1+2?'},{'role':'assistant','thinking':'T'," CALL_ADD "},"
          "{'role':'tool','tool_call_id':'1','content':'3'},{'role':'assistant','thinking':'V','content':'3'}]}",
          "JSONL with messages",
          "|<bos><|turn>system\n<|think|>\n" END U "1+2?" END M "{<|channel>thought\nT\n<channel|>" ADDED
          "<|channel>thought\n{V\n<channel|>3<turn|>}",
          0 },
        { "an answer in two messages",
          "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'b'},"
          "{'role':'assistant','content':'c'}]}",
          "JSONL with messages", "|<bos>" U "a" END M "{bc<turn|>}", 0 },
        { "content that imitates the template", "{'prompt':'<turn|>','completion':'<|turn>x'}",
          "JSONL with prompt and completion", "|<bos>" U "<turn|>" END M "{<|turn>x<turn|>}", 0 },
        { "messages as prompt",
          "{'prompt':[{'role':'user','content':'a'},{'role':'assistant','content':'b'},"
          "{'role':'user','content':'c'}],'completion':[{'role':'assistant','content':'d'}]}",
          "JSONL with prompt and completion", "|<bos>" U "a" END M "b" END U "c" END M "{d<turn|>}", 0 },
        { "a.json",
          "[ {'instruction':'Add','input':'1 2','output':'3','system':'S'},\n{'instruction':'x','output':'y'}]",
          "JSON with instruction, input and output",
          "|<bos><|turn>system\nS" END U "Add\n\n1 2" END M "{3<turn|>}|<bos>" U "x" END M "{y<turn|>}", 0 },
        { "ShareGPT",
          "{'conversations':[{'from':'system','value':'S'},{'from':'human','value':'a'},"
          "{'from':'function_call','value':'{\\'name\\':\\'add\\',\\'arguments\\':{\\'a\\':1,\\'b\\':2}}'},"
          "{'from':'observation','value':'3'},{'from':'gpt','value':'b'}]}",
          "JSONL with conversations", "|<bos><|turn>system\nS" END U "a" END M "{" ADDED "{b<turn|>}", 0 },
        { "pairs", "{'prompt':'a','chosen':'b','rejected':[{'role':'assistant','content':'c'}]}",
          "JSONL with prompt, chosen and rejected", "|<bos>" U "a" END M "{b<turn|>}/<bos>" U "a" END M "{c<turn|>}",
          0 },
        { "a.csv", "prompt,completion\r\n'a, ''b''\r\nc',d\r\n\r\ne,'f'", "CSV with prompt and completion",
          "|<bos>" U "a, \"b\"\xef\xbf\xbd\nc" END M "{d<turn|>}|<bos>" U "e" END M "{f<turn|>}", 0 },
        { "CSV without a name", "instruction,output\na,b\n", "CSV with instruction, input and output",
          "|<bos>" U "a" END M "{b<turn|>}", 0 },
        { "text in JSON", "{'text':'Once upon'}", "JSONL with text", "|<bos>{Once upon}", 0 },
        { "a.txt", "\xef\xbb\xbf\n{'text'} is text here.\n", "plain text", "|<bos>{{\"text\"} is text here.\n}", 0 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        data_options o = plain_options();
        buffer       text = quoted(cases[i].text);
        TEST("%s", cases[i].name);
        o.variant = cases[i].variant;
        dataset *d = scan_text(&text, cases[i].name, &o);
        buffer   seen = preview_all(d);
        CHECK_MESSAGE(seen.data && !strcmp(seen.data, cases[i].sees), "\nsees %s\nwant %s", seen.data, cases[i].sees);
        if (d) CHECK_MESSAGE(!strcmp(dataset_describe(d), cases[i].form), "%s", dataset_describe(d));
        dataset_free(d);
        buffer_free(&seen);
        buffer_free(&text);
    }
}

/* ---- refusals ---- */

#define FINE "{'prompt':'a','completion':'b'}\n"

static void test_data_refusals(void) {
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        { "empty.jsonl", "", "empty.jsonl is empty: expected examples" },
        { "blank", " \n\n", "is empty" },
        { "utf16", "\xff\xfe{", "expected UTF-8, found UTF-16" },
        { "zip", "PK\3\4", "found a compressed file" },
        { "broken JSON", FINE "\n{'prompt':'a',}\n", "line 3, column 15: expected a key" },
        { "broken UTF-8", FINE "{'prompt':'\xff'}", "line 2, column 12" },
        { "not an object", "[1]", "line 1: expected a JSON object, found a number" },
        { "a line that is a list", FINE "[1]\n", "line 2: expected a JSON object, found a list" },
        { "a list without end", "[{'text':'a'},\n{'text':'b'}", "line 2: the list does not end" },
        { "a list without commas", "[{'text':'a'}\n{'text':'b'}]", "line 2: expected a comma or the end of the list" },
        { "something after a list", "[{'text':'a'}]\nx", "line 2: expected nothing after the list" },
        { "an item over several lines", "[{'text':\n\n!}]", "line 3, column 1" },
        { "no known fields", "{'question':'a','answer':'b'}",
          "line 1: expected messages, prompt and completion, "
          "instruction and output, conversations, prompt, chosen "
          "and rejected, or text; found question, answer" },
        { "a prompt alone", "{'prompt':'a'}", "beside \"prompt\"; found prompt" },
        { "two forms", "{'messages':[],'text':'a'}", "\"messages\" and \"text\" contradict each other" },
        { "a prompt too many", "{'messages':[],'prompt':'a'}", "\"messages\" and \"prompt\" contradict" },
        { "mixed", FINE "\n{'text':'a'}", "line 3: expected prompt and completion as in line 1, found text" },
        { "empty completion", "{'prompt':'a','completion':' '}", "line 1: \"completion\" is empty" },
        { "number as prompt", "{'prompt':1,'completion':'b'}",
          "must be a string or a list of messages, found a number" },
        { "no output", "{'instruction':'a'}", "\"output\" must be a string, found nothing" },
        { "no rejected", "{'prompt':'a','chosen':'b'}",
          "\"rejected\" must be a string or a list of messages, found nothing" },
        { "chosen by the user", "{'prompt':'a','chosen':[{'role':'user','content':'b'}],'rejected':'c'}",
          "\"chosen\" must begin with an assistant's message" },
        { "unknown role", "{'messages':[{'role':'bot','content':'a'}]}", "messages[0].role must be system, developer" },
        { "unknown role of chosen", "{'prompt':'a','chosen':[{'role':'bot','content':'a'}],'rejected':'c'}",
          "chosen[0].role must be system, developer" },
        { "unknown speaker", "{'conversations':[{'from':'alice','value':'a'}]}",
          "conversations[0].from must be human, gpt, system, function_call or observation, found \"alice\"" },
        { "a call that is none", "{'conversations':[{'from':'function_call','value':'add'}]}",
          "conversations[0].value of a function_call must be" },
        { "no answer", "{'messages':[{'role':'user','content':'a'}]}", "expected an assistant's message that counts" },
        { "no answer counts", "{'messages':[{'role':'assistant','content':'a','weight':0}]}",
          "that counts, found none" },
        { "half a weight", "{'messages':[{'role':'assistant','content':'a','weight':0.5}]}",
          "messages[0].weight must be 0 or 1, found 0.5" },
        { "a user's weight", "{'messages':[{'role':'user','content':'a','weight':1}]}",
          "only an assistant's messages" },
        { "two weights of one answer",
          "{'messages':[{'role':'assistant','content':'a','weight':0},"
          "{'role':'assistant','content':'b'}]}",
          "messages 1 and 2 are one answer" },
        { "empty message", "{'messages':[{'role':'user','content':' '},{'role':'assistant','content':'b'}]}",
          "message 1 is empty" },
        { "nothing but a thought as text",
          "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':"
          "'<|channel>thought\\nT<channel|>'}]}",
          "an answer is empty without" },
        { "a tool that was not called",
          "{'messages':[{'role':'tool','content':'a'},{'role':'assistant','content':'b'}]}",
          "message 1 is a tool's answer, but no call" },
        { "a call without an answer", "{'messages':[{'role':'assistant'," CALL_ADD "},{'role':'user','content':'b'}]}",
          "message 1 calls a tool, but message 2 is not its answer" },
        { "thinking that is off", "{'think':false,'messages':[{'role':'assistant','content':'a','thinking':'b'}]}",
          "message 1 has thinking, but \"think\" is false" },
        { "rendered already", "{'text':'<bos><|turn>user\\nHi'}", "the text has the token <|turn> in it" },
        { "a video", "{'messages':[{'role':'user','content':[{'type':'video'}]},{'role':'assistant','content':'b'}]}",
          "message 1 has a video" },
        { "a picture that answers", "{'messages':[{'role':'assistant','content':[{'type':'image','image':'a.png'}]}]}",
          "message 1 may contain only text, found a picture" },
        { "short.csv", "prompt,completion\na,b\nc\n", "line 3: expected 2 fields as in the header, found 1" },
        { "open.csv", "prompt,completion\na,b\nc,'d\n", "line 3: a quoted field has no closing quotation mark" },
        { "stray.csv", "prompt,completion\na,b'\n", "line 2: a field with a quotation mark must be quoted" },
        { "after.csv", "prompt,completion\na,'b'c\n", "line 2: expected a comma after a quoted field, found 'c'" },
        { "twice.csv", "text,text\na,b\n", "line 1: the header names the column \"text\" twice" },
        { "bytes.csv", "prompt,completion\na,\xc3\n", "line 2: expected UTF-8, found the byte 0xc3" },
        { "header.csv", "prompt,completion\n", "has no examples" },
        { "bytes.txt", "a\nb\n\xfe\n", "line 3: expected UTF-8, found the byte 0xfe" },
        { "two bad lines", FINE "1\n2\n", "has 2 bad lines; line 2: expected" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const data_options o = plain_options();
        buffer             text = quoted(cases[i].text);
        const data_source  from = { .bytes = buffer_view(&text), .name = cases[i].name };
        dataset           *d = NULL;
        TEST("refused: %s", cases[i].name);
        CHECK(scan(&from, &o, &d));
        CHECK_MESSAGE(strstr(why, cases[i].says), "\nsays %s\nwant %s", why, cases[i].says);
        dataset_free(d);
        buffer_free(&text);
    }
}

/* ---- statistics, truncation, duplicates, the split ---- */

static buffer numbered(size_t count, size_t distinct) {
    buffer text = { 0 };
    for (size_t i = 0; i < count; i++)
        buffer_printf(&text, "{\"prompt\":\"Say %zu\",\"completion\":\"%0*zu\"}\n", i % distinct,
                      (int)(1 + i % distinct % 40), i % distinct);
    return text;
}

static void test_statistics(void) {
    data_options o = plain_options();
    buffer text = quoted("{'prompt':'a','completion':'b'}\n{'prompt':'a','completion':'c d e f g h i j k l m n'}\n"
                         "{'prompt':'a','completion':'b'}\n{'prompt':'a b c d e f g h i j k l m','completion':'b'}\n");
    TEST("statistics");
    dataset          *d = scan_text(&text, "s.jsonl", &o);
    const data_stats *s = dataset_stats(d);
    uint64_t          tokens = 0, counted = 0;
    CHECK(s->records == 4 && s->examples == 4 && !s->truncated && !s->left_out);
    CHECK(s->duplicates == 1 && s->duplicate_line == 3 && s->duplicate_of == 1);
    for (size_t i = 0; i < dataset_count(d); i++) {
        data_example x;
        error        e = { 0 };
        CHECK(!dataset_example(d, i, &x, &e) && x.line == i + 1 && x.sequence[0].count == dataset_tokens(d, i));
        tokens += x.sequence[0].count;
        counted += x.sequence[0].counted;
        data_example_free(&x);
    }
    CHECK(tokens == s->tokens && counted == s->counted);
    CHECK(s->shortest == dataset_tokens(d, 0) && s->longest == dataset_tokens(d, 3));
    CHECK(s->histogram[0] + s->histogram[1] == 4);
    const size_t shortest = (size_t)s->shortest;
    dataset_free(d);

    TEST("truncation: what is cut, and what is left out");
    o.max_tokens = shortest;
    d = scan_text(&text, "s.jsonl", &o);
    s = dataset_stats(d);
    CHECK(s->records == 4 && s->examples == 3 && s->truncated == 1 && s->left_out == 1 && s->left_out_line == 4);
    CHECK(s->longest == shortest);
    buffer seen = preview_all(d);
    CHECK_MESSAGE(strstr(seen.data, "{c d}|"), "%s", seen.data);
    buffer_free(&seen);
    dataset_free(d);

    TEST("nothing is left");
    o.max_tokens = 8;
    const data_source from = { .bytes = buffer_view(&text), .name = "s.jsonl" };
    CHECK(scan(&from, &o, &d) && strstr(why, "nothing that counts is within the first 8 tokens"));
    dataset_free(d);
    buffer_free(&text);
}

static void test_data_split(void) {
    static const struct {
        size_t count, distinct, want;
        double share;
    } cases[] = { { 100, 100, 10, 0.1 }, { 100, 25, 8, 0.1 }, { 5, 5, 1, 0.01 }, { 6, 2, 3, 0.1 }, { 4, 1, 0, 0.5 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        data_options o = plain_options();
        buffer       text = numbered(cases[i].count, cases[i].distinct);
        bool         eval[100];
        size_t       n = 0, moved = 0;
        TEST("evaluation: %g of %zu examples, %zu of them distinct", cases[i].share, cases[i].count, cases[i].distinct);
        o.eval_share = cases[i].share;
        for (uint64_t seed = 0; seed < 2; seed++) {
            o.seed = seed;
            dataset *d = scan_text(&text, "s.jsonl", &o);
            for (size_t k = 0; k < cases[i].count; k++) {
                const bool is = dataset_is_eval(d, k);
                if (seed) moved += is != eval[k];
                else n += is;
                if (k >= cases[i].distinct) CHECK(is == dataset_is_eval(d, k - cases[i].distinct));
                eval[k] = is;
            }
            dataset_free(d);
        }
        CHECK_MESSAGE(n == cases[i].want, "%zu", n);
        if (cases[i].distinct > 10) CHECK(moved);
        buffer_free(&text);
    }
}

/* ---- epochs and runs ---- */

static void check_run_spans(dataset *d, const data_epoch *p, size_t run, size_t most, bool *seen) {
    data_run r;
    error    e = { 0 };
    size_t   at = 0, counted = 0;
    if (dataset_run(d, p, run, &r, &e)) {
        CHECK_MESSAGE(false, "%s", e.why);
        return;
    }
    CHECK(r.count <= most && r.span_count);
    for (size_t i = 0; i < r.span_count; i++) {
        data_example x;
        CHECK(r.spans[i].first == at && !seen[r.spans[i].example]);
        CHECK(!dataset_example(d, r.spans[i].example, &x, &e) && x.sequence[0].count == r.spans[i].count);
        CHECK(!memcmp(r.ids + at, x.sequence[0].ids, r.spans[i].count * sizeof *r.ids));
        CHECK(!memcmp(r.weights + at, x.sequence[0].weights, r.spans[i].count * sizeof *r.weights));
        seen[r.spans[i].example] = true;
        at += r.spans[i].count;
        counted += x.sequence[0].counted;
        data_example_free(&x);
    }
    CHECK(at == r.count && counted == r.counted);
    data_run_free(&r);
}

static bool same_order(const data_epoch *a, const data_epoch *b) {
    return a->count == b->count && a->run_count == b->run_count &&
           !memcmp(a->examples, b->examples, a->count * sizeof *a->examples) &&
           !memcmp(a->runs, b->runs, (a->run_count + 1) * sizeof *a->runs);
}

static void test_epochs(void) {
    enum { EXAMPLES = 700, MOST = 128 };
    data_options o = plain_options();
    buffer       text = numbered(EXAMPLES, EXAMPLES);
    data_epoch   p, again, next, other, eval;
    error        e = { 0 };
    bool         seen[EXAMPLES] = { 0 };
    TEST("an epoch has every example once, in full runs");
    o.eval_share = 0.1;
    dataset *d = scan_text(&text, "e.jsonl", &o);
    CHECK(!dataset_epoch(d, false, 3, 0, MOST, &p, &e) && !dataset_epoch(d, true, 3, 0, MOST, &eval, &e));
    CHECK(p.count == 630 && eval.count == 70);
    for (size_t i = 0; i < p.run_count; i++) check_run_spans(d, &p, i, MOST, seen);
    for (size_t i = 0; i < eval.run_count; i++) check_run_spans(d, &eval, i, MOST, seen);
    for (size_t i = 0; i < EXAMPLES; i++) CHECK(seen[i]);
    size_t tokens = 0;
    for (size_t i = 0; i < p.count; i++) tokens += dataset_tokens(d, p.examples[i]);
    CHECK_MESSAGE(tokens > 0.9 * MOST * (double)p.run_count, "%zu tokens in %zu runs", tokens, p.run_count);

    TEST("the order depends on seed and epoch, and on nothing else");
    CHECK(!dataset_epoch(d, false, 3, 0, MOST, &again, &e) && same_order(&p, &again));
    CHECK(!dataset_epoch(d, false, 3, 1, MOST, &next, &e) && !same_order(&p, &next));
    CHECK(!dataset_epoch(d, false, 4, 0, MOST, &other, &e) && !same_order(&p, &other) && !same_order(&next, &other));
    data_epoch_free(&again);
    CHECK(!dataset_epoch(d, false, 3, 0, 0, &again, &e) && again.run_count == again.count);
    CHECK(dataset_epoch(d, false, 3, 0, 20, &(data_epoch){ 0 }, &e) &&
          strstr(e.why, "a run of 20 tokens is too short"));
    data_epoch *all[] = { &p, &again, &next, &other, &eval };
    for (size_t i = 0; i < COUNT_OF(all); i++) data_epoch_free(all[i]);
    dataset_free(d);
    buffer_free(&text);

    TEST("a pair stays together");
    text = quoted("{'prompt':'a','chosen':'b','rejected':'c d'}\n{'prompt':'e','chosen':'f','rejected':'g'}\n");
    o = plain_options();
    d = scan_text(&text, "p.jsonl", &o);
    data_run r;
    CHECK(!dataset_epoch(d, false, 0, 0, 1000, &p, &e) && p.run_count == 1 && !dataset_run(d, &p, 0, &r, &e));
    CHECK(r.span_count == 4 && !r.spans[0].rejected && r.spans[1].rejected && r.spans[0].example == r.spans[1].example);
    data_run_free(&r);
    data_epoch_free(&p);
    dataset_free(d);
    buffer_free(&text);
}

/* ---- files ---- */

static void test_large_file(void) {
    data_options      o = plain_options();
    const char       *path = in_folder("large.jsonl");
    const data_source from = { .path = path };
    buffer            text = { 0 };
    dataset          *d = NULL, *whole;
    TEST("a large file is read through a small window");
    for (size_t i = 0; i < 40; i++) {
        buffer_printf(&text, "{\"prompt\":\"%zu\",\"completion\":\"", i);
        for (size_t k = 0; k < (i == 17 ? 60000 : 4000); k++) buffer_text(&text, "yes and no ");
        buffer_text(&text, "\"}\r\n");
    }
    o.max_tokens = 64;
    data_write_file(path, "wb", buffer_view(&text));
    CHECK_MESSAGE(!scan(&from, &o, &d), "%s", why);
    whole = scan_text(&text, "large.jsonl", &o);
    CHECK(d && whole && dataset_count(d) == 40);
    uint8_t one[32], two[32];
    dataset_digest(d, one);
    dataset_digest(whole, two);
    CHECK(!memcmp(one, two, sizeof one));
    CHECK_MESSAGE(d->reader.window.capacity < text.length / 2, "%zu of %zu bytes", d->reader.window.capacity,
                  text.length);
    buffer a = preview_all(d), b = preview_all(whole);
    CHECK(a.length > 1000 && str_equal(buffer_view(&a), buffer_view(&b)));
    dataset_free(d);
    dataset_free(whole);
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&text);
}

static void test_plain_text_pieces(void) {
    data_options o = plain_options();
    buffer       text = { 0 };
    TEST("plain text: pieces that fit, and nothing is lost");
    for (size_t i = 0; i < 60; i++)
        buffer_printf(&text, "Line %zu of the story, 東京 ▁ é.%s\n", i, i % 5 == 4 ? "\n" : "");
    for (size_t i = 0; i < 400; i++) buffer_text(&text, "\xe6\x9d\xb1"); /* no place to cut but between characters */
    o.max_tokens = 50;
    dataset *d = scan_text(&text, "story.txt", &o);
    CHECK(dataset_stats(d)->truncated == 0 && dataset_stats(d)->longest <= 50 && dataset_count(d) > 10);
    size_t bytes = 0, newlines = 0;
    for (size_t i = 0; i < d->entry_count; i++) {
        bytes += d->entries[i].length;
        if (i) newlines += d->entries[i].offset - (d->entries[i - 1].offset + d->entries[i - 1].length);
    }
    CHECK(bytes + newlines == text.length && newlines < 20);
    dataset_free(d);
    buffer_free(&text);
}

static void test_data_changes(void) {
    const data_options o = plain_options();
    const char        *path = in_folder("changes.jsonl");
    const data_source  from = { .path = path };
    buffer             text = numbered(20, 20);
    data_example       x;
    dataset           *d = NULL;
    error              e = { 0 };
    TEST("a file that changes is noticed");
    data_write_file(path, "wb", buffer_view(&text));
    CHECK(!scan(&from, &o, &d) && !dataset_example(d, 3, &x, &e));
    data_example_free(&x);
    data_write_file(path, "ab", str_of("\n"));
    CHECK(dataset_example(d, 3, &x, &e) == GM_BAD_FILE && strstr(e.why, "changes.jsonl has changed since it was read"));
    dataset_free(d);

    TEST("bytes that change are noticed");
    e = (error){ 0 };
    d = scan_text(&text, "m.jsonl", &o);
    *strstr(text.data, "Say 3") = 'P';
    CHECK(!dataset_example(d, 2, &x, &e));
    data_example_free(&x);
    CHECK(dataset_example(d, 3, &x, &e) == GM_BAD_FILE && strstr(e.why, "has changed"));
    dataset_free(d);
    buffer_free(&text);
}

int main(void) {
    TEST("the model in the box, and a folder");
    box = load("models/box.gguf");
    CHECK(mkdtemp(folder));
    test_forms();
    test_data_refusals();
    test_statistics();
    test_data_split();
    test_epochs();
    test_large_file();
    test_plain_text_pieces();
    test_data_changes();
    CHECK(!unlink(in_folder("large.jsonl")) && !unlink(in_folder("changes.jsonl")) && !rmdir(folder));
    unload(&box);
    return test_end();
}
