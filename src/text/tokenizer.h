/* Gemma 4's tokenizer: ranked BPE over UTF-8 with ▁ for the space, byte fallback, special tokens. */

#ifndef GM_TOKENIZER_H
#define GM_TOKENIZER_H

#include "base/buffer.h"
#include "gguf/gguf.h"

/* The special tokens of the chat format. */
typedef enum {
    SPECIAL_PAD,
    SPECIAL_EOS,
    SPECIAL_BOS,
    SPECIAL_UNK,
    SPECIAL_MASK,
    SPECIAL_TURN,
    SPECIAL_TURN_END,
    SPECIAL_CHANNEL,
    SPECIAL_CHANNEL_END,
    SPECIAL_THINK,
    SPECIAL_TOOL,
    SPECIAL_TOOL_END,
    SPECIAL_TOOL_CALL,
    SPECIAL_TOOL_CALL_END,
    SPECIAL_TOOL_RESPONSE,
    SPECIAL_TOOL_RESPONSE_END,
    SPECIAL_QUOTE,
    SPECIAL_IMAGE,
    SPECIAL_IMAGE_SOFT,
    SPECIAL_IMAGE_END,
    SPECIAL_AUDIO,
    SPECIAL_AUDIO_SOFT,
    SPECIAL_AUDIO_END,
    SPECIAL_VIDEO_SOFT,
    SPECIAL_COUNT,
} special_token;

extern const char *const special_token_text[SPECIAL_COUNT]; /* "<pad>", "<eos>", … */

typedef struct tokenizer tokenizer;

/* From the tokenizer.ggml.* metadata, whose bytes must outlive it. Refuses other tokenizers, a vocabulary without merges,
 * counts that disagree, a missing byte token or special token that encoding needs. */
gm_status tokenizer_new(const gguf *g, tokenizer **out, error *e);
void      tokenizer_free(tokenizer *t);

typedef struct {
    int32_t *ids;
    size_t   count, capacity;
    bool     failed;
} token_list; /* zero-initialise; memory failure sticks */

void token_list_add(token_list *l, int32_t id);
void token_list_reserve(token_list *l, size_t capacity); /* room for so many in all */
void token_list_free(token_list *l);

/* Appends the tokens of `text`, without BOS. Control tokens are recognised only if `parse_special`, user-defined ones
 * always. Any bytes are fine. */
gm_status tokenizer_encode(const tokenizer *t, str text, bool parse_special, token_list *out, error *e);
/* Recognises no special tokens at all, not even user-defined ones such as <|channel>. For message content, which must not be able
 * to imitate the template. */
gm_status tokenizer_encode_plain(const tokenizer *t, str text, token_list *out, error *e);

/* Part of a text, in bytes. */
typedef struct {
    size_t start, end;
} text_range;

/* Recognises all special tokens, but only inside the ranges (in order, not overlapping). The text between special tokens is encoded
 * as a whole, so range borders do not affect the tokens. */
gm_status tokenizer_encode_ranges(const tokenizer *t, str text, const text_range *ranges, size_t count, token_list *out,
                                  error *e);

size_t  tokenizer_size(const tokenizer *t);
int32_t tokenizer_special(const tokenizer *t, special_token which); /* -1 if the vocabulary has none */
bool    tokenizer_is_stop(const tokenizer *t,
                          int32_t          id); /* <eos>, <turn|>, <|tool_response>, and the file's eos/eot ids */
bool    tokenizer_is_suppressed(const tokenizer *t, int32_t id); /* tokenizer.ggml.suppress_tokens */
/* The bytes that the token stands for (▁ as a space, a byte token as its byte, special tokens by name). */
str tokenizer_text(const tokenizer *t, int32_t id);
/* Control tokens are invisible, except those that the output parser needs (<|channel>, <|tool_call>, …). */
bool tokenizer_is_visible(const tokenizer *t, int32_t id);

/* Streaming: bytes of tokens join into whole UTF-8 characters. `*text` is what is complete, valid until the next call. Bytes
 * that can never become UTF-8 come out as U+FFFD, tokens that are not visible as nothing. The only error is GM_NO_MEMORY. */
typedef struct {
    buffer held, out;
} detokenizer; /* zero-initialise */

gm_status detokenizer_add(detokenizer *d, const tokenizer *t, int32_t id, str *text, error *e);
gm_status detokenizer_end(detokenizer *d, str *text, error *e); /* the rest */
void      detokenizer_free(detokenizer *d);

#endif
