/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */

#include "base/utf8.h"

int utf8_lead_length(unsigned char lead) {
    if (lead < 0xc0) return 1;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) return 3;
    return lead < 0xf8 ? 4 : 1;
}

int utf8_length(str text) {
    if (!text.length) return -1;
    const unsigned char *at = (const unsigned char *)text.data;
    const unsigned char  lead = at[0];
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    const int length = utf8_lead_length(lead);
    /* The second byte is where overlong forms, surrogates and too large values show. */
    const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == text.length) return -1;
        if (at[i] < (i == 1 ? low : 0x80) || at[i] > (i == 1 ? high : 0xbf)) return 0;
    }
    return length;
}

uint32_t utf8_decode(const char *at, int length) {
    static const unsigned char lead_mask[5] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
    uint32_t                   code = (unsigned char)at[0] & lead_mask[length];
    for (int i = 1; i < length; i++) code = code << 6 | ((unsigned char)at[i] & 0x3f);
    return code;
}

int utf8_encode(uint32_t code_point, char out[4]) {
    static const unsigned char lead[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000)) code_point = 0xfffd;
    const int length = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code_point >>= 6) out[i] = (char)(0x80 | (code_point & 0x3f));
    out[0] = (char)(lead[length] | code_point);
    return length;
}

bool utf8_valid(str text) {
    for (size_t i = 0; i < text.length;) {
        int n = utf8_length((str){ text.data + i, text.length - i });
        if (n < 1) return false;
        i += (size_t)n;
    }
    return true;
}
