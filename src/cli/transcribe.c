/* gemmule transcribe: transcribes the speech in sound files. A file of any length goes through the model in pieces of up to 30 s. */

#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

#include "session/transcript.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    engine_values engine;
    const char   *prompt;
    int           format;
    count_value   max;
    bool          quiet;
} transcribe_values;

static const option_choice formats[] = {
    { "text", TRANSCRIPT_TEXT }, { "srt", TRANSCRIPT_SRT }, { "vtt", TRANSCRIPT_VTT }, { NULL, 0 }
};

static const option transcribe_options[] = {
    TEXT_OPTION(transcribe_values, prompt, "prompt", 0, "TEXT",
                "what to ask about each piece; by default the transcript in the original language"),
    CHOICE_OPTION(transcribe_values, format, "format", 0, "NAME", formats,
                  "text: one line for each piece; srt, vtt: subtitles with the times of the pieces"),
    COUNT_OPTION(transcribe_values, max, "max", 0, "N", 1, UINT32_MAX, "at most N tokens for each piece; default 512"),
    FLAG_OPTION(transcribe_values, quiet, "quiet", 0, "no progress bar"),
};
static const option_group groups[] = {
    OPTION_GROUP("transcript", transcribe_options, 0),
    ENGINE_GROUP(offsetof(transcribe_values, engine)),
};

typedef struct {
    const transcribe_values *values;
    gm_engine               *engine;
    gm_session              *session;
} transcriber;

/* ---- files ---- */

/* The bytes of a sound file: those of standard input, or a mapped file, since recordings may be larger than what input_read takes. */
typedef struct {
    buffer read;
    void  *mapped;
    size_t size;
} sound_input;

