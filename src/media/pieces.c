/* Long sound in pieces that a tower hears at once, cut where it is quietest. */

#include "media/sound.h"

#include <string.h>

enum {
    PIECE_SEARCH = 5 * SOUND_RATE, /* the end of a piece in which the cut is */
    PIECE_QUIET = SOUND_RATE / 10, /* the stretch whose loudness counts */
    PIECE_STEP = SOUND_RATE / 100,
    PIECE_REST = SOUND_RATE, /* the least that the next piece gets */
};

size_t sound_piece(const float *samples, size_t left) {
    if (left <= SOUND_PIECE) return left;
    const size_t end = min_size(SOUND_PIECE, left - PIECE_REST);
    size_t       best = end;
    double       least = -1;
    /* Equally quiet: the latest, so that silence makes long pieces. */
    for (size_t at = SOUND_PIECE - PIECE_SEARCH; at + PIECE_QUIET <= end; at += PIECE_STEP) {
        double energy = 0;
        for (size_t i = 0; i < PIECE_QUIET; i++) energy += (double)samples[at + i] * samples[at + i];
        if (least >= 0 && energy > least) continue;
        least = energy;
        best = at + PIECE_QUIET / 2;
    }
    return best;
}

size_t raw_frames(size_t samples) { return samples / RAW_FRAME + (samples % RAW_FRAME != 0); }

void raw_features(const float *samples, size_t count, float *out) {
    memcpy(out, samples, count * sizeof *out);
    memset(out + count, 0, (raw_frames(count) * RAW_FRAME - count) * sizeof *out);
}
