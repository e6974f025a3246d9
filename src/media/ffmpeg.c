/* M4A, AAC and WebM by the program ffmpeg, if there is one: from one temporary file to another, which is a WAV file. */

#include "media/sound_parts.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Numbers of the files in the child. */
enum { CHILD_IN = 3, CHILD_OUT = 4 };

typedef struct {
    FILE *in, *out, *messages; /* without names: they are gone when they are closed */
} ffmpeg_files;

static void ffmpeg_files_close(ffmpeg_files *f) {
    if (f->in) fclose(f->in);
    if (f->out) fclose(f->out);
    if (f->messages) fclose(f->messages);
}

static gm_status ffmpeg_files_open(ffmpeg_files *f, const void *bytes, size_t size, error *e) {
    *f = (ffmpeg_files){ tmpfile(), tmpfile(), tmpfile() };
    if (f->in && f->out && f->messages && fwrite(bytes, 1, size, f->in) == size && !fflush(f->in)) return GM_OK;
    return fail(e, GM_IO, "the sound cannot be written to a temporary file for ffmpeg: %s", strerror(errno));
}

/* Only the named format, and only local files: a playlist in disguise must not make ffmpeg open anything else. */
static gm_status ffmpeg_start(const ffmpeg_files *f, sound_kind kind, pid_t *child, error *e) {
    const char *format = kind == SOUND_MP4 ? "mov" : kind == SOUND_AAC ? "aac" : "matroska";
    char        seconds[16];
    snprintf(seconds, sizeof seconds, "%d", SOUND_LONGEST + 1);
    const char *const          arguments[] = { "ffmpeg",    "-nostdin",  "-v",    "error", "-protocol_whitelist",
                                               "file",      "-f",        format,  "-i",    "/dev/fd/3",
                                               "-vn",       "-t",        seconds, "-ac",   "1",
                                               "-c:a",      "pcm_s16le", "-f",    "wav",   "-y",
                                               "/dev/fd/4", NULL };
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions)) return fail_memory(e, "the start of ffmpeg", sizeof actions);
    /* First to numbers that nobody else has: 3 may be one of ours. */
    const int in = fileno(f->in), out = fileno(f->out), messages = fileno(f->messages);
    const int spare = (int)max_size((size_t)in, max_size((size_t)out, max_size((size_t)messages, CHILD_OUT))) + 1;
    int       problem = posix_spawn_file_actions_adddup2(&actions, in, spare);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, out, spare + 1);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, messages, STDERR_FILENO);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, spare, CHILD_IN);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, spare + 1, CHILD_OUT);
    if (!problem) problem = posix_spawn_file_actions_addclose(&actions, spare);
    if (!problem) problem = posix_spawn_file_actions_addclose(&actions, spare + 1);
    if (!problem) problem = posix_spawnp(child, "ffmpeg", &actions, NULL, (char *const *)arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (!problem) return GM_OK;
    if (problem == ENOENT)
        return fail(e, GM_UNSUPPORTED,
                    "%s is decoded by the program ffmpeg, which is not installed (apt-get install ffmpeg); "
                    "WAV, FLAC, MP3, Ogg and Opus need no other program",
                    sound_kind_name(kind));
    return fail(e, GM_IO, "ffmpeg cannot be started: %s", strerror(problem));
}

static gm_status ffmpeg_wait(const ffmpeg_files *f, sound_kind kind, pid_t child, error *e) {
    int   how = 0;
    pid_t ended;
    do ended = waitpid(child, &how, 0);
    while (ended < 0 && errno == EINTR);
    if (ended == child && WIFEXITED(how) && !WEXITSTATUS(how)) return GM_OK;
    char why[160] = "";
    rewind(f->messages);
    const size_t length = fread(why, 1, sizeof why - 1, f->messages);
    why[strcspn(why, "\r\n")] = 0;
    return fail(e, GM_BAD_FILE, "ffmpeg cannot decode the %s file: %s", sound_kind_name(kind),
                length ? why : "it gives no reason");
}

/* ---- the reader: that of the WAV file, which is mapped ---- */

typedef struct {
    sound_reader reader, *wav;
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
    free(f);
}

static gm_status ffmpeg_map(ffmpeg_reader *r, FILE *file, error *e) {
    struct stat info;
    if (fstat(fileno(file), &info)) return fail(e, GM_IO, "ffmpeg's output cannot be read: %s", strerror(errno));
    r->size = (size_t)info.st_size;
    if (!r->size) return fail(e, GM_BAD_FILE, "the sound has no samples");
    r->bytes = mmap(NULL, r->size, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    if (r->bytes == MAP_FAILED) {
        r->bytes = NULL;
        return fail(e, GM_IO, "ffmpeg's output cannot be read: %s", strerror(errno));
    }
    TRY(wav_open(r->bytes, r->size, &r->wav, e));
    r->reader = (sound_reader){ r->wav->rate, r->wav->channels, ffmpeg_read, ffmpeg_close };
    return GM_OK;
}

gm_status ffmpeg_open(const void *bytes, size_t size, sound_kind kind, sound_reader **out, error *e) {
    ffmpeg_files   files = { 0 };
    pid_t          child = 0;
    ffmpeg_reader *r = calloc(1, sizeof *r);
    if (!r) return fail_memory(e, "a sound's reader", sizeof *r);
    gm_status status = ffmpeg_files_open(&files, bytes, size, e);
    if (!status) status = ffmpeg_start(&files, kind, &child, e);
    if (!status) status = ffmpeg_wait(&files, kind, child, e);
    if (!status) status = ffmpeg_map(r, files.out, e);
    ffmpeg_files_close(&files);
    if (status) ffmpeg_close(&r->reader);
    else *out = &r->reader;
    return status;
}
