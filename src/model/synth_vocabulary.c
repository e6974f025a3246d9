/* An artificial vocabulary of Gemma 4's size, with special tokens at their real ids.
 *
 *     0 …            control tokens and unused ones          494 … 236742       pieces of 2, 3 and 4 characters
 *     107 … 137      1 to 31 newlines                        236743 …           ▁, then the printable ASCII characters
 *     138 … 167      2 to 31 spaces, as ▁                    236838 … 255998    Chinese characters, and a tab among them
 *     168 … 237      markup, with </s> at 212                255999 …           media tokens and unused ones
 *     238 … 493      the bytes
 *
 * Pieces of two characters are all pairs of printable ASCII and ▁. Longer ones are lower-case letters, some after a ▁. English
 * text takes about as many tokens as with the real vocabulary. Merges are ordered by the length of the piece. A piece of three or
 * four characters can be merged in two ways, which gives about as many merges as the real vocabulary has. */

#include "model/synth_parts.h"

#include "base/buffer.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEWLINES = 107,
    SPACES = 138,
    MARKUP = 168,
    BYTES = 238,
    PIECES = 494,
    SPACE = 236743,
    CHARACTERS = 236838,
    TAB = 255968,
    MEDIA = 255999,
    LONGEST_RUN = 31,
    PRINTABLE = 0x7e - 0x21 + 1, /* ! to ~ */
    QUADS = 27 * 26 * 26 * 26,
};

typedef enum {
    KIND_NORMAL = 1,
    KIND_UNKNOWN = 2,
    KIND_CONTROL = 3,
    KIND_USER = 4,
    KIND_UNUSED = 5,
    KIND_BYTE = 6
} token_kind;

static const struct {
    int32_t     id;
    token_kind  kind;
    const char *text;
} specials[] = {
    { 0, KIND_CONTROL, "<pad>" },
    { 1, KIND_CONTROL, "<eos>" },
    { 2, KIND_CONTROL, "<bos>" },
    { 3, KIND_UNKNOWN, "<unk>" },
    { 4, KIND_CONTROL, "<mask>" },
    { 46, KIND_CONTROL, "<|tool>" },
    { 47, KIND_CONTROL, "<tool|>" },
    { 48, KIND_USER, "<|tool_call>" },
    { 49, KIND_USER, "<tool_call|>" },
    { 50, KIND_USER, "<|tool_response>" },
    { 51, KIND_USER, "<tool_response|>" },
    { 52, KIND_USER, "<|\"|>" },
    { 98, KIND_CONTROL, "<|think|>" },
    { 100, KIND_USER, "<|channel>" },
    { 101, KIND_USER, "<channel|>" },
    { 105, KIND_CONTROL, "<|turn>" },
    { 106, KIND_CONTROL, "<turn|>" },
    { 212, KIND_NORMAL, "</s>" },
    { TAB, KIND_NORMAL, "\t" },
    { MEDIA, KIND_CONTROL, "<|image>" },
    { 256000, KIND_CONTROL, "<|audio>" },
    { 258880, KIND_CONTROL, "<|image|>" },
    { 258881, KIND_CONTROL, "<|audio|>" },
    { 258882, KIND_CONTROL, "<image|>" },
    { 258883, KIND_CONTROL, "<audio|>" },
    { 258884, KIND_CONTROL, "<|video|>" },
};

/* Strings in one buffer. It moves as it grows, so the list keeps offsets. */
typedef struct {
    buffer  text;
    size_t *ends;
    size_t  count, capacity;
    bool    failed;
} string_list;

static void list_end(string_list *list) {
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : SYNTH_VOCABULARY;
        size_t      *ends = realloc(list->ends, capacity * sizeof *ends);
        if (!ends) {
            list->failed = true;
            return;
        }
        list->ends = ends;
        list->capacity = capacity;
    }
    list->ends[list->count++] = list->text.length;
}

