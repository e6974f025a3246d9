/* gemmule tokenize: converts text to token ids and back. */

#include "cli/cli.h"
#include "cli/input.h"
#include "cli/model_argument.h"
#include "cli/report.h"
#include "cli/terminal.h"

#include "base/utf8.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *file, *decode;
    bool        special, bos, json;
} tokenize_values;

static const option options[] = {
    TEXT_OPTION(tokenize_values, file, "file", 'f', "FILE", "read the text from FILE"),
    FLAG_OPTION(tokenize_values, special, "special", 0, "recognise special tokens such as <|turn> in the text"),
    FLAG_OPTION(tokenize_values, bos, "bos", 0, "start with the beginning-of-text token"),
    TEXT_OPTION(tokenize_values, decode, "decode", 0, "IDS",
                "print the text of these ids, separated by spaces or commas; `-` reads them from standard input"),
    FLAG_OPTION(tokenize_values, json, "json", 0,
                "print one JSON object with count, ids and pieces (with --decode: ids and text)"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

/* A byte token on its own is not UTF-8 and is shown by its name, <0xF0>. */
static str piece_text(const tokenizer *t, int32_t id, char name[8]) {
    const str text = tokenizer_text(t, id);
    if (utf8_valid(text)) return text;
    snprintf(name, 8, "<0x%02X>", text.length ? (unsigned char)text.data[0] : 0);
    return str_of(name);
}

static int print_tokens(const tokenizer *t, const token_list *tokens, bool as_json) {
    char   name[8];
    report r = { 0 };
    if (!as_json) {
        for (size_t i = 0; i < tokens->count; i++) {
            buffer quoted = { 0 };
            json_write_string(&quoted, piece_text(t, tokens->ids[i], name));
            if (quoted.failed) return complain(EXIT_NO_DEVICE, "not enough memory for the output");
            printf("%d\t%s\n", (int)tokens->ids[i], quoted.data);
            buffer_free(&quoted);
        }
        return EXIT_OK;
    }
    report_open(&r, NULL, '{');
    report_count(&r, "count", tokens->count);
    report_open(&r, "ids", '[');
    for (size_t i = 0; i < tokens->count; i++) report_integer(&r, NULL, tokens->ids[i]);
    report_close(&r, ']');
    report_open(&r, "pieces", '[');
    for (size_t i = 0; i < tokens->count; i++) report_str(&r, NULL, piece_text(t, tokens->ids[i], name));
    report_close(&r, ']');
    report_close(&r, '}');
    return report_print(&r);
}

static gm_status tokenize_encode(const tokenizer *t, const tokenize_values *v, const char *argument, token_list *out,
                                 error *e) {
    buffer    text = { 0 };
    gm_status status = input_prompt(argument, v->file, &text, e);
    if (status == GM_OK && v->bos) {
        const int32_t bos = tokenizer_special(t, SPECIAL_BOS);
        if (bos < 0) status = fail(e, GM_UNSUPPORTED, "--bos: the vocabulary has no <bos> token");
        else token_list_add(out, bos);
    }
    if (status == GM_OK) status = tokenizer_encode(t, buffer_view(&text), v->special, out, e);
    if (status == GM_OK && out->failed) status = fail_memory(e, "the tokens", text.length);
    buffer_free(&text);
    return status;
}

/* "1, 2 3" or "[1,2,3]". */
static gm_status parse_ids(const char *text, size_t vocabulary, token_list *out, error *e) {
    static const char separators[] = " \t\r\n,[]";
    for (;;) {
        text += strspn(text, separators);
        if (!*text) break;
        const size_t length = strcspn(text, separators);
        char         word[24];
        uint64_t     id;
        snprintf(word, sizeof word, "%.*s", (int)min_size(length, sizeof word - 1), text);
        if (!parse_count(word, &id) || length >= sizeof word) {
            return fail(e, GM_BAD_ARGUMENT, "--decode takes token ids, not '%s'", word);
        }
        if (id >= vocabulary)
            return fail(e, GM_BAD_ARGUMENT, "token %s is outside the vocabulary of %zu", word, vocabulary);
        token_list_add(out, (int32_t)id);
        text += length;
    }
    return out->failed ? fail_memory(e, "the tokens", out->count) : GM_OK;
}

static int tokenize_print_text(const tokenizer *t, const token_list *tokens, bool as_json) {
    buffer text = { 0 };
    int    code = EXIT_OK;
    for (size_t i = 0; i < tokens->count; i++) buffer_str(&text, tokenizer_text(t, tokens->ids[i]));
    if (text.failed) {
        code = complain(EXIT_NO_DEVICE, "not enough memory for the text");
    } else if (as_json) {
        report r = { 0 };
        report_open(&r, NULL, '{');
        report_open(&r, "ids", '[');
        for (size_t i = 0; i < tokens->count; i++) report_integer(&r, NULL, tokens->ids[i]);
        report_close(&r, ']');
        report_str(&r, "text", buffer_view(&text));
        report_close(&r, '}');
        code = report_print(&r);
    } else {
        fwrite(text.data, 1, text.length, stdout); /* exactly these bytes, so that the output can go to a file */
        if (terminal_output()) putchar('\n');
    }
    buffer_free(&text);
    return code;
}

static gm_status decode_ids(const tokenizer *t, const char *ids, token_list *out, error *e) {
    buffer    text = { 0 };
    gm_status status = GM_OK;
    if (!strcmp(ids, "-")) status = input_read("-", &text, e);
    else buffer_text(&text, ids);
    buffer_text(&text, "");
    if (status == GM_OK && text.failed) status = fail_memory(e, "the ids", text.length);
    if (status == GM_OK) status = parse_ids(text.data, tokenizer_size(t), out, e);
    buffer_free(&text);
    return status;
}

static int tokenize_run(void *values, const arguments *args) {
    const tokenize_values *v = values;
    const char            *argument = args->count > 1 ? args->positional[1] : NULL;
    arena                  memory = { 0 };
    error                  e = { 0 };
    gguf                  *file = NULL;
    tokenizer             *t = NULL;
    token_list             tokens = { 0 };
    int                    code;
    if (v->decode && (argument || v->file || v->special || v->bos)) {
        return complain_usage("tokenize", "tokenize: --decode takes only ids, and combines only with --json");
    }
    if (!v->decode && !argument && !v->file && terminal_input()) {
        return complain_usage("tokenize",
                              "tokenize: no text given: pass it as an argument, use -f FILE, or pipe it in");
    }
    gm_status status = model_argument_open(args->positional[0], &memory, &file, &e);
    if (status == GM_OK) status = tokenizer_new(file, &t, &e);
    if (status == GM_OK)
        status = v->decode ? decode_ids(t, v->decode, &tokens, &e) : tokenize_encode(t, v, argument, &tokens, &e);
    if (status != GM_OK) code = complain_error(&e);
    else code = v->decode ? tokenize_print_text(t, &tokens, v->json) : print_tokens(t, &tokens, v->json);
    token_list_free(&tokens);
    tokenizer_free(t);
    gguf_free(file);
    arena_free(&memory);
    return code;
}

const command command_tokenize = {
    .name = "tokenize",
    .arguments = "MODEL [TEXT|-]",
    .summary = "convert text to token ids, or back",
    .description =
        "Prints a line for each token: its id, a tab, and its text as a JSON string; a byte that is not a character on "
        "its own is shown as <0xF0>. Without TEXT and -f, or with `-`, reads the text from standard input, including a "
        "newline at its end. Reads only the tokenizer of MODEL, not the weights.",
    .examples = "  gemmule tokenize gemma4:e2b \"Hello world\"\n"
                "  gemmule tokenize model.gguf --special --bos \"<|turn>user\" --json\n"
                "  gemmule tokenize model.gguf -f book.txt | wc -l\n"
                "  gemmule tokenize model.gguf --decode \"9259 1902\"\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 1,
    .most = 2,
    .values_size = sizeof(tokenize_values),
    .run = tokenize_run,
};
