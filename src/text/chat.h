/* Gemma 4's chat format: messages → prompt tokens, and the output → content, thinking, tool calls. */

#ifndef GM_CHAT_H
#define GM_CHAT_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef enum { CHAT_SYSTEM, CHAT_DEVELOPER, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL } chat_role;
typedef enum { CHAT_TEXT, CHAT_IMAGE, CHAT_AUDIO, CHAT_VIDEO } chat_part_kind;
typedef enum { CHAT_SMALL, CHAT_LARGE } chat_variant;

typedef struct {
    chat_part_kind kind;
    str            text;   /* of a text part */
    size_t         index;  /* of a media part: which of the message's media, in the order given */
    str            source; /* of a media part in JSON: a data URL, or base64; empty: none was given */
    str            detail; /* beside it: "low", "auto", "high" or empty */
    const json    *frames; /* of a video in JSON: [{"time": seconds, "image_url": …}]; NULL: none were given */
    const gm_part *media;  /* of a media part that the caller gave; NULL: a placeholder */
} chat_part;

typedef struct {
    str         id, name;
    const json *arguments; /* an object */
} chat_call;

typedef struct {
    chat_role   role;
    chat_part  *parts;
    size_t      part_count;
    bool        list; /* content was a list of parts, each of which the system message trims */
    str         thinking;
    chat_call  *calls;
    size_t      call_count;
    str         tool_name, tool_call_id;
    const json *tool_object; /* a tool's answer given as an object, or NULL */
} chat_message;

typedef struct {
    chat_message *messages;
    size_t        count;
    const json   *tools; /* an array of OpenAI-style functions, or NULL */
    bool          think;
    chat_variant  variant;
} chat;

/* {"messages": […], "tools": […], "think": bool} in OpenAI's or Ollama's shape. Strings point into the arena; tools, arguments,
 * objects, and the sources and frames of media into `value`, which must outlive the chat. */
gm_status chat_from_json(const json *value, arena *a, chat *out, error *e);
/* The bytes of a media part. A source within `body`, which must be writable, is decoded in place: the bytes overwrite the base64. Any other,
 * such as one with JSON escapes, is decoded into the arena, where the list of a video's frames is, too. `place` names the part in errors:
 * "messages[0].content[1]". Nothing is fetched. */
gm_status chat_part_media(const chat_part *part, const char *place, str body, arena *a, gm_part *out, error *e);
/* The picture of one of a video's frames, as a part; `place` as above. */
gm_status chat_frame_source(const json *frame, const char *place, chat_part *out, error *e);
/* Whether `tools` is a list of functions in OpenAI's shape. */
gm_status chat_check_tools(const json *tools, error *e);
/* A message's "tool_calls" alone: [{"id": …, "function": {"name": …, "arguments": object or JSON text}}]. */
gm_status chat_calls_from_json(const json *list, arena *a, chat_call **calls, size_t *count, error *e);
void      chat_message_to_json(buffer *out, const chat_message *message);

/* The prompt, as pieces of scaffolding or content. Only scaffolding becomes special tokens. A picture, a sound or a frame of a video is
 * a piece with one soft token, which stands for all of its tokens. Frames have their times as text between them. */
typedef struct {
    bool             scaffolding;
    str              text;
    const chat_part *media;   /* NULL: none */
    size_t           frame;   /* of a video: which one */
    bool             answer;  /* the model writes it: an answer, up to the token that ends it */
    size_t           message; /* of an answer: which of the chat's messages it is */
} chat_piece;

/* A frame's time in a prompt: "mm:ss", rounded down; more digits after 99 minutes. */
void chat_video_time(double seconds, char out[24]);

gm_status chat_render(const chat *c, arena *a, chat_piece **pieces, size_t *count, error *e);
/* The pieces as one text, for display and tests, and as tokens. A prompt begins with <bos>, which becomes one BOS; an answer alone does
 * not. */
void      chat_pieces_text(const chat_piece *pieces, size_t count, buffer *out);
gm_status chat_pieces_tokens(const tokenizer *t, const chat_piece *pieces, size_t count, token_list *out, error *e);
/* Whether the prompt ends inside a thought: then the parser must start there. */
bool chat_starts_thinking(const chat_piece *pieces, size_t count);
/* The pieces that the model writes after the prompt `pieces`, so that the messages from `first` on, which are its answer, follow. `c` has
 * the messages up to and including that answer. */
gm_status chat_answer(const chat *c, size_t first, const chat_piece *prompt, size_t prompt_count, arena *a,
                      chat_piece **pieces, size_t *count, error *e);
/* Appends the tokens of a picture, a sound or a frame: one that begins it, `n` soft tokens, one that ends it. */
gm_status chat_media_tokens(const tokenizer *t, chat_part_kind kind, size_t n, token_list *out, error *e);

/* ---- output ---- */

typedef enum { OUTPUT_CONTENT, OUTPUT_THINKING, OUTPUT_CALL } output_kind;

typedef struct {
    output_kind kind;
    str         text;      /* content or thinking */
    str         name;      /* call */
    str         arguments; /* call: JSON text, always an object */
    bool        last;      /* no other has come behind it yet */
    bool        repaired;  /* call: the arguments were malformed and were repaired */
} output_event;

typedef struct output_parser output_parser;

/* `tools` (may be NULL) helps to repair arguments; it must outlive the parser. */
gm_status output_parser_new(const json *tools, bool think, bool starts_thinking, output_parser **out, error *e);
void      output_parser_free(output_parser *p);
/* Feeds text in whole UTF-8 characters. Then take events; their strings are valid until the next feed. Text of an event that was not taken
 * yet is joined by what follows. */
gm_status output_parser_feed(output_parser *p, str text, error *e);
gm_status output_parser_end(output_parser *p, error *e); /* the answer is complete: releases what was held back */
bool      output_parser_next(output_parser *p, output_event *event);
void      output_parser_put_back(output_parser *p); /* the event that was taken last comes again */

#endif
