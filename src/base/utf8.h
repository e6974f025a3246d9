/* UTF-8, checked. */

#ifndef GM_UTF8_H
#define GM_UTF8_H

#include "base/base.h"

/* Bytes of the valid sequence at the start of `text`; 0 if it is invalid; -1 if it is a valid beginning cut off by the end. */
int utf8_length(str text);
/* The code point of a valid sequence of `length` bytes. */
uint32_t utf8_decode(const char *at, int length);
int      utf8_encode(uint32_t code_point, char out[4]);
bool     utf8_valid(str text);
/* What the lead byte says, without looking further: 1 to 4, 1 for a stray byte. */
int utf8_lead_length(unsigned char lead);

#endif
