/* Examples to learn from are what a session of the model in the box computes: the same prompts, with pictures and sounds, and the answer
 * that follows. Files that examples name stay in the folder of the data. */

#include "read_file.h"
#include "train_data.h"

#include <sys/stat.h>

/* ---- the same prompts as a session's ---- */

typedef struct {
    gm_message messages[12];
    size_t     count;
    buffer     calls; /* the same in all messages */
} asked;

static const char *field_text(const json *value) { return value ? value->text.data : NULL; }

/* The messages of a line, for the API. */
static void fill_asked(const json *list, asked *out) {
    *out = (asked){ 0 };
    for (const json *m = list->first; m; m = m->next) {
        gm_message *to = &out->messages[out->count++];
        to->role = field_text(json_get(m, "role"));
        to->content = field_text(json_get(m, "content"));
        to->thinking = field_text(json_get(m, "thinking"));
        to->tool_call_id = field_text(json_get(m, "tool_call_id"));
        if (!json_get(m, "tool_calls")) continue;
        if (!out->calls.length) json_write(&out->calls, json_get(m, "tool_calls"));
        to->tool_calls = out->calls.data;
    }
}

/* What a session computes before it writes. */
static size_t session_prompt_tokens(gm_session *s, const gm_message *messages, size_t count,
                                    const gm_reply_options *options, const int32_t **tokens) {
    gm_reply      *reply = NULL;
    gm_piece       piece;
    gm_reply_stats stats = { 0 };
    gm_status      status = gm_reply_start(s, messages, count, options, &reply, why, sizeof why);
    CHECK_MESSAGE(!status, "%s", why);
    while (!status || status == GM_AGAIN) status = gm_reply_next(reply, &piece, why, sizeof why);
    if (reply) gm_reply_get_stats(reply, &stats);
    gm_reply_free(reply);
    const size_t held = gm_session_tokens(s, tokens);
    CHECK(stats.prompt_tokens && held >= stats.prompt_tokens);
    return stats.prompt_tokens;
}

/* Whether an example has this prompt, followed by exactly this answer, which counts. */
static bool has_answer(dataset *d, const int32_t *prompt, size_t n, const char *answer) {
    bool found = false;
    for (size_t i = 0; i < dataset_count(d) && !found; i++) {
        data_example x;
        error        e = { 0 };
        buffer       text = { 0 };
        if (dataset_example(d, i, &x, &e)) return false;
        const data_sequence *q = &x.sequence[0];
        if (q->count > n && !memcmp(q->ids, prompt, n * sizeof *prompt) && !q->weights[n - 1]) {
            for (size_t k = n; k < q->count && q->weights[k] != 0; k++)
                buffer_str(&text, tokenizer_text(d->options.words, q->ids[k]));
            found = text.length && !strcmp(text.data, answer);
        }
        buffer_free(&text);
        data_example_free(&x);
    }
    return found;
}

static void check_talk(gm_session *s, const char *line, const char *const *answers) {
    gm_engine       *engine = s->engine;
    arena            memory = { 0 };
    buffer           text = quoted(line), tools = { 0 };
    json            *object = NULL;
    error            e = { 0 };
    asked            a;
    size_t           answer = 0;
    gm_reply_options options = { .max_tokens = 1 };
    data_options     o = plain_options();
    CHECK(!json_parse(buffer_view(&text), &memory, &object, &e));
    fill_asked(json_get(object, "messages"), &a);
    if (json_get(object, "tools")) json_write(&tools, json_get(object, "tools"));
    options.tools = tools.data;
    options.think = strstr(line, "thinking");
    o.variant = engine->variant;
    dataset *d = scan_text(&text, "talk.jsonl", &o);
    for (size_t i = 0; d && i < a.count; i++) {
        const int32_t *tokens;
        if (strcmp(a.messages[i].role, "assistant")) continue;
        const size_t n = session_prompt_tokens(s, a.messages, i, &options, &tokens);
        CHECK_MESSAGE(has_answer(d, tokens, n, answers[answer]), "answer %zu: \"%s\" of variant %d", answer,
                      answers[answer], (int)engine->variant);
        answer++;
    }
    CHECK(!answers[answer]);
    dataset_free(d);
    buffer_free(&a.calls);
    buffer_free(&tools);
    buffer_free(&text);
    arena_free(&memory);
}

#define ADD_TOOL                                                                                                       \
    "'tools':[{'type':'function','function':{'name':'add','description':'Adds','parameters':{'type':'object',"         \
    "'properties':{'a':{'type':'number'},'b':{'type':'number'}}}}}]"
