/* Decimal numbers as text, whatever the locale: always '.', correctly rounded both ways. */

#ifndef GM_DECIMAL_H
#define GM_DECIMAL_H

#include "base/base.h"

/* The whole text must be one number: [sign] digits [. digits] [e [sign] digits], with a digit on one side of the point at
 * least. Too large gives an infinity. */
bool decimal_parse(str text, double *out);

/* The shortest text that reads back the same, ended by a NUL; returns its length. The value must be finite. */
size_t decimal_print(double value, char out[32]);

#endif
