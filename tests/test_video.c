/* Videos in messages: from given frames, the prompt, the soft tokens and the logits of the reference; and what a session holds of a video is
 * neither encoded nor computed again.
 *
 *     test_video [cpu|gpu] */

#include "distance.h"
#include "media/ffmpeg.h"
#include "media/picture.h"
#include "read_file.h"
#include "sessions.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static gm_backend device = GM_BACKEND_CPU;

enum { TOTAL = 7, SHOWN = 3, FRAME_TOKENS = 60 };
static const double rate = 3.0 / 64;

/* All frames of the fixture's video, as files and as pixels. */
static buffer  files[TOTAL];
static picture pictures[TOTAL];

static void read_frames(void) {
    error e = { 0 };
    TEST("the frames can be read");
    for (size_t i = 0; i < TOTAL; i++) {
        char path[80];
        snprintf(path, sizeof path, "tests/fixtures/tiny-mm-video/frame-%zu.png", i);
        files[i] = file_read(path);
        CHECK_MESSAGE(!picture_decode(files[i].data, files[i].length, &pictures[i], &e), "%s", e.why);
    }
}

/* Those that the reference chooses. */
static void choose_frames(gm_frame frames[SHOWN], bool raw) {
    for (uint32_t i = 0; i < SHOWN; i++) {
        const uint32_t at = video_frame(i, SHOWN, TOTAL);
        const picture *p = &pictures[at];
        frames[i] = (gm_frame){ .time = at / rate, .data = files[at].data, .size = files[at].length };
        if (raw) frames[i] = (gm_frame){ at / rate, p->pixels, (size_t)p->width * p->height * 3, p->width, p->height };
    }
}

static gm_message about(const gm_frame *frames, gm_part parts[2]) {
    parts[0] = (gm_part){ .kind = GM_PART_VIDEO, .frames = frames, .frame_count = SHOWN };
    parts[1] = (gm_part){ .text = "What happens?" };
    return (gm_message){ .role = "user", .parts = parts, .part_count = 2 };
}

static gm_status ask_video(gm_session *s, const gm_message *messages, size_t count, gm_reply_stats *stats) {
    gm_sampling            greedy;
    const gm_reply_options options = { .sampling = &greedy, .max_tokens = 2 };
    gm_reply              *reply = NULL;
    gm_piece               piece;
    gm_sampling_default(s->engine, &greedy);
    greedy.temperature = 0;
    *stats = (gm_reply_stats){ 0 };
    gm_status status = gm_reply_start(s, messages, count, &options, &reply, why, sizeof why);
    while (!status || status == GM_AGAIN) status = gm_reply_next(reply, &piece, why, sizeof why);
    if (reply) gm_reply_get_stats(reply, stats);
    gm_reply_free(reply);
    return status;
}

/* ---- exactness ---- */

static const void *video_expected(const gguf *file, const char *prefix, const char *name, size_t count) {
    char full[40];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const gguf_tensor *t = gguf_find_tensor(file, full);
    CHECK_MESSAGE(t && t->count == count, "%s", full);
    return t && t->count == count ? gguf_tensor_data(file, t) : NULL;
}

