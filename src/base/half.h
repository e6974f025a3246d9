/* f16 and bf16 as bits. */

#ifndef GM_HALF_H
#define GM_HALF_H

#include "base/base.h"

float    f16_to_f32(uint16_t bits); /* with subnormals, infinities and NaN */
uint16_t f32_to_f16(float value);   /* round to nearest even */
float    bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value); /* round to nearest even; NaN stays NaN */

#endif
