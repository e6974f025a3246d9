/* Builds the tokenizer's tables from the tokenizer.ggml.* metadata of llama.cpp's and Ollama's files.
 *
 * Files disagree about token types: in Ollama's, byte tokens are normal tokens, and special tokens that must be visible are control
 * tokens. So byte tokens and the chat format's special tokens are found by their text; the file's types apply to all others. */

#include "text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

const char *const special_token_text[SPECIAL_COUNT] = {
    [SPECIAL_PAD] = "<pad>",
    [SPECIAL_EOS] = "<eos>",
    [SPECIAL_BOS] = "<bos>",
    [SPECIAL_UNK] = "<unk>",
    [SPECIAL_MASK] = "<mask>",
    [SPECIAL_TURN] = "<|turn>",
    [SPECIAL_TURN_END] = "<turn|>",
    [SPECIAL_CHANNEL] = "<|channel>",
    [SPECIAL_CHANNEL_END] = "<channel|>",
    [SPECIAL_THINK] = "<|think|>",
    [SPECIAL_TOOL] = "<|tool>",
    [SPECIAL_TOOL_END] = "<tool|>",
    [SPECIAL_TOOL_CALL] = "<|tool_call>",
    [SPECIAL_TOOL_CALL_END] = "<tool_call|>",
    [SPECIAL_TOOL_RESPONSE] = "<|tool_response>",
    [SPECIAL_TOOL_RESPONSE_END] = "<tool_response|>",
    [SPECIAL_QUOTE] = "<|\"|>",
    [SPECIAL_IMAGE] = "<|image>",
    [SPECIAL_IMAGE_SOFT] = "<|image|>",
    [SPECIAL_IMAGE_END] = "<image|>",
    [SPECIAL_AUDIO] = "<|audio>",
    [SPECIAL_AUDIO_SOFT] = "<|audio|>",
    [SPECIAL_AUDIO_END] = "<audio|>",
    [SPECIAL_VIDEO_SOFT] = "<|video|>",
};

/* The special tokens that the output parser must see. */
static const special_token visible_specials[] = {
    SPECIAL_CHANNEL,       SPECIAL_CHANNEL_END,       SPECIAL_TOOL_CALL, SPECIAL_TOOL_CALL_END,
    SPECIAL_TOOL_RESPONSE, SPECIAL_TOOL_RESPONSE_END, SPECIAL_QUOTE,
};

/* ---- reading keys ---- */

static const gguf_value *need_strings(const gguf *g, const char *key, gm_status *status, error *e) {
    const gguf_value *value = gguf_find(g, key);
    if (!value) *status = fail(e, GM_UNSUPPORTED, "%s is missing: not a BPE vocabulary", key);
    else if (!value->array || value->type != GGUF_STRING)
        *status = fail(e, GM_BAD_FILE, "%s must be an array of strings", key);
    else if (!value->count) *status = fail(e, GM_BAD_FILE, "%s is empty", key);
    else return value;
    return NULL;
}

static gm_status check_id(const tokenizer *t, const char *key, int64_t id, error *e) {
    if (id >= 0 && id < (int64_t)t->symbols.tokens) return GM_OK;
    return fail(e, GM_BAD_FILE, "%s has token %lld, but the vocabulary has %u tokens", key, (long long)id,
                t->symbols.tokens);
}

/* Calls `use` for one id or each id of an array. The key may be absent. */
static gm_status each_id(tokenizer *t, const gguf *g, const char *key, void (*use)(tokenizer *, int32_t), error *e) {
    const gguf_value *value = gguf_find(g, key);
    for (uint64_t i = 0; value && i < value->count; i++) {
        int64_t id;
        if (!gguf_item_integer(value, i, &id))
            return fail(e, GM_BAD_FILE, "%s must be a token id or an array of them", key);
        gm_status status = check_id(t, key, id, e);
        if (status) return status;
        use(t, (int32_t)id);
    }
    return GM_OK;
}

static bool is_gemma(const gguf *g) {
    static const char *const architectures[] = { "gemma4", "gemma4-assistant", "gemma4_assistant", "diffusion-gemma" };
    str                      text = { 0 };
    error                    ignored = { 0 };
    bool                     found = false;
    gguf_get_str(g, KEY("model"), &text, &found, &ignored);
    if (found && str_is(text, "gemma4")) return true;
    found = false;
    gguf_get_str(g, KEY("pre"), &text, &found, &ignored);
    if (found && str_is(text, "gemma4")) return true;
    found = false;
    gguf_get_str(g, "general.architecture", &text, &found, &ignored);
    for (size_t i = 0; found && i < COUNT_OF(architectures); i++) {
        if (str_is(text, architectures[i])) return true;
    }
    return false;
}

