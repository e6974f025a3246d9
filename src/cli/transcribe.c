/* gemmule transcribe: writes down what is said in sound files. A file of any length goes through the model in pieces of up to 30 s. */

#include "cli/answer.h"
#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

#include "media/sound.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum { TRANSCRIPT_TEXT, TRANSCRIPT_SRT } transcript_format;

typedef struct {
    engine_values engine;
    const char   *prompt;
    int           format;
    count_value   max;
    bool          quiet;
} transcribe_values;

static const option_choice formats[] = { { "text", TRANSCRIPT_TEXT }, { "srt", TRANSCRIPT_SRT }, { NULL, 0 } };

static const option transcribe_options[] = {
    TEXT_OPTION(transcribe_values, prompt, "prompt", 0, "TEXT",
                "what to ask about each piece; by default the transcript in the original language"),
    CHOICE_OPTION(transcribe_values, format, "format", 0, "NAME", formats,
                  "text: one line for each piece; srt: subtitles with the times of the pieces"),
    COUNT_OPTION(transcribe_values, max, "max", 0, "N", 1, UINT32_MAX, "at most N tokens for each piece; default 512"),
    FLAG_OPTION(transcribe_values, quiet, "quiet", 0, "no progress bar"),
};
static const option_group groups[] = {
    OPTION_GROUP("transcript", transcribe_options, 0),
    ENGINE_GROUP(offsetof(transcribe_values, engine)),
};

enum { PIECE_TOKENS_MOST = 512 };

#define TRANSCRIBE_PROMPT "Transcribe the speech in its original language. Answer with the transcript only."

typedef struct {
    const transcribe_values *values;
    gm_engine               *engine;
    gm_session              *session;
    gm_sampling              sampling;
    progress                 bar;
    size_t                   number; /* of the subtitle */
} transcriber;

/* ---- files ---- */

/* Recordings may be larger than what input_read takes, so files are mapped. */
static gm_status decode_mapped(const char *path, int file, sound *out, error *e) {
    struct stat info;
    if (fstat(file, &info)) return fail(e, GM_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(e, GM_BAD_ARGUMENT, "%s: not a regular file", path);
    if (!info.st_size) return fail(e, GM_BAD_FILE, "%s: the sound is empty: it has 0 bytes", path);
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (bytes == MAP_FAILED) return fail(e, GM_IO, "%s: %s", path, strerror(errno));
    error           inner = { 0 };
    const gm_status status = sound_decode(bytes, (size_t)info.st_size, out, &inner);
    munmap(bytes, (size_t)info.st_size);
    return status ? fail(e, status, "%s: %s", path, inner.why) : GM_OK;
}

static gm_status decode_file(const char *path, sound *out, error *e) {
    if (!strcmp(path, "-")) {
        buffer    bytes = { 0 };
        gm_status status = input_read(path, &bytes, e);
        if (!status) status = sound_decode(bytes.data, bytes.length, out, e);
        buffer_free(&bytes);
        return status;
    }
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return fail(e, errno == ENOENT ? GM_NOT_FOUND : GM_IO, "%s: %s", path, strerror(errno));
    const gm_status status = decode_mapped(path, file, out, e);
    close(file);
    return status;
}

/* ---- pieces ---- */

static void print_time(size_t samples) {
    const size_t ms = samples * 1000 / SOUND_RATE;
    printf("%02zu:%02zu:%02zu,%03zu", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60, ms % 1000);
}

/* A piece's text is one line: blank lines would end a subtitle. */
static gm_status piece_print(transcriber *t, str text, size_t from, size_t to, error *e) {
    while (text.length && strchr(" \t\r\n", text.data[0])) text = (str){ text.data + 1, text.length - 1 };
    while (text.length && strchr(" \t\r\n", text.data[text.length - 1])) text.length--;
    if (!text.length) return GM_OK; /* nothing was said */
    char *line = malloc(text.length + 1);
    if (!line) return fail_memory(e, "a line of the transcript", text.length);
    if (t->values->format == TRANSCRIPT_SRT) {
        printf("%zu\n", ++t->number);
        print_time(from);
        fputs(" --> ", stdout);
        print_time(to);
        putchar('\n');
    }
    printf("%s\n%s", printable(text, line, text.length + 1), t->values->format == TRANSCRIPT_SRT ? "\n" : "");
    free(line);
    return flush_output(e);
}

static gm_status transcribe_piece(transcriber *t, const float *samples, size_t count, answer *a, error *e) {
    const gm_part parts[] = {
        { .kind = GM_PART_AUDIO, .data = samples, .size = count * sizeof *samples, .rate = SOUND_RATE },
        { .text = t->values->prompt ? t->values->prompt : TRANSCRIBE_PROMPT },
    };
    const gm_message       message = { .role = "user", .parts = parts, .part_count = COUNT_OF(parts) };
    const gm_reply_options options = { .sampling = &t->sampling,
                                       .max_tokens =
                                           t->values->max.given ? (uint32_t)t->values->max.value : PIECE_TOKENS_MOST };
    gm_reply              *reply = NULL;
    char                   why[sizeof e->why] = "";
    gm_status              status = gm_reply_start(t->session, &message, 1, &options, &reply, why, sizeof why);
    if (status) return fail(e, status, "%s", why);
    status = answer_collect(a, reply, &(answer_style){ 0 }, e);
    gm_reply_free(reply);
    return status;
}

static gm_status transcribe_file(transcriber *t, const char *path, error *e) {
    sound     s = { 0 };
    gm_status status = decode_file(path, &s, e);
    progress_start(&t->bar, "transcribing", PROGRESS_STEPS, !t->values->quiet && !terminal_output());
    for (size_t at = 0; at < s.count && !status;) {
        const size_t n = sound_piece(s.samples + at, s.count - at);
        answer       a = { 0 };
        progress_update(&t->bar, at / SOUND_RATE, s.count / SOUND_RATE);
        status = transcribe_piece(t, s.samples + at, n, &a, e);
        if (!status) status = piece_print(t, buffer_view(&a.content), at, at + n, e);
        answer_free(&a);
        at += n;
    }
    progress_end(&t->bar);
    sound_free(&s);
    return status;
}

static gm_status transcribe_open(transcriber *t, const char *model, error *e) {
    TRY(engine_open(&t->values->engine, model, !t->values->quiet, &t->engine, e));
    TRY(session_open(&t->values->engine, t->engine, 0, &t->session, e));
    gm_sampling_default(t->engine, &t->sampling);
    t->sampling.temperature = 0;
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
    if (v->format == TRANSCRIPT_SRT && files > 1)
        return complain_usage("transcribe", "transcribe: --format srt takes one file, found %zu", files);
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
    .summary = "write down what is said in sound files",
    .description =
        "Prints the transcript of each file (WAV, FLAC, MP3, Ogg, Opus; M4A and AAC if ffmpeg is installed; `-` is "
        "standard input). Sound of any length is heard in pieces of up to 30 seconds, each cut at the quietest point "
        "of "
        "its last 5, and nothing is left out. The text of a piece is printed when it is complete. The model must have "
        "an audio tower.",
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