/* The tokens held, the soft tokens among them, and the logits of some tokens are those of the reference. */
static void compare_with_reference(gm_session *s, const gguf *want, const char *prefix, double tolerance) {
    enum { TOKENS = 226, ROWS = 14, VOCABULARY = 640, WIDTH = 64 };
    const int32_t *ids = video_expected(want, prefix, "ids", TOKENS),
                  *rows = video_expected(want, "", "logits_rows", ROWS);
    const float *soft = video_expected(want, prefix, "soft_tokens", SHOWN * FRAME_TOKENS * WIDTH);
    const float *logits = video_expected(want, prefix, "logits", ROWS * VOCABULARY);
    float       *all = malloc(TOKENS * VOCABULARY * sizeof *all);
    error        e = { 0 };
    if (!ids || !rows || !soft || !logits || !all) return;
    CHECK(s->tokens.count >= TOKENS && !memcmp(s->tokens.ids, ids, TOKENS * sizeof *ids));
    CHECK(s->soft.span_count == SHOWN && s->soft.row_count == SHOWN * FRAME_TOKENS);
    const double apart = distance(s->soft.rows, soft, SHOWN * FRAME_TOKENS * WIDTH);
    CHECK_MESSAGE(apart < tolerance, "soft tokens: %g", apart);
    for (size_t i = 0; i < s->soft.span_count; i++)
        CHECK(s->soft.spans[i].block == s->engine->weights.config.image_blocks);
    CHECK(!gm_session_rollback(s, TOKENS, NULL, why, sizeof why));
    CHECK_MESSAGE(!session_logits_held(s, all, &e), "%s", e.why);
    for (size_t i = 0; i < ROWS; i++) {
        const double off = distance(all + (size_t)rows[i] * VOCABULARY, logits + i * VOCABULARY, VOCABULARY);
        CHECK_MESSAGE(off < tolerance, "logits of token %d: %g", rows[i], off);
    }
    free(all);
}

static gm_engine *open_seeing(const char *name) {
    char       path[80];
    const bool blocks = strstr(name, "bidir");
    snprintf(path, sizeof path, "tests/fixtures/%s.gguf", name);
    return open_engine(&(gm_engine_options){ .model = path,
                                             .mmproj = blocks ? "tests/fixtures/tiny-mm-bidir.mmproj.gguf"
                                                              : "tests/fixtures/tiny-mm.mmproj.gguf",
                                             .backend = device,
                                             .threads = 2,
                                             .precise = true });
}

static void exact_videos(const char *name, const char *prefix, bool raw) {
    gguf          *want = NULL;
    error          e = { 0 };
    gm_frame       frames[SHOWN];
    gm_part        parts[2];
    gm_reply_stats stats;
    TEST("%s sees the reference's video, from %s", name, raw ? "pixels" : "files");
    gm_engine  *engine = open_seeing(name);
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    CHECK_MESSAGE(!gguf_open_file("tests/fixtures/tiny-mm-video.expect.gguf", &want, &e), "%s", e.why);
    choose_frames(frames, raw);
    const gm_message message = about(frames, parts);
    CHECK_MESSAGE(s && ask_video(s, &message, 1, &stats) == GM_DONE, "%s", why);
    if (s && want) {
        CHECK(stats.media == SHOWN && stats.media_encoded == SHOWN);
        compare_with_reference(s, want, prefix, device == GM_BACKEND_GPU ? 5e-3 : 1e-4);
    }
    gm_session_free(s);
    gm_engine_close(engine);
    gguf_free(want);
}

/* ---- what a session holds ---- */

