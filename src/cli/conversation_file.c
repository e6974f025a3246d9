/* Saved conversations. A GGUF with general.architecture = gemmule-chat:
 *
 *     chat.version       2; version 1 has no digest
 *     chat.roles         "user" or "assistant" for each turn
 *     chat.contents      what was said
 *     chat.system        the system prompt, if there is one
 *     chat.think         whether the model thinks first
 *     chat.setting_names, chat.setting_values   what was /set
 *     chat.media_turns, chat.media_kinds   for each picture, sound or frame the number of its turn, and "image", "audio", "video" (the
 *                                          first frame of one) or "frame" (a further frame)
 *     chat.media_times   the frames' times in seconds; 0 for the others
 *     tensor `media.N`   I8: the bytes of the Nth one's file
 *     tensor `session`   I8: the session's snapshot, if it holds anything
 *     tensor `digest`    the seal over everything before it (gguf.h) */

#include "cli/conversation.h"

#include "base/new_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char architecture[] = "gemmule-chat";
enum { FORMAT_VERSION = 2, UNSEALED_VERSION = 1, MOST_SETTINGS = 32 };

/* ---- writing ---- */

static void write_turns(gguf_writer *w, const conversation *c, str *items) {
    for (size_t i = 0; i < c->count; i++) items[i] = str_of(c->turns[i].from_user ? "user" : "assistant");
    gguf_write_strings(w, "chat.roles", items, c->count);
    for (size_t i = 0; i < c->count; i++) items[i] = str_of(c->turns[i].content);
    gguf_write_strings(w, "chat.contents", items, c->count);
}

/* The next picture, sound or frame of the conversation: moves turn and number on. NULL: there is none. */
static const chat_media *next_media(const conversation *c, size_t *turn, size_t *number) {
    while (*turn < c->count && *number >= c->turns[*turn].media_count) ++*turn, *number = 0;
    return *turn < c->count ? &c->turns[*turn].media[(*number)++] : NULL;
}

static const char *media_kind_name(const chat_media *media) {
    if (media->kind == GM_PART_VIDEO) return media->first ? "video" : "frame";
    return media->kind == GM_PART_IMAGE ? "image" : "audio";
}

static gm_status declare_media(gguf_writer *w, const conversation *c, error *e) {
    size_t            turn = 0, number = 0, count = 0;
    const chat_media *media;
    while (next_media(c, &turn, &number)) count++;
    if (!count) return GM_OK;
    uint32_t  *turns = calloc(count, sizeof *turns);
    str       *kinds = calloc(count, sizeof *kinds);
    double    *times = calloc(count, sizeof *times);
    const bool fine = turns && kinds && times;
    if (fine) {
        turn = number = count = 0;
        for (; (media = next_media(c, &turn, &number)); count++) {
            turns[count] = (uint32_t)turn;
            kinds[count] = str_of(media_kind_name(media));
            times[count] = media->time;
        }
        gguf_write_array(w, "chat.media_turns", GGUF_U32, turns, count);
        gguf_write_strings(w, "chat.media_kinds", kinds, count);
        gguf_write_array(w, "chat.media_times", GGUF_F64, times, count);
    }
    free(times);
    free(turns);
    free(kinds);
    return fine ? GM_OK : fail_memory(e, "the conversation", count * sizeof *kinds);
}

static void declare_media_tensors(gguf_writer *w, const conversation *c) {
    size_t            turn = 0, number = 0;
    const chat_media *media;
    for (size_t i = 0; (media = next_media(c, &turn, &number)); i++) {
        char name[40];
        snprintf(name, sizeof name, "media.%zu", i);
        gguf_write_tensor(w, name, TYPE_I8, 1, &(uint64_t){ media->size });
    }
}

static gm_status write_media(gguf_writer *w, const conversation *c, error *e) {
    size_t            turn = 0, number = 0;
    const chat_media *media;
    while ((media = next_media(c, &turn, &number))) TRY(gguf_writer_data(w, media->data, media->size, e));
    return GM_OK;
}