#define CALLED "<|tool_call>call:add{a:1,b:2}<tool_call|><|tool_response>"

static void test_same_as_session(gm_session *s) {
    static const struct {
        const char *line, *answers[4];
    } talks[] = {
        { "{'messages':[{'role':'system','content':'Be kind.'},{'role':'user','content':'Hello'},{'role':'assistant',"
          "'content':'Hi!'},{'role':'user','content':'How are you?\\n'},{'role':'assistant','content':'I am fine.'}]}",
          { "Hi!<turn|>", "I am fine.<turn|>" } },
        { "{'messages':[{'role':'user','content':'a'},{'role':'assistant','thinking':'T','content':'b'},"
          "{'role':'user','content':'c'},{'role':'assistant','thinking':'V','content':'d'}]}",
          { "<|channel>thought\nT\n<channel|>b<turn|>", "<|channel>thought\nV\n<channel|>d<turn|>" } },
        { "{" ADD_TOOL ",'messages':[{'role':'user','content':'1+2?'},{'role':'assistant'," CALL_ADD
          "},{'role':'tool','tool_call_id':'1','content':'3'},{'role':'assistant','content':'3'},"
          "{'role':'user','content':'Thanks'},{'role':'assistant','content':'Yes'}]}",
          { CALLED, "3<turn|>", "Yes<turn|>" } },
        { "{" ADD_TOOL ",'messages':[{'role':'user','content':'1+2?'},{'role':'assistant','thinking':'\\nT'," CALL_ADD
          "},{'role':'tool','tool_call_id':'1','content':'3'},{'role':'assistant','thinking':'\\nV','content':'3'},"
          "{'role':'user','content':'Thanks'},{'role':'assistant','content':'Yes'}]}",
          { "<|channel>thought\n\nT\n<channel|>" CALLED, "\nV\n<channel|>3<turn|>", "Yes<turn|>" } },
        { "{" ADD_TOOL ",'messages':[{'role':'user','content':'1+2?'},{'role':'assistant','thinking':'T'," CALL_ADD
          "},{'role':'tool','tool_call_id':'1','content':'3'},{'role':'assistant','thinking':'\\nV'," CALL_ADD
          "},{'role':'tool','tool_call_id':'1','content':'3'},{'role':'assistant','thinking':'X','content':'3'}]}",
          { "<|channel>thought\nT\n<channel|>" CALLED, "\nV\n<channel|>" CALLED, "X\n<channel|>3<turn|>" } },
    };
    const chat_variant own = s->engine->variant;
    for (size_t i = 0; i < COUNT_OF(talks); i++) {
        for (int variant = CHAT_SMALL; variant <= CHAT_LARGE; variant++) {
            TEST("prompt and answer as in a session: conversation %zu, variant %d", i, variant);
            s->engine->variant = (chat_variant)variant;
            check_talk(s, talks[i].line, talks[i].answers);
        }
    }
    s->engine->variant = own;
}

/* ---- pictures and sounds ---- */

static void test_media_tokens(gm_session *s) {
    static const char line[] = "{'messages':[{'role':'user','content':[{'type':'image','image':'in/a.png'},"
                               "{'type':'text','text':'What is it?'},{'type':'audio','audio':'a.wav'}]},"
                               "{'role':'assistant','content':'A box.'}]}";
    buffer            seen = file_read("tests/fixtures/tiny-mm.png"), heard = file_read("tests/fixtures/tiny-mm.wav");
    buffer            text = quoted(line);
    const data_source from = { .path = in_folder("media.jsonl") };
    const gm_part     parts[] = { { .kind = GM_PART_IMAGE, .data = seen.data, .size = seen.length },
                                  { .text = "What is it?" },
                                  { .kind = GM_PART_AUDIO, .data = heard.data, .size = heard.length } };
    const gm_message  message = { .role = "user", .parts = parts, .part_count = 3 };
    const gm_reply_options options = { .max_tokens = 1 };
    data_options           o = plain_options();
    dataset               *d = NULL;
    data_example           x;
    error                  e = { 0 };
    TEST("pictures and sounds have the tokens that a session computes");
    mkdir(in_folder("in"), 0700);
    data_write_file(from.path, "wb", buffer_view(&text));
    data_write_file(in_folder("in/a.png"), "wb", buffer_view(&seen));
    data_write_file(in_folder("a.wav"), "wb", buffer_view(&heard));
    o.variant = s->engine->variant;
    CHECK_MESSAGE(!scan(&from, &o, &d), "%s", why);
    const int32_t *tokens;
    const size_t   n = session_prompt_tokens(s, &message, 1, &options, &tokens);
    CHECK(has_answer(d, tokens, n, "A box.<turn|>"));
    CHECK(!dataset_example(d, 0, &x, &e) && x.sequence[0].media_count == 2);
    const data_media *m = x.sequence[0].media;
    CHECK(m[0].kind == CHAT_IMAGE && m[1].kind == CHAT_AUDIO && m[0].part.size == seen.length && m[1].to > m[1].from);
    for (size_t i = 0; i < 2; i++) {
        const int32_t soft = tokenizer_special(box.t, i ? SPECIAL_AUDIO_SOFT : SPECIAL_IMAGE_SOFT);
        CHECK(m[i].count && x.sequence[0].ids[m[i].at] == soft && x.sequence[0].ids[m[i].at + m[i].count - 1] == soft);
        CHECK(x.sequence[0].ids[m[i].at - 1] != soft && x.sequence[0].ids[m[i].at + m[i].count] != soft);
    }
    const size_t inside = m[0].at + m[0].count;
    data_example_free(&x);
    dataset_free(d);

    TEST("an example is not cut inside a picture");
    o.max_tokens = inside;
    CHECK(scan(&from, &o, &d) && strstr(why, "nothing that counts"));
    dataset_free(d);
    buffer_free(&text);
    buffer_free(&seen);
    buffer_free(&heard);
}

