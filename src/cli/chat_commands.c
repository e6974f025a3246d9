/* The slash commands of a chat. */

#include "cli/chat.h"

#include "cli/input.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef gm_status (*slash_function)(chat_state *s, const char *rest, error *e);

typedef struct {
    const char    *name, *argument, *help;
    slash_function run;
} slash_command;

/* Feedback for the user. Only answers go to stdout. */
#define SAY(...) fprintf(stderr, __VA_ARGS__)

static gm_status slash_help(chat_state *s, const char *rest, error *e);

static gm_status slash_clear(chat_state *s, const char *rest, error *e) {
    (void)rest, (void)e;
    conversation_clear(&s->talk);
    chat_media_free(&s->attached, &s->attached_count);
    SAY("new conversation\n");
    return GM_OK;
}

/* Expands "~/x" as a shell does. */
static gm_status expand_path(const char *path, buffer *out, error *e) {
    const char *home = getenv("HOME");
    if (!strncmp(path, "~/", 2) && home) buffer_printf(out, "%s%s", home, path + 1);
    else buffer_text(out, path);
    return out->failed ? fail_memory(e, "a path", strlen(path)) : GM_OK;
}

static gm_status save_or_load(chat_state *s, const char *rest, bool save, error *e) {
    buffer path = { 0 };
    if (!*rest)
        return fail(e, GM_BAD_ARGUMENT, "%s needs a file name: %s FILE", save ? "/save" : "/load",
                    save ? "/save" : "/load");
    gm_status status = expand_path(rest, &path, e);
    if (status == GM_OK && save) status = conversation_save(&s->talk, s->session, path.data, e);
    else if (status == GM_OK) status = conversation_load(&s->talk, s->session, path.data, e);
    if (status == GM_OK)
        SAY("%s %zu message%s: %s\n", save ? "saved" : "loaded", s->talk.count, s->talk.count == 1 ? "" : "s",
            path.data);
    buffer_free(&path);
    return status;
}

static gm_status slash_save(chat_state *s, const char *rest, error *e) { return save_or_load(s, rest, true, e); }

static gm_status slash_load(chat_state *s, const char *rest, error *e) { return save_or_load(s, rest, false, e); }

static gm_status attach_file(chat_state *s, const char *rest, gm_part_kind kind, error *e) {
    const char *name = kind == GM_PART_IMAGE ? "image" : "audio";
    buffer      path = { 0 }, bytes = { 0 };
    if (!*rest) return fail(e, GM_BAD_ARGUMENT, "/%s needs a file name: /%s FILE", name, name);
    gm_status status = expand_path(rest, &path, e);
    if (status == GM_OK) status = input_read(path.data, &bytes, e);
    if (status == GM_OK) status = chat_media_add(&s->attached, &s->attached_count, kind, buffer_view(&bytes), e);
    if (status == GM_OK) SAY("%s goes with your next message\n", path.data);
    buffer_free(&path);
    buffer_free(&bytes);
    return status;
}

static gm_status slash_image(chat_state *s, const char *rest, error *e) {
    return attach_file(s, rest, GM_PART_IMAGE, e);
}

static gm_status slash_audio(chat_state *s, const char *rest, error *e) {
    return attach_file(s, rest, GM_PART_AUDIO, e);
}

static gm_status slash_video(chat_state *s, const char *rest, error *e) {
    buffer       path = { 0 };
    video_input  video = { 0 };
    const size_t before = s->attached_count;
    if (!*rest) return fail(e, GM_BAD_ARGUMENT, "/video needs a folder or a file: /video PATH");
    gm_status status = expand_path(rest, &path, e);
    if (status == GM_OK) status = video_input_read(path.data, &s->video, &video, e);
    for (size_t i = 0; i < video.count && status == GM_OK; i++) {
        const str bytes = { video.frames[i].data, video.frames[i].size };
        status = chat_media_add(&s->attached, &s->attached_count, GM_PART_VIDEO, bytes, e);
        if (status != GM_OK) break;
        s->attached[s->attached_count - 1].time = video.frames[i].time;
        s->attached[s->attached_count - 1].first = !i;
    }
    if (status == GM_OK)
        SAY("%s: %zu frame%s go%s with your next message\n", path.data, video.count, video.count == 1 ? "" : "s",
            video.count == 1 ? "es" : "");
    while (status != GM_OK && s->attached_count > before) free(s->attached[--s->attached_count].data);
    video_input_free(&video);
    buffer_free(&path);
    return status;
}

static gm_status slash_system(chat_state *s, const char *rest, error *e) {
    gm_status status = GM_OK;
    if (!strcmp(rest, "none")) status = conversation_set_system(&s->talk, "", e);
    else if (!strcmp(rest, "default")) status = conversation_set_system(&s->talk, NULL, e);
    else if (*rest) status = conversation_set_system(&s->talk, rest, e);
    if (status == GM_OK)
        SAY("system: %s\n", !s->talk.system ? "the model's own, if any" : *s->talk.system ? s->talk.system : "none");
    return status;
}

static gm_status slash_think(chat_state *s, const char *rest, error *e) {
    const bool on = !strcmp(rest, "on"), off = !strcmp(rest, "off");
    if (*rest && !on && !off) return fail(e, GM_BAD_ARGUMENT, "/think takes on or off, not '%s'", rest);
    if (on || off) s->talk.think = on;
    SAY("think: %s\n", s->talk.think ? "on" : "off");
    return GM_OK;
}