static void write_settings(gguf_writer *w, const chat_settings *settings) {
    char   texts[MOST_SETTINGS][40];
    str    names[MOST_SETTINGS], values[MOST_SETTINGS];
    size_t count = 0;
    for (size_t g = 0; g < CHAT_SETTING_GROUPS; g++) {
        const option_group *group = &chat_setting_groups[g];
        for (size_t i = 0; i < group->count && count < MOST_SETTINGS; i++) {
            const char *field = (const char *)settings + group->offset;
            if (!option_value_text(&group->options[i], field, texts[count], sizeof texts[count])) continue;
            names[count] = str_of(group->options[i].name);
            values[count] = str_of(texts[count]);
            count++;
        }
    }
    gguf_write_strings(w, "chat.setting_names", names, count);
    gguf_write_strings(w, "chat.setting_values", values, count);
}

static gm_status conversation_write_file(const conversation *c, const void *snapshot, uint64_t size, new_file *file,
                                         error *e) {
    gguf_writer *w = NULL;
    str         *items = calloc(c->count + 1, sizeof *items);
    if (!items) return fail_memory(e, "the conversation", c->count * sizeof *items);
    gm_status status = gguf_writer_new(&w, e);
    if (status == GM_OK) {
        gguf_write_str(w, "general.architecture", str_of(architecture));
        gguf_write_u32(w, "chat.version", FORMAT_VERSION);
        write_turns(w, c, items);
        if (c->system) gguf_write_str(w, "chat.system", str_of(c->system));
        gguf_write_bool(w, "chat.think", c->think);
        write_settings(w, &c->settings);
        status = declare_media(w, c, e);
    }
    if (status == GM_OK) {
        declare_media_tensors(w, c);
        if (size) gguf_write_tensor(w, "session", TYPE_I8, 1, &size);
        gguf_write_seal(w);
        status = gguf_writer_head(w, new_file_write, file, e);
    }
    if (status == GM_OK) status = write_media(w, c, e);
    if (status == GM_OK && size) status = gguf_writer_data(w, snapshot, size, e);
    if (status == GM_OK) status = gguf_writer_end(w, e);
    gguf_writer_free(w);
    free(items);
    return status;
}

gm_status conversation_save(const conversation *c, gm_session *session, const char *path, error *e) {
    void     *snapshot = NULL;
    size_t    size = 0;
    char      why[sizeof e->why] = "";
    gm_status status = GM_OK;
    if (gm_session_tokens(session, NULL)) {
        status = gm_session_save_buffer(session, &snapshot, &size, why, sizeof why);
        if (status != GM_OK) return fail(e, status, "%s", why);
    }
    error     problem = { 0 };
    new_file *file = NULL;
    status = new_file_open(path, NEW_FILE_KEPT, &file, e);
    if (!status) {
        conversation_write_file(c, snapshot, size, file, &problem);
        status = new_file_end(file, &problem, e);
    }
    gm_free(snapshot);
    return status;
}

/* ---- reading ---- */

/* An array of strings, none of which has a NUL inside: they become C strings. */
static gm_status find_strings(const gguf *file, const char *key, const gguf_value **out, error *e) {
    const gguf_value *value = gguf_find(file, key);
    if (!value || !value->array || value->type != GGUF_STRING) {
        /* An array of nothing has no type worth insisting on. */
        if (value && value->array && !value->count) return *out = value, GM_OK;
        return fail(e, GM_BAD_FILE, "%s is missing or no array of strings", key);
    }
    const uint8_t *cursor = value->data;
    for (uint64_t i = 0; i < value->count; i++) {
        const str text = gguf_next_string(&cursor);
        if (text.length && memchr(text.data, 0, text.length))
            return fail(e, GM_BAD_FILE, "%s has a NUL byte in item %llu", key, (unsigned long long)i);
    }
    *out = value;
    return GM_OK;
}