static gm_status give_media(void *host, const char *path, buffer *out, error *e) {
    const buffer *file = host;
    if (strcmp(path, "in/a.png")) return fail(e, GM_NOT_FOUND, "there is no %s", path);
    buffer_str(out, buffer_view(file));
    return GM_OK;
}

static void test_media_places(void) {
    static const struct {
        const char *image, *says;
    } cases[] = {
        { "in/a.png", NULL },
        { "./in/a.png", NULL },
        { "in/missing.png", "messages[0].content[0]: in/missing.png cannot be opened" },
        { "../a.png", "expected a file in the folder of the data or below it, found \"../a.png\"" },
        { "in/../../a.png", "expected a file in the folder of the data" },
        { "/etc/host.conf", "expected a file in the folder of the data" },
        { "link.png", "link.png is a link, or below one" },
        { "away/a.png", "away/a.png is a link, or below one" },
        { "https://a.example/a.png", "a remote file is not fetched" },
        { "media.jsonl", "line 1: " }, /* not a picture */
        { "data:image/png;base64,A*A", "the base64 of the picture is damaged" },
    };
    const data_options o = plain_options();
    buffer             seen = file_read("tests/fixtures/tiny-mm.png");
    CHECK(!symlink(in_folder("in/a.png"), in_folder("link.png")) && !symlink(in_folder("in"), in_folder("away")));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char     line[300];
        dataset *d = NULL;
        TEST("a picture at %s", cases[i].image);
        snprintf(line, sizeof line,
                 "{'messages':[{'role':'user','content':[{'type':'image_url','image_url':{'url':'%s'}}]},"
                 "{'role':'assistant','content':'x'}]}",
                 cases[i].image);
        buffer            text = quoted(line);
        const data_source file = { .path = in_folder("media.jsonl") };
        data_write_file(file.path, "wb", buffer_view(&text));
        const gm_status status = scan(&file, &o, &d);
        CHECK_MESSAGE(cases[i].says ? status && strstr(why, cases[i].says) : !status, "%s", why);
        dataset_free(d);
        d = NULL;
        if (!cases[i].says) { /* from a host, as in a browser */
            const data_source hosted = {
                .bytes = buffer_view(&text), .name = "m.jsonl", .read_media = give_media, .host = &seen
            };
            CHECK_MESSAGE(!scan(&hosted, &o, &d), "%s", why);
            dataset_free(d);
        }
        buffer_free(&text);
    }
    buffer_free(&seen);
}

static void remove_files(void) {
    static const char *const names[] = { "media.jsonl", "a.wav", "link.png", "away", "in/a.png" };
    for (size_t i = 0; i < COUNT_OF(names); i++) CHECK(!unlink(in_folder(names[i])));
    CHECK(!rmdir(in_folder("in")) && !rmdir(folder));
}

int main(void) {
    conversation            c;
    const gm_engine_options options = { .model = "models/box.gguf", .backend = GM_BACKEND_CPU, .threads = 1 };
    TEST("the model in the box, and a folder");
    box = load("models/box.gguf");
    CHECK(mkdtemp(folder));
    if (open_conversation(&c, &options)) {
        test_same_as_session(c.session);
        test_media_tokens(c.session);
    }
    test_media_places();
    remove_files();
    close_conversation(&c);
    unload(&box);
    return test_end();
}