static void held_videos(void) {
    gm_engine     *engine = open_seeing("tiny-mm-bidir");
    gm_session    *s = open_session(engine, GM_KV_DEFAULT, 0), *fork = NULL, *again = NULL;
    gm_frame       frames[SHOWN];
    gm_part        parts[2];
    gm_reply_stats stats;
    void          *file = NULL;
    size_t         bytes = 0;
    choose_frames(frames, false);
    const gm_message first = about(frames, parts);
    const gm_message talk[] = { first,
                                { .role = "assistant", .content = "Much." },
                                { .role = "user", .content = "And then?" } };
    TEST("a second question about a video encodes nothing again");
    CHECK(ask_video(s, &first, 1, &stats) == GM_DONE && stats.media_encoded == SHOWN);
    const size_t seen_end = soft_end(&s->soft);
    CHECK(!gm_session_save_buffer(s, &file, &bytes, why, sizeof why) && !gm_session_fork(s, &fork, why, sizeof why));
    CHECK(ask_video(s, talk, 3, &stats) == GM_DONE);
    CHECK_MESSAGE(stats.media == SHOWN && stats.media_encoded == 0 && stats.cached_tokens > seen_end,
                  "%zu encoded, %zu of %zu cached", stats.media_encoded, stats.cached_tokens, seen_end);

    TEST("a fork and a restored session have the video");
    CHECK(ask_video(fork, talk, 3, &stats) == GM_DONE && stats.media_encoded == 0 && stats.cached_tokens > seen_end);
    again = open_session(engine, GM_KV_DEFAULT, 0);
    CHECK_MESSAGE(!gm_session_restore_buffer(again, file, bytes, why, sizeof why), "%s", why);
    CHECK(ask_video(again, talk, 3, &stats) == GM_DONE && stats.media_encoded == 0 && stats.cached_tokens > seen_end);

    TEST("tokens alone do not bring a video to another session");
    const int32_t *ids = NULL;
    const size_t   held = gm_session_tokens(s, &ids);
    gm_session    *bare = open_session(engine, GM_KV_DEFAULT, 0);
    CHECK(gm_session_set(bare, ids, held, why, sizeof why) == GM_BAD_ARGUMENT && strstr(why, "a frame of a video"));
    gm_session_free(bare);

    TEST("at other times the frames are computed again, but not encoded");
    for (size_t i = 0; i < SHOWN; i++) frames[i].time += 60;
    CHECK(ask_video(again, &first, 1, &stats) == GM_DONE && stats.media_encoded == 0 && stats.cached_tokens < 10);

    TEST("one new frame is the only one encoded");
    frames[1].data = files[1].data;
    frames[1].size = files[1].length;
    CHECK(ask_video(again, &first, 1, &stats) == GM_DONE && stats.media_encoded == 1);

    TEST("a picture of the same bytes is not a frame");
    const gm_part picture_part = {
        .kind = GM_PART_IMAGE, .data = files[0].data, .size = files[0].length, .budget = 70
    };
    const gm_message seen = { .role = "user", .parts = &picture_part, .part_count = 1 };
    CHECK(ask_video(again, &seen, 1, &stats) == GM_DONE && stats.media_encoded == 1 && again->soft.span_count == 1);
    gm_free(file);
    gm_session_free(s);
    gm_session_free(fork);
    gm_session_free(again);
    gm_engine_close(engine);
}

/* ---- rendering ---- */

static void rendered_videos(void) {
    gm_engine       *engine = open_seeing("tiny-mm");
    const gm_frame   frames[] = { { .time = 0.9 }, { .time = 61 }, { .time = 6000.5 } };
    const gm_part    parts[] = { { .text = "Before. " },
                                 { .kind = GM_PART_VIDEO, .frames = frames, .frame_count = 3 },
                                 { .text = " After <|video|>" } };
    const gm_message message = { .role = "user", .parts = parts, .part_count = 3 };
    char            *text = NULL;
    TEST("a video in a prompt: times between frames, no space around it");
    CHECK_MESSAGE(!gm_render(engine, &message, 1, NULL, &text, why, sizeof why), "%s", why);
    CHECK_MESSAGE(
        text && strstr(text, "user\nBefore.00:00 <|video|> 01:01 <|video|> 100:00 <|video|>After <|video|><turn|>"),
        "%s", text ? text : "");
    gm_free(text);
    gm_engine_close(engine);
}

/* ---- bad input ---- */