static gm_status conversation_read_turns(const gguf *file, conversation *c, error *e) {
    const gguf_value *roles = NULL, *contents = NULL;
    gm_status         status = find_strings(file, "chat.roles", &roles, e);
    if (status == GM_OK) status = find_strings(file, "chat.contents", &contents, e);
    if (status != GM_OK) return status;
    if (!roles || !contents || roles->count != contents->count)
        return fail(e, GM_BAD_FILE, "chat.roles and chat.contents differ in length");
    const uint8_t *role_cursor = roles->data, *content_cursor = contents->data;
    for (uint64_t i = 0; status == GM_OK && i < roles->count; i++) {
        const str  role = gguf_next_string(&role_cursor);
        const bool from_user = str_is(role, "user");
        if (!from_user && !str_is(role, "assistant"))
            return fail(e, GM_BAD_FILE, "chat.roles: expected user or assistant, found '%.*s'", STR_ARGS(role));
        if (i == 0 && !from_user) return fail(e, GM_BAD_FILE, "chat.roles: the first turn must be the user's");
        status = conversation_add(c, from_user, gguf_next_string(&content_cursor), e);
    }
    return status;
}

/* A medium of kind "image", "audio", "video" or "frame"; the last one continues a video. */
static gm_status turn_add_media(chat_turn *to, str kind, double time, str bytes, error *e) {
    static const struct {
        const char  *name;
        gm_part_kind kind;
    } kinds[] = {
        { "image", GM_PART_IMAGE }, { "audio", GM_PART_AUDIO }, { "video", GM_PART_VIDEO }, { "frame", GM_PART_VIDEO }
    };
    size_t i = 0;
    while (i < COUNT_OF(kinds) && !str_is(kind, kinds[i].name)) i++;
    if (i == COUNT_OF(kinds))
        return fail(e, GM_BAD_FILE, "chat.media_kinds: expected image, audio, video or frame, found '%.*s'",
                    STR_ARGS(kind));
    const bool further = str_is(kind, "frame");
    if (further && (!to->media_count || to->media[to->media_count - 1].kind != GM_PART_VIDEO))
        return fail(e, GM_BAD_FILE, "chat.media_kinds: there is a frame without a video before it");
    TRY(chat_media_add(&to->media, &to->media_count, kinds[i].kind, bytes, e));
    chat_media *added = &to->media[to->media_count - 1];
    added->time = time;
    added->first = kinds[i].kind == GM_PART_VIDEO && !further;
    return GM_OK;
}

static gm_status conversation_read_media(const gguf *file, conversation *c, error *e) {
    const gguf_value *turns = gguf_find(file, "chat.media_turns"), *kinds = NULL,
                     *times = gguf_find(file, "chat.media_times"); /* older files have none */
    if (!turns) return GM_OK;
    TRY(find_strings(file, "chat.media_kinds", &kinds, e));
    if (!turns->array || turns->count != kinds->count || (times && (!times->array || times->count != kinds->count)))
        return fail(e, GM_BAD_FILE, "chat.media_turns, chat.media_kinds and chat.media_times differ in length");
    const uint8_t *cursor = kinds->data;
    for (uint64_t i = 0; i < kinds->count; i++) {
        char      name[40];
        int64_t   turn = -1;
        double    time = 0;
        const str kind = gguf_next_string(&cursor);
        snprintf(name, sizeof name, "media.%llu", (unsigned long long)i);
        const gguf_tensor *bytes = gguf_find_tensor(file, name);
        if (!gguf_item_integer(turns, i, &turn) || turn < 0 || (uint64_t)turn >= c->count || !c->turns[turn].from_user)
            return fail(e, GM_BAD_FILE, "chat.media_turns: item %llu is not a turn of the user's",
                        (unsigned long long)i);
        if (!bytes || bytes->type != TYPE_I8)
            return fail(e, GM_BAD_FILE, "tensor %s is missing, or not the bytes of a file", name);
        if (times && !gguf_item_float(times, i, &time))
            return fail(e, GM_BAD_FILE, "chat.media_times: item %llu is not a number", (unsigned long long)i);
        const str content = { (const char *)gguf_tensor_data(file, bytes), (size_t)bytes->bytes };
        TRY(turn_add_media(&c->turns[turn], kind, time, content, e));
    }
    return GM_OK;
}

