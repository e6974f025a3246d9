/* Messages with pictures and sounds: the model in the box sees and hears, and what a session holds is neither encoded nor computed again.
 *
 *     test_media [cpu | gpu [long]] */

#include "media/sound.h"
#include "read_file.h"
#include "sessions.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static gm_backend device = GM_BACKEND_CPU;

/* Two pictures and a sound ("5 6 7 2") of the held-out set. */
static buffer shapes, digits, spoken;

static gm_part picture_part(const buffer *file) {
    return (gm_part){ .kind = GM_PART_IMAGE, .data = file->data, .size = file->length };
}

static gm_part sound_part(const buffer *file) {
    return (gm_part){ .kind = GM_PART_AUDIO, .data = file->data, .size = file->length };
}

static gm_part text_part(const char *text) { return (gm_part){ .text = text }; }

/* An answer, its statistics, and how it ended. */
typedef struct {
    gm_status      status;
    char           text[1000];
    gm_reply_stats stats;
    size_t         told; /* of the pictures, by pieces of progress */
} answer;

static answer ask(gm_session *s, const gm_message *messages, size_t count, uint32_t most) {
    gm_sampling            greedy;
    const gm_reply_options options = { .sampling = &greedy, .max_tokens = most };
    gm_reply              *reply = NULL;
    gm_piece               piece;
    answer                 a = { 0 };
    gm_sampling_default(s->engine, &greedy);
    greedy.temperature = 0;
    a.status = gm_reply_start(s, messages, count, &options, &reply, why, sizeof why);
    while (!a.status || a.status == GM_AGAIN) {
        a.status = gm_reply_next(reply, &piece, why, sizeof why);
        if (a.status) continue;
        if (piece.kind == GM_PIECE_CONTENT) strncat(a.text, piece.text, sizeof a.text - strlen(a.text) - 1);
        if (piece.kind == GM_PIECE_PROGRESS && piece.media_total) a.told++;
    }
    if (reply) gm_reply_get_stats(reply, &a.stats);
    gm_reply_free(reply);
    return a;
}

static conversation open_box(void) {
    conversation            c = { 0 };
    const gm_engine_options options = { .model = "models/box.gguf", .backend = device, .threads = 2 };
    open_conversation(&c, &options);
    return c;
}

#define SEEN "I see a small green triangle at the top and a large purple circle at the bottom right"

/* ---- one picture, and what follows ---- */

enum { SOFT = 63 }; /* 192 x 255 at 70 tokens: 7 x 9 */

static size_t soft_held(const gm_session *s) {
    return s->soft.span_count ? s->soft.spans[s->soft.span_count - 1].count : 0;
}

