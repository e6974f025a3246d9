/* Fuzzes recognition, and what surrounds libsndfile: reading from memory, lengths that files state, refusals. Files of ffmpeg are only
 * recognised: starting a program for each is slow. */

#include "fuzz.h"
#include "media/sound.h"

/* libsndfile does not free everything when a Vorbis header is broken. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:vorbis_info_init"; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sound            s;
    error            e = { 0 };
    const sound_kind kind = sound_recognise(data, size);
    if (kind == SOUND_MP4 || kind == SOUND_AAC || kind == SOUND_WEBM) return 0;
    if (sound_decode(data, size, &s, &e)) REQUIRE(e.why[0] && !s.samples);
    else REQUIRE(s.count);
    sound_free(&s);
    return 0;
}
