/* Writes a prompt: a list of pieces, each either the template's own text or content. */

#ifndef GM_CHAT_WRITER_H
#define GM_CHAT_WRITER_H

#include "text/chat.h"

typedef struct {
    arena      *memory;
    chat_piece *pieces;
    size_t      count, capacity;
    bool        answer; /* of the pieces that are being written, with the number of their message */
    size_t      message;
    bool        failed; /* no memory; sticks */
} chat_writer;

/* Template text is zero-terminated, must outlive the writer, and may contain special tokens. Content never does. */
void chat_write_template(chat_writer *w, const char *text);
void chat_write_content(chat_writer *w, str text);
/* The soft token of a media part, or of a frame of a video, as template text. */
void chat_write_media(chat_writer *w, const char *text, const chat_part *part, size_t frame);
/* Content between <|"|> tokens. */
void chat_write_quoted(chat_writer *w, str text);
/* A value in the template's notation. Keys of objects are bare in arguments and responses, quoted in declarations. */
void chat_write_value(chat_writer *w, const json *value, bool quoted_keys);
/* key:value,… of an object without its braces. */
void chat_write_fields(chat_writer *w, const json *object, bool quoted_keys);
/* A function's declaration, between <|tool> and <tool|>. */
void chat_write_declaration(chat_writer *w, const json *function);

/* An object's children by ascending key (bytewise); the last one of equal keys. NULL, with *count 0, if there are none. */
const json **chat_sorted_children(chat_writer *w, const json *object, size_t *count);
/* Memory from the arena. If there is none: NULL, and sets `failed`. */
void *chat_writer_array(chat_writer *w, size_t count, size_t size);

#endif
