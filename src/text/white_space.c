/* Unicode white space. */

#include "text/white_space.h"
#include "base/utf8.h"

static bool is_white_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
    if (code >= 0x2000 && code <= 0x200a) return true;
    return code == 0x85 || code == 0xa0 || code == 0x1680 || code == 0x2028 || code == 0x2029 || code == 0x202f ||
           code == 0x205f || code == 0x3000;
}

size_t white_space_left(str text) {
    int n = utf8_length(text);
    return n > 0 && is_white_space(utf8_decode(text.data, n)) ? (size_t)n : 0;
}

size_t white_space_right(str text) {
    for (size_t n = 1; n <= 3 && n <= text.length; n++) { /* none takes four bytes */
        str last = { text.data + text.length - n, n };
        if (((unsigned char)last.data[0] & 0xc0) != 0x80) return white_space_left(last) == n ? n : 0;
    }
    return 0;
}

str trim_left(str text) {
    for (size_t n; (n = white_space_left(text)) > 0;) text = (str){ text.data + n, text.length - n };
    return text;
}

str trim_right(str text) {
    for (size_t n; (n = white_space_right(text)) > 0;) text.length -= n;
    return text;
}
