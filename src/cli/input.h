/* Text from the user: an argument, a file, or standard input. */

#ifndef GM_INPUT_H
#define GM_INPUT_H

#include "base/buffer.h"

enum { INPUT_MOST = 256 << 20 }; /* bytes: more than any prompt, and a bound for /dev/zero */

/* Appends the whole file, or standard input if the path is "-". Errors name the path. */
gm_status input_read(const char *path, buffer *out, error *e);

/* The same for text, which ends with a NUL behind its length, as strings do; refuses NUL bytes inside, which would cut it off. */
gm_status input_text(const char *path, buffer *out, error *e);

/* Builds a prompt from `argument` ("-": standard input) and the file, separated by an empty line; each may be NULL. With
 * neither, reads standard input, unless that is a terminal (GM_BAD_ARGUMENT). Refuses NUL bytes in files. */
gm_status input_prompt(const char *argument, const char *file, buffer *out, error *e);

#endif