static void second_questions(gm_session *s, const gm_message *talk, size_t held) {
    void  *file = NULL;
    size_t bytes = 0;
    answer a;

    TEST("a saved session restores its picture");
    gm_session *again = open_session(s->engine, GM_KV_DEFAULT, 0);
    CHECK_MESSAGE(!gm_session_save_buffer(s, &file, &bytes, why, sizeof why), "%s", why);
    CHECK_MESSAGE(!gm_session_restore_buffer(again, file, bytes, why, sizeof why), "%s", why);
    gm_free(file);
    a = ask(again, talk, 3, 20);
    CHECK_MESSAGE(a.status == GM_DONE, "%s", why);
    CHECK_MESSAGE(a.stats.media == 1 && a.stats.media_encoded == 0 && a.stats.cached_tokens == held,
                  "%zu encoded, %zu of %zu cached", a.stats.media_encoded, a.stats.cached_tokens, held);
    gm_session_free(again);

    TEST("a session set to its own tokens keeps its picture");
    const int32_t *ids = NULL;
    const size_t   count = gm_session_tokens(s, &ids);
    int32_t       *own = malloc((count + 1) * sizeof *own);
    memcpy(own, ids, count * sizeof *own);
    own[count] = own[count - 1];
    gm_status status;
    for (size_t n = count + 1; n >= count - 1; n--) { /* further, as it is, and back */
        while ((status = gm_session_set(s, own, n, why, sizeof why)) == GM_AGAIN) {}
        CHECK_MESSAGE(!status && soft_held(s) == SOFT && gm_session_tokens(s, NULL) == n, "%zu: %s", n, why);
    }
    while ((status = gm_session_set(s, own, count, why, sizeof why)) == GM_AGAIN) {}
    CHECK(!status);

    TEST("tokens alone do not bring a picture to another session");
    again = open_session(s->engine, GM_KV_DEFAULT, 0);
    CHECK(gm_session_set(again, own, count, why, sizeof why) == GM_BAD_ARGUMENT && strstr(why, "stands for a picture"));
    CHECK(gm_session_append(again, own, count, why, sizeof why) == GM_BAD_ARGUMENT && !gm_session_tokens(again, NULL));
    const size_t  soft = s->soft.spans[0].begin;
    const int32_t lone[] = { own[soft - 1], own[soft], own[soft + SOFT] };
    while ((status = gm_session_set(again, lone, COUNT_OF(lone), why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "one soft token alone is text: %s", why);
    a = ask(again, talk, 3, 20);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media_encoded == 1, "after that, a reply does: %s", why);
    gm_session_free(again);
    free(own);

    TEST("a fork has the picture");
    gm_session *fork = NULL;
    CHECK_MESSAGE(!gm_session_fork(s, &fork, why, sizeof why), "%s", why);
    a = ask(fork, talk, 3, 20);
    CHECK(a.status == GM_DONE && a.stats.media_encoded == 0 && a.stats.cached_tokens == held);
    gm_session_free(fork);

    TEST("a second question about a picture encodes and computes nothing again");
    a = ask(s, talk, 3, 20);
    CHECK_MESSAGE(a.status == GM_DONE, "%s", why);
    CHECK_MESSAGE(a.stats.media == 1 && a.stats.media_encoded == 0 && !a.told, "%zu encoded", a.stats.media_encoded);
    CHECK_MESSAGE(a.stats.cached_tokens == held, "%zu of %zu cached", a.stats.cached_tokens, held);
}

/* Questions about held-out pictures and sounds, on the CPU and on a GPU: the answers are the same. A GPU in software writes two tokens per
 * second, so most of these answers are short. Only the first has a second question after it: what follows does not depend on the backend. */
static bool all_held_out;
static const struct {
    const char *file, *text;
} held_out[] = {
    { "pictures/00.jpg", "What is in the picture?" },
    { "sounds/00.wav", "Which digits do you hear?" },
    { "pictures/04.jpg", "How many shapes do you see?" },
    { "pictures/07.jpg", "How many shapes do you see?" },
    { "pictures/10.png", "How many shapes are in the picture?" },
    { "pictures/26.jpg", "What colour is the background?" },
    { "pictures/44.jpg", "What number is this?" },
    { "pictures/75.png", "Which number is written here?" },
    { "pictures/79.jpg", "What number is this?" },
    { "sounds/02.wav", "Write down the digits." },
    { "sounds/07.wav", "What digits are spoken?" },
    { "sounds/25.wav", "What do you hear?" },
    { "sounds/31.wav", "Write down what is said." },
    { "sounds/20.wav", "Does the tone rise or fall?" },
};

/* Six of them, unless all are wanted. */
static bool is_asked(size_t i) { return all_held_out || i < 2 || i % 3 == 2; }

static answer ask_about(gm_session *s, size_t i) {
    char path[64];
    snprintf(path, sizeof path, "tests/box/%s", held_out[i].file);
    buffer        file = file_read(path);
    const gm_part parts[] = { strstr(path, ".wav") ? sound_part(&file) : picture_part(&file),
                              text_part(held_out[i].text) };
    const gm_message message = { .role = "user", .parts = parts, .part_count = 2 };
    answer           a = ask(s, &message, 1, 60);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media == 1, "%s", why);
    buffer_free(&file);
    return a;
}