static void refused_videos(void) {
    static gm_frame many[VIDEO_MOST_FRAMES + 1];
    gm_engine      *engine = open_seeing("tiny-mm");
    gm_session     *s = open_session(engine, GM_KV_DEFAULT, 0);
    gm_frame        frames[SHOWN];
    gm_reply_stats  stats;
    choose_frames(frames, false);
    gm_frame backwards[] = { frames[1], frames[0] }, nowhere[] = { frames[0] }, early[] = { frames[0] },
             cut[] = { frames[0], frames[1] }, empty[] = { frames[0], { .time = 9 } },
             wide[] = { frames[0], { .time = 9, .data = pictures[0].pixels, .width = 48, .height = 3, .size = 432 } };
    nowhere[0].time = NAN;
    early[0].time = -1;
    cut[1].size /= 2;
    const struct {
        const char *what;
        gm_part     part;
        gm_status   status;
        const char *says;
    } rows[] = {
        { "no frames", { .frames = frames }, GM_BAD_ARGUMENT, "messages[0].parts[0]: the video has no frames" },
        { "frames that are missing", { .frame_count = 2 }, GM_BAD_ARGUMENT, "the video has no frames" },
        { "too many frames",
          { .frames = many, .frame_count = COUNT_OF(many) },
          GM_BAD_ARGUMENT,
          "at most 512 frames, found 513" },
        { "frames in disorder",
          { .frames = backwards, .frame_count = 2 },
          GM_BAD_ARGUMENT,
          "frame 2 is at 0 s, after" },
        { "no time",
          { .frames = nowhere, .frame_count = 1 },
          GM_BAD_ARGUMENT,
          "frame 1 of the video has no valid time" },
        { "a time before the start", { .frames = early, .frame_count = 1 }, GM_BAD_ARGUMENT, "no valid time: -1 s" },
        { "a damaged frame", { .frames = cut, .frame_count = 2 }, GM_BAD_FILE, "frame 2: " },
        { "an empty frame", { .frames = empty, .frame_count = 2 }, GM_BAD_ARGUMENT, "frame 2: the picture is empty" },
        { "frames of several sizes", { .frames = wide, .frame_count = 2 }, GM_BAD_ARGUMENT, "must have one size" },
        { "a budget that does not exist",
          { .frames = frames, .frame_count = 1, .budget = 60 },
          GM_BAD_ARGUMENT,
          "not 60" },
    };
    for (size_t i = 0; i < COUNT_OF(rows) && s; i++) {
        gm_part part = rows[i].part;
        part.kind = GM_PART_VIDEO;
        TEST("refused: %s", rows[i].what);
        const gm_status status =
            ask_video(s, &(gm_message){ .role = "user", .parts = &part, .part_count = 1 }, 1, &stats);
        CHECK_MESSAGE(status == rows[i].status && strstr(why, rows[i].says), "%d: %s", (int)status, why);
        CHECK(!s->tokens.count);
    }
    const gm_part    both[] = { { .kind = GM_PART_IMAGE, .data = files[0].data, .size = files[0].length },
                                { .kind = GM_PART_VIDEO, .frames = cut, .frame_count = 2 } };
    const gm_message mixed = { .role = "user", .parts = both, .part_count = 2 };
    TEST("refused: a damaged frame after a picture");
    CHECK_MESSAGE(ask_video(s, &mixed, 1, &stats) == GM_BAD_FILE && strstr(why, "the video, number 2 of 2: frame 2: "),
                  "%s", why);
    TEST("refused: a video in a system message");
    const gm_message system = { .role = "system", .parts = both + 1, .part_count = 1 };
    CHECK(ask_video(s, &system, 1, &stats) == GM_BAD_ARGUMENT && strstr(why, "only text, found video"));
    TEST("a video that does not fit in the context is refused before it is encoded");
    gm_session      *narrow = open_session(engine, GM_KV_DEFAULT, 100);
    gm_part          parts[2];
    const gm_message message = about(frames, parts);
    CHECK(ask_video(narrow, &message, 1, &stats) == GM_CONTEXT_FULL && !stats.media_encoded && !narrow->tokens.count);
    gm_session_free(narrow);
    gm_session_free(s);
    gm_engine_close(engine);

    TEST("a model without a tower refuses a video");
    conversation c;
    if (!open_conversation(&c, &(gm_engine_options){ .model = "tests/fixtures/tiny-dense.gguf", .backend = device }))
        return;
    CHECK(ask_video(c.session, &message, 1, &stats) == GM_UNSUPPORTED && strstr(why, "vision"));
    close_conversation(&c);
}

