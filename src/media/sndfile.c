/* FLAC, MP3 and Ogg by libsndfile, from memory. */

#include "media/sound_parts.h"

#include <sndfile.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    sound_reader   reader;
    const uint8_t *bytes;
    sf_count_t     size, at; /* of the file */
    sound_kind     kind;
    SNDFILE       *file;
    sf_count_t     frames, done; /* that the file says it has, and that were read */
} sndfile_reader;

/* ---- libsndfile's view of the memory ---- */

static sf_count_t memory_length(void *user) { return ((sndfile_reader *)user)->size; }

static sf_count_t memory_seek(sf_count_t offset, int whence, void *user) {
    sndfile_reader  *s = user;
    const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? s->at : s->size;
    if (offset < -base || offset > s->size - base) return -1;
    return s->at = base + offset;
}

static sf_count_t memory_read(void *to, sf_count_t count, void *user) {
    sndfile_reader  *s = user;
    const sf_count_t got = count < s->size - s->at ? count : s->size - s->at;
    if (got <= 0) return 0;
    memcpy(to, s->bytes + s->at, (size_t)got);
    s->at += got;
    return got;
}

static sf_count_t memory_tell(void *user) { return ((sndfile_reader *)user)->at; }

/* ---- the reader ---- */

static gm_status sndfile_read(sound_reader *r, float *out, size_t most, size_t *got, error *e) {
    sndfile_reader  *s = (sndfile_reader *)r;
    const sf_count_t frames = sf_readf_float(s->file, out, (sf_count_t)most);
    if (sf_error(s->file))
        return fail(e, GM_BAD_FILE, "the %s file cannot be decoded after %lld samples: %s", sound_kind_name(s->kind),
                    (long long)s->done, sf_strerror(s->file));
    s->done += frames > 0 ? frames : 0;
    /* FLAC says how many samples there are. The other formats do not, so a file that is cut off is a shorter sound. */
    if (frames <= 0 && s->kind == SOUND_FLAC && s->done < s->frames)
        return fail(e, GM_BAD_FILE, "the FLAC file is cut off: it should have %lld samples, but has %lld",
                    (long long)s->frames, (long long)s->done);
    *got = frames > 0 ? (size_t)frames : 0;
    return GM_OK;
}

static void sndfile_close(sound_reader *r) {
    sf_close(((sndfile_reader *)r)->file);
    free(r);
}

gm_status sndfile_open(const void *bytes, size_t size, sound_kind kind, sound_reader **out, error *e) {
    static SF_VIRTUAL_IO io = { memory_length, memory_seek, memory_read, NULL, memory_tell };
    sndfile_reader      *s = calloc(1, sizeof *s);
    SF_INFO              info = { 0 };
    if (!s) return fail_memory(e, "a sound's reader", sizeof *s);
    s->bytes = bytes;
    s->size = (sf_count_t)size;
    s->kind = kind;
    s->file = sf_open_virtual(&io, SFM_READ, &info, s);
    gm_status status = GM_OK;
    if (!s->file)
        status = fail(e, GM_BAD_FILE, "the %s file cannot be decoded: %s", sound_kind_name(kind), sf_strerror(NULL));
    if (!status) status = sound_check_format((uint32_t)info.samplerate, (uint32_t)info.channels, e);
    if (status) {
        if (s->file) sf_close(s->file);
        free(s);
        return status;
    }
    s->frames = info.frames < SF_COUNT_MAX ? info.frames : 0;
    s->reader = (sound_reader){ .rate = (uint32_t)info.samplerate,
                                .channels = (uint32_t)info.channels,
                                .frames = (uint64_t)s->frames,
                                .read = sndfile_read,
                                .close = sndfile_close,
                                .estimated = kind != SOUND_FLAC };
    *out = &s->reader;
    return GM_OK;
}
