/* hello: a small chat on gemmule's library.
 *
 *     cc hello.c $(pkg-config --cflags --libs gemmule) -o hello
 *     ./hello gemma4:e2b
 *
 * Every line that you type is a question; the answer appears as it is written. Ends at end of file. */

#include <gemmule.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The conversation so far. The session keeps what it computed for it: each turn computes only what is new. */
typedef struct {
    gm_message *messages;
    size_t      count;
} conversation;

static void say(conversation *c, const char *role, const char *content) {
    c->messages = realloc(c->messages, (c->count + 1) * sizeof *c->messages);
    char *copy = strdup(content);
    if (!c->messages || !copy) abort();
    c->messages[c->count++] = (gm_message){ .role = role, .content = copy };
}

/* Appends to a string that grows. */
static void append(char **text, size_t *length, const char *more, size_t more_length) {
    *text = realloc(*text, *length + more_length + 1);
    if (!*text) abort();
    memcpy(*text + *length, more, more_length);
    *length += more_length;
    (*text)[*length] = 0;
}

/* Writes the answer to the last message, to the terminal and behind the conversation. */
static gm_status answer(gm_session *session, conversation *c, char *why, size_t why_size) {
    gm_reply_options options = { .max_tokens = 300 };
    gm_reply        *reply;
    gm_status        status = gm_reply_start(session, c->messages, c->count, &options, &reply, why, why_size);
    if (status != GM_OK) return status;

    char    *text = NULL;
    size_t   length = 0;
    gm_piece piece;
    append(&text, &length, "", 0);
    while ((status = gm_reply_next(reply, &piece, why, why_size)) == GM_OK || status == GM_AGAIN) {
        if (status == GM_AGAIN || piece.kind != GM_PIECE_CONTENT) continue;
        fwrite(piece.text, 1, piece.length, stdout);
        fflush(stdout);
        append(&text, &length, piece.text, piece.length);
    }
    gm_reply_stats stats;
    gm_reply_get_stats(reply, &stats);
    gm_reply_free(reply);
    printf("\n");
    if (status == GM_DONE) {
        say(c, "assistant", text);
        fprintf(stderr, "[%zu tokens, %.1f a second]\n", stats.reply_tokens,
                stats.reply_seconds > 0 ? (double)stats.reply_tokens / stats.reply_seconds : 0.0);
    }
    free(text);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL   (a GGUF file, or an Ollama name such as gemma4:e2b)\n", argv[0]);
        return 3;
    }
    char         why[256] = "", line[4096];
    gm_engine   *engine = NULL;
    gm_session  *session = NULL;
    conversation c = { 0 };

    gm_status status = gm_engine_open(&(gm_engine_options){ .model = argv[1] }, &engine, why, sizeof why);
    if (status == GM_OK) status = gm_session_new(engine, NULL, &session, why, sizeof why);
    if (status == GM_OK) status = GM_DONE;
    while (status == GM_DONE && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        say(&c, "user", line);
        status = answer(session, &c, why, sizeof why);
    }
    if (status != GM_DONE) fprintf(stderr, "%s: %s\n", gm_status_name(status), why);

    for (size_t i = 0; i < c.count; i++) free((char *)c.messages[i].content);
    free(c.messages);
    gm_session_free(session);
    gm_engine_close(engine);
    return status != GM_DONE;
}