/* Words that begin with "~/" are expanded one by one. */
static gm_status slash_adapter(chat_state *s, const char *rest, error *e) {
    buffer    words = { 0 };
    gm_status status = GM_OK;
    for (const char *at = rest; *at && !status;) {
        const size_t length = strcspn(at, " \t");
        char         word[1024];
        snprintf(word, sizeof word, "%.*s", (int)min_size(length, sizeof word - 1), at);
        if (words.length) buffer_char(&words, ' ');
        status = expand_path(word, &words, e);
        at += length + strspn(at + length, " \t");
    }
    if (!status && *rest) status = adapters_switch(s->session, words.data, e);
    buffer_clear(&words);
    if (!status) adapters_show(s->session, &words);
    if (!status && words.failed) status = fail_memory(e, "the adapters", words.length);
    if (!status) SAY("adapters: %s\n", words.data);
    buffer_free(&words);
    return status;
}

static void show_settings(const chat_state *s) {
    for (size_t g = 0; g < CHAT_SETTING_GROUPS; g++) {
        const option_group *group = &chat_setting_groups[g];
        for (size_t i = 0; i < group->count; i++) {
            const option *o = &group->options[i];
            char          value[40] = "(default)";
            option_value_text(o, (const char *)&s->talk.settings + group->offset, value, sizeof value);
            SAY("  %-18s %-12s %s\n", o->name, value, o->help);
        }
    }
}

static gm_status slash_set(chat_state *s, const char *rest, error *e) {
    char         name[40];
    const size_t length = strcspn(rest, " \t=");
    const char  *value = rest + length + strspn(rest + length, " \t=");
    if (!*rest) {
        show_settings(s);
        return GM_OK;
    }
    snprintf(name, sizeof name, "%.*s", (int)min_size(length, sizeof name - 1), rest);
    for (char *at = name; *at; at++) {
        if (*at == '_') *at = '-';
    }
    if (!strcmp(name, "temperature")) snprintf(name, sizeof name, "temp");
    if (!*value) return fail(e, GM_BAD_ARGUMENT, "/set needs a value: /set %s VALUE", name);
    error     why = { 0 };
    gm_status status = options_set(chat_setting_groups, CHAT_SETTING_GROUPS, &s->talk.settings, name, value, &why);
    if (status != GM_OK) return fail(e, status, "%s; /set without arguments lists the settings", why.why);
    SAY("%s = %s\n", name, value);
    return GM_OK;
}

static gm_status slash_exit(chat_state *s, const char *rest, error *e) {
    (void)rest, (void)e;
    s->leave = true;
    return GM_OK;
}

static const slash_command slash_commands[] = {
    { "help", "", "show this list", slash_help },
    { "clear", "", "forget the conversation but keep the settings", slash_clear },
    { "save", "FILE", "save the conversation and its computed state", slash_save },
    { "load", "FILE", "continue a saved conversation", slash_load },
    { "image", "FILE", "show the model a picture (PNG, JPEG, GIF, WebP) with your next message", slash_image },
    { "audio", "FILE", "let the model hear a sound (WAV, FLAC, MP3, …) with your next message", slash_audio },
    { "video", "PATH", "show the model a video (a folder of frames, or a file) with your next message", slash_video },
    { "system", "[TEXT]",
      "set the system prompt, or `none`, or `default` for the model's own; without an argument, shows it",
      slash_system },
    { "think", "[on|off]", "let the model think before it answers, and show its thoughts", slash_think },
    { "adapter", "[DIR[=N] ...]",
      "use these adapters from now on, or `none`; names of loaded ones will do; without an argument, shows them",
      slash_adapter },
    { "set", "[NAME VALUE]", "change a setting such as temp, top-k, seed or max; without arguments, lists them",
      slash_set },
    { "exit", "", "leave", slash_exit },
};

static gm_status slash_help(chat_state *s, const char *rest, error *e) {
    (void)s, (void)rest, (void)e;
    for (size_t i = 0; i < COUNT_OF(slash_commands); i++) {
        const slash_command *c = &slash_commands[i];
        SAY("  /%-7s %-13s %s\n", c->name, c->argument, c->help);
    }
    SAY("  A \\ at the end of a line continues it on the next. To start a message with /, type //.\n"
        "  Ctrl-C stops an answer; Ctrl-D, or Ctrl-C twice at the prompt, leaves.\n");
    return GM_OK;
}

gm_status chat_command(chat_state *s, const char *line, error *e) {
    const char  *names[COUNT_OF(slash_commands)];
    char         name[40];
    const size_t length = strcspn(line + 1, " \t\n");
    buffer       rest = { 0 };
    snprintf(name, sizeof name, "%.*s", (int)min_size(length, sizeof name - 1), line + 1);
    buffer_text(&rest, line + 1 + length + strspn(line + 1 + length, " \t\n"));
    if (rest.failed) return fail_memory(e, "a command", strlen(line));
    while (rest.length && strchr(" \t\n", rest.data[rest.length - 1])) rest.data[--rest.length] = 0;

    gm_status status = GM_OK;
    bool      known = false;
    for (size_t i = 0; i < COUNT_OF(slash_commands); i++) {
        names[i] = slash_commands[i].name;
        if (!strcmp(names[i], name) || (!strcmp(name, "quit") && !strcmp(names[i], "exit"))) {
            status = slash_commands[i].run(s, rest.data, e);
            known = true;
            break;
        }
    }
    buffer_free(&rest);
    if (known) return status;
    const char *hint = nearest_name(name, names, COUNT_OF(names));
    if (hint) return fail(e, GM_BAD_ARGUMENT, "unknown command /%s; did you mean /%s?", name, hint);
    return fail(e, GM_BAD_ARGUMENT,
                "unknown command /%s; /help lists the commands, and // starts a message with a slash", name);
}