static gm_status sound_input_map(sound_input *in, const char *path, int file, error *e) {
    struct stat info;
    if (fstat(file, &info)) return fail(e, GM_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(e, GM_BAD_ARGUMENT, "%s: not a regular file", path);
    if (!info.st_size) return fail(e, GM_BAD_FILE, "%s: the sound is empty: it has 0 bytes", path);
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (bytes == MAP_FAILED) return fail(e, GM_IO, "%s: %s", path, strerror(errno));
    in->mapped = bytes;
    in->size = (size_t)info.st_size;
    return GM_OK;
}

static gm_status sound_input_open(sound_input *in, const char *path, error *e) {
    if (!strcmp(path, "-")) return input_read(path, &in->read, e);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return fail(e, errno == ENOENT ? GM_NOT_FOUND : GM_IO, "%s: %s", path, strerror(errno));
    const gm_status status = sound_input_map(in, path, file, e);
    close(file);
    return status;
}

static void sound_input_close(sound_input *in) {
    buffer_free(&in->read);
    if (in->mapped) munmap(in->mapped, in->size);
}

/* ---- pieces ---- */

/* A file's text must not control a terminal. */
static gm_status transcribe_print(const transcriber *t, const transcript *of, size_t number, error *e) {
    buffer out = { 0 };
    char  *line = malloc(of->text.length + 1);
    if (line) {
        const char *text = printable(buffer_view(&of->text), line, of->text.length + 1);
        transcript_write_piece((transcript_format)t->values->format, number, of->from, of->to, str_of(text), &out);
        if (!out.failed) fwrite(out.data, 1, out.length, stdout);
    }
    const bool complete = line && !out.failed;
    free(line);
    buffer_free(&out);
    return complete ? flush_output(e) : fail_memory(e, "a line of the transcript", of->text.length);
}

/* Decodes, then writes down what is heard. */
static gm_status transcribe_sound(const transcriber *t, transcript *part, error *e) {
    const bool shown = !t->values->quiet && !terminal_output();
    progress   bar;
    size_t     number = 0;
    gm_status  status = GM_AGAIN;
    progress_start(&bar, "reading the sound", PROGRESS_STEPS, !t->values->quiet);
    while (status == GM_AGAIN && part->decoder) {
        progress_update(&bar, sound_decoder_done(part->decoder) / SOUND_RATE,
                        sound_decoder_total(part->decoder) / SOUND_RATE);
        status = interrupted() ? fail(e, GM_CANCELLED, "interrupted") : transcript_next(part, e);
    }
    progress_end(&bar);
    progress_start(&bar, "transcribing", PROGRESS_STEPS, shown);
    if (status == GM_AGAIN) fputs(transcript_head((transcript_format)t->values->format), stdout);
    while (!status || status == GM_AGAIN) {
        status = interrupted() ? fail(e, GM_CANCELLED, "interrupted") : transcript_next(part, e);
        progress_update(&bar, part->from / SOUND_RATE, part->heard.count / SOUND_RATE);
        if (!status && part->text.length) status = transcribe_print(t, part, ++number, e);
    }
    progress_end(&bar);
    return status == GM_DONE ? GM_OK : status;
}

static gm_status transcribe_file(const transcriber *t, const char *path, error *e) {
    const transcript_options options = { .question = t->values->prompt, .most = (uint32_t)t->values->max.value };
    sound_input              in = { 0 };
    transcript               part = { 0 };
    error                    inner = { 0 };
    gm_status                status = sound_input_open(&in, path, e);
    if (!status) {
        status = transcript_start(&part, t->engine, t->session, &options, in.mapped ? in.mapped : in.read.data,
                                  in.mapped ? in.size : in.read.length, &inner);
        if (!status) status = transcribe_sound(t, &part, &inner);
        if (status) fail(e, status, "%s%s%s", in.mapped ? path : "", in.mapped ? ": " : "", inner.why);
    }
    transcript_free(&part);
    sound_input_close(&in);
    return status;
}

static gm_status transcribe_open(transcriber *t, const char *model, error *e) {
    TRY(engine_open(&t->values->engine, model, !t->values->quiet, &t->engine, e));
    TRY(session_open(&t->values->engine, t->engine, 0, &t->session, e));
    interrupt_watch(t->session);
    return interrupted() ? fail(e, GM_CANCELLED, "interrupted") : GM_OK;
}

static int transcribe_run(void *values, const arguments *args) {
    const transcribe_values *v = values;
    const size_t             files = args->count - 1;
    transcriber              t = { .values = v };
    arena                    memory = { 0 };
    model_argument           model = { 0 };
    error                    e = { 0 };
    if (v->format != TRANSCRIPT_TEXT && files > 1)
        return complain_usage("transcribe", "transcribe: --format %s takes one file, found %zu",
                              formats[v->format].name, files);
    interrupt_catch();
    gm_status status = model_argument_resolve(args->positional[0], &memory, &model, &e);
    if (!status) status = transcribe_open(&t, model.engine, &e);
    for (size_t i = 0; i < files && !status; i++) {
        if (files > 1) printf("%s%s:\n", i ? "\n" : "", args->positional[1 + i]);
        status = transcribe_file(&t, args->positional[1 + i], &e);
    }
    interrupt_watch(NULL);
    gm_session_free(t.session);
    gm_engine_close(t.engine);
    arena_free(&memory);
    return status ? complain_error(&e) : EXIT_OK;
}

const command command_transcribe = {
    .name = "transcribe",
    .arguments = "MODEL FILE...",
    .summary = "transcribe the speech in sound files",
    .description =
        "Prints the transcript of each file (WAV, FLAC, MP3, Ogg, Opus; M4A and AAC if ffmpeg is installed; `-` is "
        "standard input). Sound of any length is heard in pieces of up to 30 seconds, each cut at the quietest point "
        "of its last 5, and nothing is left out. The text of a piece is printed when it is complete. The model must "
        "have an audio tower.",
    .examples = "  gemmule transcribe gemma4:e2b interview.mp3\n"
                "  gemmule transcribe gemma4:e4b talk.wav --format srt > talk.srt\n"
                "  gemmule transcribe box digits.wav --prompt \"Which digits do you hear?\"\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 2,
    .most = 1000,
    .values_size = sizeof(transcribe_values),
    .run = transcribe_run,
};
