/* Turns the messages of the API into a chat, and renders it. */

#include "session/prompt.h"

#include "media/video.h"

#include <math.h>
#include <string.h>

/* JSON in an argument: what is wrong with it is the caller's mistake, not a bad file. */
static gm_status parse_argument(const char *text, arena *a, json **out, error *e) {
    error           inner = { 0 };
    const gm_status status = json_parse(str_of(text), a, out, &inner);
    return status ? fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", inner.why) : GM_OK;
}

static gm_status parse_calls(chat_message *out, const char *text, size_t index, arena *a, error *e) {
    error inner = { 0 };
    json *calls = NULL;
    if (parse_argument(text, a, &calls, &inner) ||
        chat_calls_from_json(calls, a, &out->calls, &out->call_count, &inner)) {
        return fail(e, inner.status, "messages[%zu].tool_calls: %s", index, inner.why);
    }
    return GM_OK;
}

static gm_status parse_tools(const char *tools, arena *a, json **out, error *e) {
    error inner = { 0 };
    char *text = arena_copy(a, str_of(tools));
    if (!text) return fail_memory(e, "the tools", strlen(tools));
    if (parse_argument(text, a, out, &inner)) return fail(e, inner.status, "tools: %s", inner.why);
    return chat_check_tools(*out, e);
}

static const char *const part_names[] = {
    [GM_PART_TEXT] = "text", [GM_PART_IMAGE] = "image", [GM_PART_AUDIO] = "audio", [GM_PART_VIDEO] = "video"
};

/* Rendering leaves out a video without frames, so this is the place to complain. */
static gm_status prompt_check_frames(const gm_part *video, error *e) {
    if (!video->frames || !video->frame_count) return fail(e, GM_BAD_ARGUMENT, "the video has no frames");
    if (video->frame_count > VIDEO_MOST_FRAMES)
        return fail(e, GM_BAD_ARGUMENT, "a video has at most %d frames, found %zu: choose some of them",
                    VIDEO_MOST_FRAMES, video->frame_count);
    for (size_t i = 0; i < video->frame_count; i++) {
        const double time = video->frames[i].time, before = i ? video->frames[i - 1].time : 0;
        if (!isfinite(time) || time < 0)
            return fail(e, GM_BAD_ARGUMENT, "frame %zu of the video has no valid time: %g s", i + 1, time);
        if (time < before)
            return fail(e, GM_BAD_ARGUMENT, "the frames of a video must be in order: frame %zu is at %g s, after %g s",
                        i + 1, time, before);
    }
    return GM_OK;
}

static gm_status convert_part(chat_part *out, const gm_part *part, bool system, error *e) {
    static const chat_part_kind kinds[] = { CHAT_TEXT, CHAT_IMAGE, CHAT_AUDIO, CHAT_VIDEO };
    const bool                  text = part->kind == GM_PART_TEXT;
    if ((size_t)part->kind >= COUNT_OF(kinds))
        return fail(e, GM_BAD_ARGUMENT, "there is no part of kind %d", (int)part->kind);
    if (system && !text)
        return fail(e, GM_BAD_ARGUMENT, "a system message may contain only text, found %s", part_names[part->kind]);
    if (part->kind == GM_PART_VIDEO) TRY(prompt_check_frames(part, e));
    *out =
        (chat_part){ .kind = kinds[part->kind], .text = str_of(text ? part->text : NULL), .media = text ? NULL : part };
    return GM_OK;
}