static void seen_and_heard(void) {
    answer       wanted[COUNT_OF(held_out)], a;
    conversation c;
    TEST("what the box answers on the CPU");
    device = GM_BACKEND_CPU;
    c = open_box();
    for (size_t i = 0; i < COUNT_OF(held_out); i++) {
        if (is_asked(i)) wanted[i] = ask_about(c.session, i);
    }
    close_conversation(&c);
    CHECK_MESSAGE(strstr(wanted[0].text, SEEN) && strstr(wanted[1].text, "5 6 7 2"), "%s %s", wanted[0].text,
                  wanted[1].text);

    device = GM_BACKEND_GPU;
    c = open_box();
    for (size_t i = 0; i < COUNT_OF(held_out); i++) {
        if (!is_asked(i)) continue;
        TEST("%s on a GPU", held_out[i].file);
        a = ask_about(c.session, i);
        CHECK_MESSAGE(!strcmp(a.text, wanted[i].text), "'%s', not '%s'", a.text, wanted[i].text);
        CHECK(a.stats.media_encoded == (i != 1)); /* the second one was there before */
        if (i) continue;
        TEST("a sound after the answer on a GPU: the picture is neither encoded nor computed again");
        const gm_part    seen[] = { picture_part(&shapes), text_part(held_out[0].text) };
        const gm_part    heard[] = { sound_part(&spoken), text_part(held_out[1].text) };
        const gm_message talk[] = { { .role = "user", .parts = seen, .part_count = 2 },
                                    { .role = "assistant", .content = a.text },
                                    { .role = "user", .parts = heard, .part_count = 2 } };
        const size_t     held = a.stats.prompt_tokens + a.stats.reply_tokens;
        a = ask(c.session, talk, 3, 20);
        CHECK_MESSAGE(a.status == GM_DONE && a.stats.media_encoded == 1 && a.stats.cached_tokens == held,
                      "%zu encoded, %zu of %zu cached", a.stats.media_encoded, a.stats.cached_tokens, held);
    }
    close_conversation(&c);
}

static void one_picture(void) {
    conversation     c = open_box();
    gm_session      *s = c.session;
    const gm_part    parts[] = { picture_part(&shapes), text_part("What is in the picture?") };
    const gm_message first = { .role = "user", .parts = parts, .part_count = 2 };
    TEST("the box sees a picture");
    answer a = ask(s, &first, 1, 60);
    CHECK_MESSAGE(a.status == GM_DONE && strstr(a.text, SEEN), "%s%s", a.text, a.status == GM_DONE ? "" : why);
    CHECK(a.stats.media == 1 && a.stats.media_encoded == 1 && a.stats.cached_tokens == 0);
    CHECK_MESSAGE(soft_held(s) == SOFT, "%zu soft tokens", soft_held(s));

    const gm_message talk[] = { first,
                                { .role = "assistant", .content = a.text },
                                { .role = "user", .content = "What is at the top?" } };
    second_questions(s, talk, a.stats.prompt_tokens + a.stats.reply_tokens);

    TEST("other text before a picture: it is computed again, but not encoded");
    const gm_message moved[] = { { .role = "system", .content = "Be brief." }, first };
    a = ask(s, moved, 2, 60);
    CHECK(a.status == GM_DONE && a.stats.media_encoded == 0 && a.stats.cached_tokens < 10);

    TEST("the same pixels, raw and in another budget, are another picture");
    static uint8_t pixels[64 * 64 * 3];
    const gm_part  raw[] = {
        { .kind = GM_PART_IMAGE, .data = pixels, .size = sizeof pixels, .width = 64, .height = 64, .budget = 140 },
        text_part("What is in the picture?")
    };
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i % 3 ? 250 : 20);
    a = ask(s, &(gm_message){ .role = "user", .parts = raw, .part_count = 2 }, 1, 8);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media_encoded == 1 && soft_held(s) == 121, "%zu soft tokens",
                  soft_held(s));

    TEST("after a rollback the picture is encoded again");
    CHECK(!gm_session_rollback(s, 0, NULL, why, sizeof why));
    a = ask(s, &first, 1, 60);
    CHECK(a.status == GM_DONE && a.stats.media_encoded == 1 && strstr(a.text, SEEN));

    TEST("a reply whose picture the session forgot is refused each time");
    gm_reply *r = NULL;
    gm_piece  piece;
    CHECK(!gm_reply_start(s, &first, 1, NULL, &r, why, sizeof why));
    CHECK(!gm_session_rollback(s, 0, NULL, why, sizeof why));
    for (int i = 0; i < 2; i++) {
        CHECK(r && gm_reply_next(r, &piece, why, sizeof why) == GM_BAD_ARGUMENT);
        CHECK_MESSAGE(strstr(why, "its session was changed after it was started"), "%s", why);
    }
    gm_reply_free(r);
    close_conversation(&c);
}