static void list_free(string_list *list) {
    buffer_free(&list->text);
    free(list->ends);
}

static gm_status list_write(const string_list *list, gguf_writer *w, const char *key, error *e) {
    str *items = list->failed || list->text.failed ? NULL : malloc((list->count + 1) * sizeof *items);
    if (!items) return fail_memory(e, key, list->count * sizeof *items);
    for (size_t i = 0, start = 0; i < list->count; start = list->ends[i++])
        items[i] = (str){ list->text.data + start, list->ends[i] - start };
    gguf_write_strings(w, key, items, list->count);
    free(items);
    return GM_OK;
}

/* ---- pieces ---- */

/* A piece of up to four characters, each ▁ or ASCII. */
typedef struct {
    char characters[4]; /* ' ' stands for ▁ */
    int  length;
} piece;

static void append_characters(buffer *out, const char *characters, int length) {
    for (int i = 0; i < length; i++) {
        if (characters[i] == ' ') buffer_text(out, "▁");
        else buffer_char(out, characters[i]);
    }
}

static char character_at(uint32_t i) { return i == 0 ? ' ' : (char)(0x20 + i); } /* of ▁ and the printable ones */
static char letter_at(uint32_t i) { return i == 0 ? ' ' : (char)('a' + i - 1); } /* of ▁ and the lower-case ones */

/* The pieces in their order: 95² − 1 pairs (▁▁ is a run of spaces), 27·26² triples, then fours in a scattered order. */
static piece piece_at(uint32_t n) {
    const uint32_t all = PRINTABLE + 1, pairs = all * all - 1, triples = 27 * 26 * 26;
    if (n < pairs) return (piece){ { character_at((n + 1) / all), character_at((n + 1) % all) }, 2 };
    n -= pairs;
    if (n < triples) return (piece){ { letter_at(n / 676), letter_at(1 + n / 26 % 26), letter_at(1 + n % 26) }, 3 };
    n = (uint32_t)((uint64_t)(n - triples) * 104729 % QUADS); /* a prime, so that each is visited once */
    return (piece){
        { letter_at(n / 17576), letter_at(1 + n / 676 % 26), letter_at(1 + n / 26 % 26), letter_at(1 + n % 26) }, 4
    };
}

/* ---- tokens ---- */

/* Appends the text of an ordinary token and returns its kind; special tokens come from their table. */
static token_kind append_token(buffer *out, int32_t id) {
    for (size_t i = 0; i < COUNT_OF(specials); i++)
        if (specials[i].id == id) {
            buffer_text(out, specials[i].text);
            return specials[i].kind;
        }
    char utf8[4];
    if (id >= MEDIA || id < NEWLINES) {
        buffer_printf(out, "<unused%d>", (int)id);
        return KIND_UNUSED;
    }
    if (id < SPACES) {
        for (int i = NEWLINES; i <= id; i++) buffer_char(out, '\n');
    } else if (id < MARKUP) {
        for (int i = SPACES - 1; i <= id; i++) buffer_text(out, "▁");
    } else if (id < BYTES) {
        buffer_printf(out, "<markup%d>", (int)id - MARKUP);
        return KIND_USER;
    } else if (id < PIECES) {
        buffer_printf(out, "<0x%02X>", (unsigned)(id - BYTES));
        return KIND_BYTE;
    } else if (id < SPACE) {
        const piece p = piece_at((uint32_t)(id - PIECES));
        append_characters(out, p.characters, p.length);
    } else if (id < CHARACTERS) {
        append_characters(out, (char[1]){ character_at((uint32_t)(id - SPACE)) }, 1);
    } else {
        buffer_append(out, utf8, (size_t)utf8_encode(0x4e00 + (uint32_t)(id - CHARACTERS), utf8));
    }
    return KIND_NORMAL;
}