static gm_status read_settings(const gguf *file, conversation *c, error *e) {
    const gguf_value *names = NULL, *values = NULL;
    gm_status         status = find_strings(file, "chat.setting_names", &names, e);
    if (status == GM_OK) status = find_strings(file, "chat.setting_values", &values, e);
    if (status != GM_OK) return status;
    if (!names || !values || names->count != values->count)
        return fail(e, GM_BAD_FILE, "chat.setting_names and chat.setting_values differ in length");
    const uint8_t *name_cursor = names->data, *value_cursor = values->data;
    for (uint64_t i = 0; i < names->count; i++) {
        char      name[64], value[64];
        const str name_text = gguf_next_string(&name_cursor), value_text = gguf_next_string(&value_cursor);
        snprintf(name, sizeof name, "%.*s", STR_ARGS(name_text));
        snprintf(value, sizeof value, "%.*s", STR_ARGS(value_text));
        if (options_set(chat_setting_groups, CHAT_SETTING_GROUPS, &c->settings, name, value, e) != GM_OK)
            return GM_BAD_FILE;
    }
    return GM_OK;
}

/* What the file is, and that all of it is there as it was written. */
static gm_status conversation_check_file(const gguf *file, uint32_t *version, error *e) {
    str kind = { "", 0 };
    TRY(gguf_get_str(file, "general.architecture", &kind, NULL, e));
    if (!str_is(kind, architecture))
        return fail(e, GM_BAD_FILE, "not a saved chat: general.architecture is '%.*s', expected '%s'", STR_ARGS(kind),
                    architecture);
    TRY(gguf_get_u32(file, "chat.version", version, NULL, e));
    if (*version == UNSEALED_VERSION) return GM_OK;
    if (*version != FORMAT_VERSION)
        return fail(e, GM_UNSUPPORTED, "chat.version is %u; this program reads versions %d and %d", *version,
                    UNSEALED_VERSION, FORMAT_VERSION);
    return gguf_seal_check(file, &(gguf_seal){ 0 }, UINT64_MAX, e);
}

static gm_status read_file(const gguf *file, conversation *c, error *e) {
    str       system = { "", 0 };
    bool      found = false;
    gm_status status = gguf_get_bool(file, "chat.think", &c->think, NULL, e);
    if (status == GM_OK) status = gguf_get_str(file, "chat.system", &system, &found, e);
    if (status == GM_OK && system.length && memchr(system.data, 0, system.length))
        status = fail(e, GM_BAD_FILE, "chat.system has a NUL byte");
    if (status == GM_OK) status = read_settings(file, c, e);
    if (status == GM_OK) status = conversation_read_turns(file, c, e);
    if (status == GM_OK) status = conversation_read_media(file, c, e);
    if (status == GM_OK && found) {
        char *text = strndup(system.data, system.length);
        status = text ? conversation_set_system(c, text, e) : fail_memory(e, "the system prompt", system.length);
        free(text);
    }
    return status;
}

/* The snapshot of an unsealed chat cannot be checked: without it the turns are computed again with the next question. */
static gm_status restore_session(const gguf *file, uint32_t version, gm_session *session, error *e) {
    char               why[sizeof e->why] = "";
    gm_status          status;
    const gguf_tensor *t = version == UNSEALED_VERSION ? NULL : gguf_find_tensor(file, "session");
    if (!t) status = gm_session_rollback(session, 0, NULL, why, sizeof why);
    else if (t->type != TYPE_I8) return fail(e, GM_BAD_FILE, "tensor session is %s, expected I8", t->format->name);
    else status = gm_session_restore_buffer(session, gguf_tensor_data(file, t), (size_t)t->bytes, why, sizeof why);
    return status == GM_OK ? GM_OK : fail(e, status, "%s", why);
}

gm_status conversation_load(conversation *c, gm_session *session, const char *path, error *e) {
    conversation loaded = { 0 };
    gguf        *file = NULL;
    uint32_t     version = 0;
    error        why = { 0 };
    gm_status    status = gguf_open_file(path, &file, e);
    if (status != GM_OK) return status;
    status = conversation_check_file(file, &version, &why);
    if (status == GM_OK) status = read_file(file, &loaded, &why);
    if (status == GM_OK) status = restore_session(file, version, session, &why);
    gguf_free(file);
    if (status != GM_OK) {
        conversation_free(&loaded);
        return fail(e, status, "cannot load %s: %s", path, why.why);
    }
    conversation_free(c);
    *c = loaded;
    return GM_OK;
}
