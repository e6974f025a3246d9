/* M4A, AAC and WebM by the program ffmpeg, if there is one: from one temporary file to another, which is a WAV file. */

#include "media/ffmpeg.h"
#include "media/sound_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Only the named format, and only local files: a playlist in disguise must not make ffmpeg open anything else. */
static gm_status ffmpeg_start_decoding(FILE *in, FILE *out, sound_kind kind, ffmpeg **started, error *e) {
    const char *format = kind == SOUND_MP4 ? "mov" : kind == SOUND_AAC ? "aac" : "matroska";
    char        seconds[16];
    snprintf(seconds, sizeof seconds, "%d", SOUND_LONGEST + 1);
    const char *const arguments[] = { "ffmpeg",    "-nostdin",  "-v",    "error", "-protocol_whitelist",
                                      "file",      "-f",        format,  "-i",    "/dev/fd/3",
                                      "-vn",       "-t",        seconds, "-ac",   "1",
                                      "-c:a",      "pcm_s16le", "-f",    "wav",   "-y",
                                      "/dev/fd/4", NULL };
    return ffmpeg_start(arguments, fileno(in), fileno(out), sound_kind_name(kind),
                        "WAV, FLAC, MP3, Ogg and Opus need no other program", started, e);
}

/* ---- the reader: that of the WAV file, which is mapped ---- */

typedef struct {
    sound_reader reader, *wav;
    ffmpeg      *program; /* NULL: it has ended */
    FILE        *decoded;
    void        *bytes;
    size_t       size;
} ffmpeg_reader;

static gm_status ffmpeg_read(sound_reader *r, float *out, size_t most, size_t *got, error *e) {
    sound_reader *wav = ((ffmpeg_reader *)r)->wav;
    return wav->read(wav, out, most, got, e);
}

static void ffmpeg_close(sound_reader *r) {
    ffmpeg_reader *f = (ffmpeg_reader *)r;
    if (f->wav) f->wav->close(f->wav);
    if (f->bytes) munmap(f->bytes, f->size);
    ffmpeg_free(f->program);
    if (f->decoded) fclose(f->decoded);
    free(f);
}

static gm_status ffmpeg_map(ffmpeg_reader *r, error *e) {
    const int   file = fileno(r->decoded);
    struct stat info;
    if (fstat(file, &info)) return fail(e, GM_IO, "ffmpeg's output cannot be read: %s", strerror(errno));
    r->size = (size_t)info.st_size;
    if (!r->size) return fail(e, GM_BAD_FILE, "the sound has no samples");
    r->bytes = mmap(NULL, r->size, PROT_READ, MAP_PRIVATE, file, 0);
    if (r->bytes == MAP_FAILED) {
        r->bytes = NULL;
        return fail(e, GM_IO, "ffmpeg's output cannot be read: %s", strerror(errno));
    }
    return wav_open(r->bytes, r->size, &r->wav, e);
}

static bool ffmpeg_reader_waits(sound_reader *r) { return ffmpeg_runs(((ffmpeg_reader *)r)->program); }

static gm_status ffmpeg_prepare(sound_reader *reader, double deadline, error *e) {
    ffmpeg_reader  *r = (ffmpeg_reader *)reader;
    const gm_status status = ffmpeg_wait(r->program, deadline, e);
    if (status) return status;
    TRY(ffmpeg_map(r, e));
    reader->rate = r->wav->rate;
    reader->channels = r->wav->channels;
    reader->frames = r->wav->frames;
    reader->prepare = NULL;
    return GM_OK;
}

gm_status ffmpeg_open(const void *bytes, size_t size, sound_kind kind, sound_reader **out, error *e) {
    FILE          *in = tmpfile(); /* without a name: it is gone when it is closed */
    ffmpeg_reader *r = calloc(1, sizeof *r);
    gm_status      status = r ? GM_OK : fail_memory(e, "a sound's reader", sizeof *r);
    if (r) {
        r->reader = (sound_reader){
            .read = ffmpeg_read, .close = ffmpeg_close, .prepare = ffmpeg_prepare, .waits = ffmpeg_reader_waits
        };
        r->decoded = tmpfile();
    }
    if (!status && !(in && r->decoded && fwrite(bytes, 1, size, in) == size && !fflush(in)))
        status = fail(e, GM_IO, "the sound cannot be written to a temporary file for ffmpeg: %s", strerror(errno));
    if (!status) status = ffmpeg_start_decoding(in, r->decoded, kind, &r->program, e);
    if (in) fclose(in);
    if (!status) *out = &r->reader;
    else if (r) ffmpeg_close(&r->reader);
    return status;
}