static gm_status write_tokens(const synth_plan *plan, gguf_writer *w, error *e) {
    const size_t count = plan->vocabulary;
    string_list  tokens = { 0 };
    int32_t     *kinds = malloc(count * sizeof *kinds);
    float       *scores = malloc(count * sizeof *scores);
    gm_status    status = GM_OK;
    if (!kinds || !scores) status = fail_memory(e, "the vocabulary", count * 8);
    for (int32_t id = 0; kinds && scores && id < (int32_t)count; id++) {
        const token_kind kind = append_token(&tokens.text, id);
        list_end(&tokens);
        kinds[id] = plan->ollama && kind == KIND_BYTE ? KIND_NORMAL : kind;
        scores[id] = plan->ollama ? (float)id : -1000;
    }
    if (status == GM_OK) status = list_write(&tokens, w, "tokenizer.ggml.tokens", e);
    if (status == GM_OK) {
        gguf_write_array(w, "tokenizer.ggml.scores", GGUF_F32, scores, count);
        gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, count);
    }
    free(kinds);
    free(scores);
    list_free(&tokens);
    return status;
}

/* ---- merges ---- */

static void merge_runs(string_list *merges, const char *character) {
    for (int length = 2; length <= LONGEST_RUN; length++)
        for (int left = 1; left < length; left++) {
            for (int i = 0; i < length; i++) {
                if (i == left) buffer_char(&merges->text, ' ');
                buffer_text(&merges->text, character);
            }
            list_end(merges);
        }
}

static void merge_piece(string_list *merges, const piece *p, int left) {
    append_characters(&merges->text, p->characters, left);
    buffer_char(&merges->text, ' ');
    append_characters(&merges->text, p->characters + left, p->length - left);
    list_end(merges);
}

/* A smaller vocabulary lacks the single characters, which come last, so it merges only newlines. */
static gm_status write_merges(const synth_plan *plan, gguf_writer *w, error *e) {
    const bool  whole = plan->vocabulary == SYNTH_VOCABULARY;
    string_list merges = { 0 };
    if (whole) merge_runs(&merges, "▁");
    merge_runs(&merges, "\n");
    for (uint32_t n = 0; whole && n < SPACE - PIECES; n++) {
        const piece p = piece_at(n);
        if (p.length > 2) merge_piece(&merges, &p, p.length - 2); /* a bc, ab cd */
        merge_piece(&merges, &p, p.length - 1);                   /* a b, ab c, abc d */
    }
    const gm_status status = list_write(&merges, w, "tokenizer.ggml.merges", e);
    list_free(&merges);
    return status;
}

gm_status synth_write_vocabulary(const synth_plan *plan, gguf_writer *w, error *e) {
    static const int32_t ends[] = { 1, 106, 50 }, suppressed[] = { 258883, 258882 };
    gguf_write_str(w, "tokenizer.ggml.model", str_of(plan->ollama ? "llama" : "gemma4"));
    if (plan->ollama) gguf_write_str(w, "tokenizer.ggml.pre", str_of("gemma4"));
    gm_status status = write_tokens(plan, w, e);
    if (status == GM_OK) status = write_merges(plan, w, e);
    if (status != GM_OK) return status;
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", 2);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", 1);
    gguf_write_u32(w, "tokenizer.ggml.unknown_token_id", 3);
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", 0);
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", !plan->ollama);
    if (plan->ollama) {
        gguf_write_array(w, "tokenizer.ggml.eos_token_ids", GGUF_I32, ends, COUNT_OF(ends));
        return GM_OK;
    }
    gguf_write_u32(w, "tokenizer.ggml.mask_token_id", 4);
    gguf_write_u32(w, "tokenizer.ggml.eot_token_id", 106);
    gguf_write_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (plan->size->suppresses && plan->vocabulary == SYNTH_VOCABULARY)
        gguf_write_array(w, "tokenizer.ggml.suppress_tokens", GGUF_I32, suppressed, COUNT_OF(suppressed));
    return GM_OK;
}
