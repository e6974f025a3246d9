/* Fuzzes the WAV decoder, and resampling at whatever rate the file names: short files, so that it is fast. */

#include "fuzz.h"
#include "media/sound.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sound s;
    error e = { 0 };
    if (size > 4096 || sound_recognise(data, size) != SOUND_WAV) return 0;
    if (sound_decode(data, size, &s, &e)) {
        REQUIRE(e.why[0] && !s.samples);
        return 0;
    }
    REQUIRE(s.count);
    for (size_t i = 0; i < s.count; i++) REQUIRE(s.samples[i] - s.samples[i] == 0); /* finite */
    sound_free(&s);
    return 0;
}