/* ---- types ---- */

static int32_t token_of(const tokenizer *t, const char *text) {
    uint32_t symbol = symbols_find(&t->symbols, str_of(text), str_of(""));
    return symbol < t->symbols.tokens ? (int32_t)symbol : -1;
}

static gm_status load_types(tokenizer *t, const gguf *g, error *e) {
    /* normal, unknown, control, user-defined, unused, byte; byte tokens are found by their text */
    static const uint8_t flags_of_type[] = { 0, 0, TOKEN_CONTROL, TOKEN_CONTROL, TOKEN_USER, 0, 0 };
    const gguf_value    *types = gguf_find(g, KEY("token_type"));
    if (!types) return GM_OK;
    if (!types->array || types->count != t->symbols.tokens) {
        return fail(e, GM_BAD_FILE, "%s must have as many items as %s, %u; found %llu", KEY("token_type"),
                    KEY("tokens"), t->symbols.tokens, types->array ? (unsigned long long)types->count : 1ull);
    }
    for (uint32_t i = 0; i < t->symbols.tokens; i++) {
        int64_t type;
        if (!gguf_item_integer(types, i, &type))
            return fail(e, GM_BAD_FILE, "%s must be an array of integers", KEY("token_type"));
        if (type < 0 || type >= (int64_t)COUNT_OF(flags_of_type)) {
            return fail(e, GM_BAD_FILE, "%s[%u] must be 1 to 6, found %lld", KEY("token_type"), i, (long long)type);
        }
        t->flags[i] = flags_of_type[type];
    }
    return GM_OK;
}

static gm_status load_bytes(tokenizer *t, error *e) {
    for (unsigned i = 0; i < 256; i++) {
        static const char digits[] = "0123456789ABCDEF";
        char              text[] = { '<', '0', 'x', digits[i / 16], digits[i % 16], '>', 0 };
        t->bytes[i] = token_of(t, text);
        if (t->bytes[i] < 0) return fail(e, GM_BAD_FILE, "%s has no byte token %s", KEY("tokens"), text);
        t->flags[t->bytes[i]] = TOKEN_BYTE;
    }
    return GM_OK;
}

static gm_status load_specials(tokenizer *t, const gguf *g, error *e) {
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        t->special[i] = token_of(t, special_token_text[i]);
        if (t->special[i] >= 0 && !(t->flags[t->special[i]] & TOKEN_USER)) t->flags[t->special[i]] = TOKEN_CONTROL;
    }
    for (size_t i = 0; i < COUNT_OF(visible_specials); i++) {
        int32_t id = t->special[visible_specials[i]];
        if (id >= 0) t->flags[id] = TOKEN_USER;
    }
    if (t->special[SPECIAL_BOS] < 0) { /* under another name */
        uint32_t  id = 0;
        bool      found = false;
        gm_status status = gguf_get_u32(g, KEY("bos_token_id"), &id, &found, e);
        if (!status && found) status = check_id(t, KEY("bos_token_id"), id, e);
        if (status) return status;
        if (!found)
            return fail(e, GM_BAD_FILE, "%s has no <bos>, and %s is missing", KEY("tokens"), KEY("bos_token_id"));
        t->special[SPECIAL_BOS] = (int32_t)id;
        t->flags[id] = TOKEN_CONTROL;
    }
    for (uint32_t i = 0; i < t->symbols.tokens; i++) {
        if (!(t->flags[i] & (TOKEN_CONTROL | TOKEN_USER))) continue;
        if (!specials_add(&t->specials, symbols_text(&t->symbols, i), (int32_t)i, t->flags[i] & TOKEN_CONTROL)) {
            return fail_memory(e, "the special tokens", t->specials.count * (uint64_t)32);
        }
    }
    specials_finish(&t->specials);
    return GM_OK;
}

/* ---- stop and suppressed tokens ---- */

static void add_stop(tokenizer *t, int32_t id) {
    /* Some conversions list this token, but it is the HTML tag: ordinary text. */
    if (!str_is(symbols_text(&t->symbols, (uint32_t)id), "</s>")) t->flags[id] |= TOKEN_STOP;
}