static void two_pictures(void) {
    conversation     c = open_box();
    const gm_part    parts[] = { picture_part(&shapes), picture_part(&digits), text_part("What is in the picture?") };
    const gm_message message = { .role = "user", .parts = parts, .part_count = 3 };
    TEST("two pictures in a message");
    answer a = ask(c.session, &message, 1, 4);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media == 2 && a.stats.media_encoded == 2, "%s", why);
    CHECK(c.session->soft.span_count == 2 &&
          c.session->soft.spans[1].begin >= c.session->soft.spans[0].begin + SOFT + 2);
    TEST("the same picture twice, later");
    const gm_part    more[] = { picture_part(&digits), text_part("And this?"), picture_part(&digits) };
    const gm_message talk[] = { message,
                                { .role = "assistant", .content = a.text },
                                { .role = "user", .parts = more, .part_count = 3 } };
    a = ask(c.session, talk, 3, 4);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media == 4 && a.stats.media_encoded == 0, "%zu encoded: %s",
                  a.stats.media_encoded, why);
    CHECK(c.session->soft.span_count == 4);
    close_conversation(&c);
}

/* ---- sounds ---- */

static void one_sound(void) {
    conversation     c = open_box();
    sound            s = { 0 };
    error            e = { 0 };
    const gm_part    parts[] = { sound_part(&spoken), text_part("Which digits do you hear?") };
    const gm_message first = { .role = "user", .parts = parts, .part_count = 2 };
    CHECK(!sound_decode(spoken.data, spoken.length, &s, &e));
    TEST("the box hears a sound");
    answer a = ask(c.session, &first, 1, 20);
    CHECK_MESSAGE(a.status == GM_DONE && strstr(a.text, "5 6 7 2"), "%s%s", a.text, a.status == GM_DONE ? "" : why);
    CHECK(a.stats.media == 1 && a.stats.media_encoded == 1 && soft_held(c.session) == mel_tokens(mel_valid(s.count)));

    TEST("a second question about a sound encodes and computes nothing again");
    const gm_message talk[] = { first,
                                { .role = "assistant", .content = a.text },
                                { .role = "user", .content = "Hello!" } };
    const size_t     held = a.stats.prompt_tokens + a.stats.reply_tokens;
    a = ask(c.session, talk, 3, 4);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media_encoded == 0 && a.stats.cached_tokens == held,
                  "%zu of %zu cached", a.stats.cached_tokens, held);

    TEST("the same sound as samples is the same sound, after a picture");
    const gm_part raw[] = {
        picture_part(&shapes),
        { .kind = GM_PART_AUDIO, .data = s.samples, .size = s.count * sizeof(float), .rate = SOUND_RATE },
        text_part("Which digits do you hear?")
    };
    const gm_message mixed = { .role = "user", .parts = raw, .part_count = 3 };
    a = ask(c.session, &mixed, 1, 4);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media == 2 && a.stats.media_encoded == 1, "%zu encoded; %s",
                  a.stats.media_encoded, why);
    CHECK(c.session->soft.span_count == 2);

    TEST("a sound of 40 s becomes two pieces, and nothing is left out");
    const size_t  total = 40 * SOUND_RATE;
    float        *samples = calloc(total, sizeof *samples);
    const gm_part long_parts[] = {
        { .kind = GM_PART_AUDIO, .data = samples, .size = total * sizeof *samples, .rate = SOUND_RATE },
        text_part("Which digits do you hear?")
    };
    const gm_message long_message = { .role = "user", .parts = long_parts, .part_count = 2 };
    memcpy(samples, s.samples, s.count * sizeof *samples);
    gm_session *wide = open_session(c.engine, GM_KV_DEFAULT, 0);
    a = ask(wide, &long_message, 1, 4);
    size_t tokens = 0;
    for (size_t i = 0; i < wide->soft.span_count; i++) tokens += wide->soft.spans[i].count;
    CHECK_MESSAGE(a.status == GM_DONE && wide->soft.span_count == 2, "%zu spans; %s", wide->soft.span_count, why);
    CHECK_MESSAGE(tokens >= 40 * 25 - 2 && tokens <= 40 * 25, "%zu soft tokens", tokens);
    gm_session_free(wide);
    free(samples);
    sound_free(&s);
    close_conversation(&c);
}