/* Content as a text, or as parts. */
static gm_status convert_content(chat_message *out, const gm_message *m, size_t index, arena *a, error *e) {
    const gm_part text = { .text = m->content }, *parts = m->part_count ? m->parts : &text;
    const bool    system = out->role == CHAT_SYSTEM || out->role == CHAT_DEVELOPER;
    if (m->part_count && m->content)
        return fail(e, GM_BAD_ARGUMENT, "messages[%zu] has both content and parts; one of them must be empty", index);
    if (m->part_count && !m->parts)
        return fail(e, GM_BAD_ARGUMENT, "messages[%zu].part_count is %zu, but parts is NULL", index, m->part_count);
    out->list = m->part_count;
    out->part_count = m->part_count ? m->part_count : 1;
    out->parts = arena_array(a, out->part_count, sizeof *out->parts);
    if (!out->parts) return fail_memory(e, "a message", out->part_count * sizeof *out->parts);
    for (size_t i = 0; i < out->part_count; i++) {
        error           inner = { 0 };
        const gm_status status = convert_part(&out->parts[i], &parts[i], system, &inner);
        if (status) return fail(e, status, "messages[%zu].parts[%zu]: %s", index, i, inner.why);
    }
    return GM_OK;
}

static gm_status convert_message(chat_message *out, const gm_message *m, size_t index, arena *a, error *e) {
    static const char *const roles[] = { [CHAT_SYSTEM] = "system",
                                         [CHAT_DEVELOPER] = "developer",
                                         [CHAT_USER] = "user",
                                         [CHAT_ASSISTANT] = "assistant",
                                         [CHAT_TOOL] = "tool" };
    size_t                   role = 0;
    while (role < COUNT_OF(roles) && (!m->role || strcmp(m->role, roles[role]))) role++;
    if (role == COUNT_OF(roles)) {
        return fail(e, GM_BAD_ARGUMENT,
                    "messages[%zu].role must be system, developer, user, assistant or tool, found %s%s%s", index,
                    m->role ? "'" : "", m->role ? m->role : "nothing", m->role ? "'" : "");
    }
    *out = (chat_message){ .role = (chat_role)role,
                           .thinking = str_of(m->thinking),
                           .tool_name = str_of(m->tool_name),
                           .tool_call_id = str_of(m->tool_call_id) };
    TRY(convert_content(out, m, index, a, e));
    return m->tool_calls ? parse_calls(out, m->tool_calls, index, a, e) : GM_OK;
}

gm_status prompt_chat(const gm_engine *engine, const gm_message *messages, size_t count,
                      const gm_reply_options *options, arena *a, chat *out, error *e) {
    const bool system = count && messages && messages[0].role &&
                        (!strcmp(messages[0].role, "system") || !strcmp(messages[0].role, "developer"));
    const bool own_system = engine->system && !system,
               no_system = system && !messages[0].content && !messages[0].part_count;
    json *tools = NULL;
    *out = (chat){ .think = options && options->think, .variant = engine->variant };
    if (count <= no_system || !messages) return fail(e, GM_BAD_ARGUMENT, "a conversation needs at least one message");
    if (options && options->tools) {
        TRY(parse_tools(options->tools, a, &tools, e));
        out->tools = tools;
    }
    out->messages = arena_array(a, count + own_system, sizeof *out->messages);
    if (!out->messages) return fail_memory(e, "the messages", count * sizeof *out->messages);
    const gm_message own = { .role = "system", .content = engine->system };
    if (own_system) TRY(convert_message(&out->messages[out->count++], &own, 0, a, e));
    for (size_t i = no_system; i < count; i++)
        TRY(convert_message(&out->messages[out->count++], &messages[i], i, a, e));
    return GM_OK;
}

gm_status gm_render(const gm_engine *engine, const gm_message *messages, size_t count, const gm_reply_options *options,
                    char **text, char *why, size_t why_size) {
    error       e = { 0 };
    arena       scratch = { 0 };
    chat        c;
    chat_piece *pieces;
    size_t      piece_count;
    buffer      out = { 0 };
    *text = NULL;
    gm_status status = prompt_chat(engine, messages, count, options, &scratch, &c, &e);
    if (!status) status = chat_render(&c, &scratch, &pieces, &piece_count, &e);
    if (!status) {
        chat_pieces_text(pieces, piece_count, &out);
        buffer_text(&out, "");
        if (out.failed || !out.data) status = fail_memory(&e, "the prompt", out.length);
    }
    if (status) buffer_free(&out);
    else *text = out.data;
    arena_free(&scratch);
    return error_report(&e, why, why_size);
}
