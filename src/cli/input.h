/* Text that the user hands in: an argument, a file, or standard input. */

#ifndef GM_INPUT_H
#define GM_INPUT_H

#include "base/buffer.h"

enum { INPUT_MOST = 256 << 20 }; /* bytes: no prompt is longer, and /dev/zero ends somewhere */

/* Appends the whole file, or standard input when path is "-". Errors name the path. */
gm_status input_read(const char *path, buffer *out, error *e);

/* Puts a prompt together: `argument` (may be NULL; "-" is standard input), then the file (may be NULL) after an empty
 * line. With neither, standard input, unless it is a terminal (GM_BAD_ARGUMENT). A NUL byte is refused. */
gm_status input_prompt(const char *argument, const char *file, buffer *out, error *e);

#endif