static void add_suppressed(tokenizer *t, int32_t id) { t->flags[id] |= TOKEN_SUPPRESSED; }

static void ignore_id(tokenizer *t, int32_t id) { (void)t, (void)id; }

static gm_status load_ids(tokenizer *t, const gguf *g, error *e) {
    static const struct {
        const char *key;
        void (*use)(tokenizer *, int32_t);
    } keys[] = {
        { KEY("eos_token_id"), add_stop },      { KEY("eot_token_id"), add_stop },
        { KEY("eos_token_ids"), add_stop },     { KEY("bos_token_id"), ignore_id },
        { KEY("unknown_token_id"), ignore_id }, { KEY("padding_token_id"), ignore_id },
        { KEY("mask_token_id"), ignore_id },    { KEY("suppress_tokens"), add_suppressed },
    };
    static const special_token stops[] = { SPECIAL_EOS, SPECIAL_TURN_END, SPECIAL_TOOL_RESPONSE };
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        gm_status status = each_id(t, g, keys[i].key, keys[i].use, e);
        if (status) return status;
    }
    for (size_t i = 0; i < COUNT_OF(stops); i++) {
        if (t->special[stops[i]] >= 0) add_stop(t, t->special[stops[i]]);
    }
    return GM_OK;
}

/* ---- texts of tokens ---- */

static size_t decode_text(char *out, str text) {
    size_t length = 0;
    for (size_t i = 0; i < text.length; length++) {
        bool block = text.length - i >= 3 && !memcmp(text.data + i, "\xe2\x96\x81", 3);
        out[length] = block ? ' ' : text.data[i];
        i += block ? 3 : 1;
    }
    return length;
}

static gm_status load_texts(tokenizer *t, const gguf_value *tokens, error *e) {
    const uint32_t count = t->symbols.tokens;
    const size_t   most = (size_t)(tokens->bytes - 8 * (uint64_t)count); /* decoding only shortens */
    t->texts = malloc(most + 1);
    t->text_starts = calloc((size_t)count + 1, sizeof *t->text_starts);
    if (!t->texts || !t->text_starts) return fail_memory(e, "the tokens' texts", most);
    uint32_t length = 0;
    for (uint32_t i = 0; i < count; i++) {
        length += (uint32_t)decode_text(t->texts + length, symbols_text(&t->symbols, i));
        t->text_starts[i + 1] = length;
    }
    /* A byte token's text has room for its byte; the rest of it is unused. */
    for (unsigned i = 0; i < 256; i++) t->texts[t->text_starts[t->bytes[i]]] = (char)i;
    char *smaller = realloc(t->texts, (size_t)length + 1);
    if (smaller) t->texts = smaller;
    return GM_OK;
}

static void load_ascii(tokenizer *t) {
    for (unsigned i = 0; i < 128; i++) {
        char c = (char)i;
        str  text = i == ' ' ? str_of("\xe2\x96\x81") : (str){ &c, 1 };
        t->ascii[i] = symbols_find(&t->symbols, text, str_of(""));
    }
}

gm_status vocabulary_load(tokenizer *t, const gguf *g, error *e) {
    gm_status status = GM_OK;
    if (!is_gemma(g)) {
        return fail(e, GM_UNSUPPORTED,
                    "the tokenizer is not Gemma 4's: neither general.architecture nor %s nor %s says gemma4",
                    KEY("model"), KEY("pre"));
    }
    const gguf_value *tokens = need_strings(g, KEY("tokens"), &status, e);
    const gguf_value *merges = tokens ? need_strings(g, KEY("merges"), &status, e) : NULL;
    if (!merges || (status = symbols_init(&t->symbols, tokens, e))) return status;
    t->flags = calloc(t->symbols.tokens, 1);
    if (!t->flags) return fail_memory(e, "the token types", t->symbols.tokens);
    if ((status = load_types(t, g, e)) || (status = load_bytes(t, e)) || (status = load_specials(t, g, e)) ||
        (status = load_ids(t, g, e)) || (status = load_texts(t, tokens, e)) ||
        (status = bpe_merges_init(&t->merges, &t->symbols, merges, e))) {
        return status;
    }
    load_ascii(t); /* after the merges, which may contain characters that are not tokens */
    return GM_OK;
}
