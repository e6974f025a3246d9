/* Unicode white space (the White_Space property). */

#ifndef GM_WHITE_SPACE_H
#define GM_WHITE_SPACE_H

#include "base/base.h"

/* Bytes of the white space character at the start (left) or the end (right) of the text; 0 if there is none. */
size_t white_space_left(str text);
size_t white_space_right(str text);

str               trim_left(str text);
str               trim_right(str text);
static inline str trim(str text) { return trim_right(trim_left(text)); }

#endif