static void refused_sounds(void) {
    static const float few[160], nan_samples[200] = { [7] = NAN };
    gm_part            cut = sound_part(&spoken);
    conversation       c = open_box();
    cut.size /= 2;
    const struct {
        const char *what;
        gm_part     part;
        gm_status   status;
        const char *says;
    } rows[] = {
        { "a sound that is cut off", cut, GM_BAD_FILE, "cut off" },
        { "a picture as a sound",
          { .kind = GM_PART_AUDIO, .data = shapes.data, .size = shapes.length },
          GM_BAD_FILE,
          "it is a JPEG picture" },
        { "no bytes of sound", { .kind = GM_PART_AUDIO }, GM_BAD_ARGUMENT, "the sound is empty" },
        { "10 ms of sound",
          { .kind = GM_PART_AUDIO, .data = few, .size = sizeof few, .rate = 16000 },
          GM_BAD_FILE,
          "too short" },
        { "half a sample",
          { .kind = GM_PART_AUDIO, .data = few, .size = 639, .rate = 16000 },
          GM_BAD_ARGUMENT,
          "4 bytes each" },
        { "a sample that is no number",
          { .kind = GM_PART_AUDIO, .data = nan_samples, .size = sizeof nan_samples, .rate = 16000 },
          GM_BAD_FILE,
          "sample 7" },
        { "an impossible rate",
          { .kind = GM_PART_AUDIO, .data = few, .size = sizeof few, .rate = 7 },
          GM_BAD_FILE,
          "7 samples per second" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("refused: %s", rows[i].what);
        const answer a = ask(c.session, &(gm_message){ .role = "user", .parts = &rows[i].part, .part_count = 1 }, 1, 4);
        CHECK_MESSAGE(a.status == rows[i].status && strstr(why, rows[i].says), "%d: %s", (int)a.status, why);
    }
    close_conversation(&c);
}

/* Three hours at 1 kHz. The first sample is no number: that is found only if it is decoded. */
static void long_sounds(void) {
    enum { HOURS = 3, RATE = 1000, SAMPLES = HOURS * 3600 * RATE };
    conversation c = open_box();
    float       *samples = calloc(SAMPLES, sizeof *samples);
    TEST("a sound of three hours does not fit in the context, and is refused before it is decoded");
    if (samples && c.session) {
        samples[0] = NAN;
        const gm_part parts[] = {
            picture_part(&shapes),
            { .kind = GM_PART_AUDIO, .data = samples, .size = SAMPLES * sizeof *samples, .rate = RATE }
        };
        const answer a = ask(c.session, &(gm_message){ .role = "user", .parts = parts, .part_count = 2 }, 1, 4);
        CHECK_MESSAGE(a.status == GM_CONTEXT_FULL && strstr(why, "more than 270,063 tokens"), "%d: %s", (int)a.status,
                      why);
    }
    free(samples);
    close_conversation(&c);
}

/* The header of an MP3 may be wrong. Here it says that 0.3 s have 100,000 frames of 576 samples. */
static void estimated_sounds(void) {
    buffer       file = file_read("tests/fixtures/sounds/tone-22050.mp3");
    conversation c = open_box();
    gm_session  *tight = open_session(c.engine, GM_KV_DEFAULT, 64);
    char        *header = NULL;
    TEST("an MP3 is not refused because of the length that its header claims");
    for (size_t i = 0; i + 12 <= file.length && !header; i++) {
        if (!memcmp(file.data + i, "Xing", 4) || !memcmp(file.data + i, "Info", 4)) header = file.data + i;
    }
    CHECK(header && header[7] & 1); /* it has the number of frames */
    if (header) memcpy(header + 8, "\0\1\x86\xa0", 4);
    const gm_part part = sound_part(&file);
    const answer  a = ask(tight, &(gm_message){ .role = "user", .parts = &part, .part_count = 1 }, 1, 2);
    CHECK_MESSAGE(a.status == GM_DONE && a.stats.media == 1, "%s", why);
    gm_session_free(tight);
    close_conversation(&c);
    buffer_free(&file);
}

/* ---- interrupted ---- */

static void interrupted_encoding(void) {
    conversation     c = open_box();
    gm_reply        *reply = NULL;
    gm_piece         piece;
    const gm_part    parts[] = { picture_part(&shapes), text_part("What is in the picture?") };
    const gm_message message = { .role = "user", .parts = parts, .part_count = 2 },
                     hello = { .role = "user", .content = "Hello!" };
    c.engine->turn_seconds = 0; /* every call returns after a step */
    TEST("a cancel while a picture is encoded");
    CHECK(ask(c.session, &hello, 1, 4).status == GM_DONE);
    const size_t held = c.session->tokens.count;
    CHECK(!gm_reply_start(c.session, &message, 1, NULL, &reply, why, sizeof why));
    gm_status status = gm_reply_next(reply, &piece, why, sizeof why);
    CHECK_MESSAGE((status == GM_OK && piece.kind == GM_PIECE_PROGRESS && piece.media_total == 1) || status == GM_AGAIN,
                  "%d", (int)status);
    gm_session_cancel(c.session);
    CHECK(gm_reply_next(reply, &piece, why, sizeof why) == GM_CANCELLED);
    gm_reply_free(reply);
    CHECK(c.session->tokens.count == held);
    TEST("a reply that is freed while a picture is encoded, and one that loses its session");
    CHECK(!gm_reply_start(c.session, &message, 1, NULL, &reply, why, sizeof why));
    gm_reply_next(reply, &piece, why, sizeof why);
    gm_reply_free(reply);
    answer a = ask(c.session, &message, 1, 60);
    CHECK_MESSAGE(a.status == GM_DONE && strstr(a.text, SEEN), "%s", a.text);
    gm_session *other = open_session(c.engine, GM_KV_DEFAULT, 0);
    CHECK(!gm_reply_start(other, &message, 1, NULL, &reply, why, sizeof why));
    gm_reply_next(reply, &piece, why, sizeof why);
    gm_session_free(other);
    CHECK(gm_reply_next(reply, &piece, why, sizeof why) == GM_BAD_ARGUMENT);
    gm_reply_free(reply);

    /* With limited memory, another tower waits until no job uses this one. */
    TEST("a reply that is stopped frees the tower, and so does one that is superseded");
    const size_t *jobs = &c.engine->towers[TOWER_VISION].jobs;
    gm_reply     *second = NULL;
    for (int stopped = 0; stopped < 2; stopped++) {
        CHECK(!gm_session_rollback(c.session, 0, NULL, why, sizeof why));
        CHECK(!gm_reply_start(c.session, &message, 1, NULL, &reply, why, sizeof why));
        CHECK(!status_failed(gm_reply_next(reply, &piece, why, sizeof why)) && *jobs == 1);
        CHECK(!gm_reply_start(c.session, &hello, 1, NULL, &second, why, sizeof why));
        if (stopped) gm_reply_stop(reply);
        else CHECK(!status_failed(gm_reply_next(second, &piece, why, sizeof why)));
        CHECK_MESSAGE(*jobs == 0, "%zu jobs", *jobs);
        gm_reply_free(second);
        gm_reply_free(reply);
    }
    close_conversation(&c);
}

/* A program that stands for ffmpeg and does not end. */
static void cancelled_decoding(void) {
    static const char m4a[] = "\0\0\0\x18"
                              "ftypM4A \0\0\0\0M4A mp42";
    const gm_part     part = { .kind = GM_PART_AUDIO, .data = m4a, .size = sizeof m4a };
    const gm_message  message = { .role = "user", .parts = &part, .part_count = 1 };
    char              folder[] = "/tmp/gemmule-test-XXXXXX", program[64], *path = strdup(getenv("PATH"));
    conversation      c = open_box();
    TEST("a cancel while ffmpeg decodes a sound");
    CHECK(mkdtemp(folder) && !setenv("PATH", folder, 1));
    snprintf(program, sizeof program, "%s/ffmpeg", folder);
    FILE *f = fopen(program, "w");
    fprintf(f, "#!/bin/sh\nexec /bin/sleep 1000\n");
    fclose(f);
    chmod(program, 0755);
    gm_session_cancel(c.session);
    CHECK_MESSAGE(ask(c.session, &message, 1, 4).status == GM_CANCELLED && strstr(why, "a sound was decoded"), "%s",
                  why);
    const gm_message hello = { .role = "user", .content = "Hello!" };
    CHECK(ask(c.session, &hello, 1, 4).status == GM_DONE);
    remove(program);
    rmdir(folder);
    setenv("PATH", path, 1);
    free(path);
    close_conversation(&c);
}

/* ---- bad input ---- */

static void refusals(void) {
    static const uint8_t pixels[12] = { 0 };
    gm_part              whole = picture_part(&shapes), cut = whole, wrong = whole;
    conversation         c = open_box();
    cut.size /= 2;
    wrong.budget = 100;
    const struct {
        const char *what;
        gm_message  message;
        gm_status   status;
        const char *says;
    } rows[] = {
        { "a damaged picture", { .role = "user", .parts = &cut, .part_count = 1 }, GM_BAD_FILE, "cut off" },
        { "a budget that does not exist",
          { .role = "user", .parts = &wrong, .part_count = 1 },
          GM_BAD_ARGUMENT,
          "not 100" },
        { "no bytes",
          { .role = "user", .parts = &(gm_part){ .kind = GM_PART_IMAGE }, .part_count = 1 },
          GM_BAD_ARGUMENT,
          "0 bytes" },
        { "no picture",
          { .role = "user", .parts = &(gm_part){ .kind = GM_PART_IMAGE, .data = "hello", .size = 5 }, .part_count = 1 },
          GM_BAD_FILE,
          "not a picture" },
        { "too few pixels",
          { .role = "user",
            .parts = &(gm_part){ .kind = GM_PART_IMAGE, .data = pixels, .size = 12, .width = 3, .height = 2 },
            .part_count = 1 },
          GM_BAD_ARGUMENT,
          "3 x 2 pixels" },
        { "content and parts",
          { .role = "user", .content = "x", .parts = &whole, .part_count = 1 },
          GM_BAD_ARGUMENT,
          "both content and parts" },
        { "parts that are missing", { .role = "user", .part_count = 1 }, GM_BAD_ARGUMENT, "parts is NULL" },
        { "a picture in a system message",
          { .role = "system", .parts = &whole, .part_count = 1 },
          GM_BAD_ARGUMENT,
          "only text, found image" },
        { "a kind that does not exist",
          { .role = "user", .parts = &(gm_part){ .kind = (gm_part_kind)7 }, .part_count = 1 },
          GM_BAD_ARGUMENT,
          "kind 7" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("refused: %s", rows[i].what);
        const answer a = ask(c.session, &rows[i].message, 1, 4);
        CHECK(a.status == rows[i].status);
        CHECK_MESSAGE(strstr(why, rows[i].says), "%s", why);
    }
    TEST("a picture that does not fit in the context is refused by its header");
    gm_session      *tight = open_session(c.engine, GM_KV_DEFAULT, 200);
    gm_part          header = picture_part(&digits);
    const gm_message damaged = { .role = "user", .parts = &header, .part_count = 1 };
    header.size = 40;
    CHECK(ask(tight, &damaged, 1, 4).status == GM_BAD_FILE);
    header.budget = 1120;
    CHECK_MESSAGE(ask(tight, &damaged, 1, 4).status == GM_CONTEXT_FULL && strstr(why, "the context holds 200"), "%s",
                  why);
    gm_session_free(tight);
    TEST("a picture that does not fit in the context is refused before it is encoded");
    gm_session      *narrow = open_session(c.engine, GM_KV_DEFAULT, 64);
    const gm_message message = { .role = "user", .parts = &whole, .part_count = 1 };
    answer           a = ask(narrow, &message, 1, 4);
    CHECK(a.status == GM_CONTEXT_FULL && a.stats.media_encoded == 0 && narrow->tokens.count == 0);
    gm_session_free(narrow);
    close_conversation(&c);

    TEST("a model without a tower refuses a picture, and goes on");
    const gm_engine_options options = { .model = "tests/fixtures/tiny-dense.gguf", .backend = device, .threads = 2 };
    if (!open_conversation(&c, &options)) return;
    const gm_message hello = { .role = "user", .content = "Hello!" };
    const answer     before = ask(c.session, &hello, 1, 4);
    a = ask(c.session, &message, 1, 4);
    CHECK_MESSAGE(a.status == GM_UNSUPPORTED && strstr(why, "vision"), "%s", why);
    a = ask(c.session, &hello, 1, 4);
    CHECK(a.status == GM_DONE && !strcmp(a.text, before.text) &&
          a.stats.cached_tokens >= before.stats.prompt_tokens - 1);
    close_conversation(&c);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    all_held_out = argc > 2 && !strcmp(argv[2], "long");
    shapes = file_read("tests/box/pictures/00.jpg");
    digits = file_read("tests/box/pictures/05.png");
    spoken = file_read("tests/box/sounds/00.wav");
    if (device == GM_BACKEND_GPU) seen_and_heard();
    else {
        one_picture();
        two_pictures();
        one_sound();
        refused_sounds();
        long_sounds();
        estimated_sounds();
        interrupted_encoding();
        cancelled_decoding();
        refusals();
    }
    buffer_free(&shapes);
    buffer_free(&digits);
    buffer_free(&spoken);
    return test_end();
}