/* ---- files ---- */

#ifdef GM_MEDIA_LIBRARIES

/* A program that stands for ffmpeg: it lists 7 frames out of order, and then writes those of the fixture that it was told to choose. */
static void video_files(void) {
    static const char script[] = "#!/bin/sh\n"
                                 "/bin/grep -q ftyp /dev/fd/3 || exit 1\n"
                                 "case \"$*\" in\n"
                                 "*framecrc*) printf '#tb 0: 1/2\\n0, 0, 1, 1, 9, 0x0\\n0, 1, 7, 1, 9, 0x0\\n' >&4\n"
                                 "    printf '0, 2, 3, 1, 9, 0x0\\n0, 3, 5, 1, 9, 0x0\\n0, 4, 13, 1, 9, 0x0\\n0, 5, 9, "
                                 "1, 9, 0x0\\n0, 6, 11, 1, 9, 0x0\\n' >&4 ;;\n"
                                 "*'eq(floor(ceil(n*3/7)*7/3),n)'*) cd tests/fixtures/tiny-mm-video\n"
                                 "    /bin/cat frame-0.png frame-2.png frame-4.png >&4 ;;\n"
                                 "*) echo 'moov atom not found' >&2; exit 1 ;;\n"
                                 "esac\n";
    char              folder[] = "/tmp/gemmule-test-XXXXXX", program[64], *path = strdup(getenv("PATH"));
    FILE             *film = tmpfile();
    buffer            bytes = { 0 };
    video_shot       *shots = NULL;
    size_t            count = 0;
    error             e = { 0 };
    CHECK(film &&
          fwrite("\0\0\0\x18"
                 "ftypmp42",
                 1, 12, film) == 12 &&
          !fflush(film));
    TEST("a video file without ffmpeg is refused with a hint");
    CHECK(mkdtemp(folder) && !setenv("PATH", folder, 1));
    CHECK(ffmpeg_video(fileno(film), 3, &bytes, &shots, &count, &e) == GM_UNSUPPORTED && !shots &&
          strstr(e.why, "MP4 is decoded by the program ffmpeg") && strstr(e.why, "a folder with the frames"));
    snprintf(program, sizeof program, "%s/ffmpeg", folder);
    FILE *f = fopen(program, "w");
    CHECK(f && fputs(script, f) >= 0 && !fclose(f) && !chmod(program, 0755));

    TEST("the frames of a file and their times, in the order in which they are shown");
    e = (error){ 0 };
    CHECK_MESSAGE(!ffmpeg_video(fileno(film), 3, &bytes, &shots, &count, &e), "%s", e.why);
    CHECK(count == 3);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = video_frame(i, 3, TOTAL);
        CHECK_MESSAGE(shots[i].time == at, "%g", shots[i].time);
        CHECK(shots[i].size == files[at].length &&
              !memcmp(bytes.data + shots[i].begin, files[at].data, files[at].length));
    }
    free(shots);

    TEST("ffmpeg's complaint is passed on");
    e = (error){ 0 };
    CHECK(ffmpeg_video(fileno(film), 2, &bytes, &shots, &count, &e) == GM_BAD_FILE &&
          strstr(e.why, "ffmpeg cannot decode the MP4 file: moov atom not found"));
    buffer_free(&bytes);
    if (film) fclose(film);
    remove(program);
    rmdir(folder);
    setenv("PATH", path, 1);
    free(path);
}

#endif

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    read_frames();
    exact_videos("tiny-mm-bidir", "bidir.", false);
    if (device == GM_BACKEND_CPU) {
        exact_videos("tiny-mm", "", true);
        held_videos();
        rendered_videos();
        refused_videos();
#ifdef GM_MEDIA_LIBRARIES
        video_files();
#endif
    }
    for (size_t i = 0; i < TOTAL; i++) {
        picture_free(&pictures[i]);
        buffer_free(&files[i]);
    }
    return test_end();
}
