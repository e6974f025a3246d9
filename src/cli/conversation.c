#include "cli/conversation.h"

#include <stdlib.h>
#include <string.h>

static const option chat_options[] = {
    COUNT_OPTION(chat_settings, max, "max", 0, "N", 1, UINT32_MAX,
                 "at most N tokens per answer; default: the Ollama model's num_predict, or as many as fit"),
};

const option_group chat_setting_groups[CHAT_SETTING_GROUPS] = {
    OPTION_GROUP("answers", chat_options, 0),
    SAMPLING_GROUP(offsetof(chat_settings, sampling)),
};

void conversation_clear(conversation *c) {
    while (c->count) conversation_remove_last(c);
}

void conversation_free(conversation *c) {
    conversation_clear(c);
    free(c->turns);
    free(c->system);
    *c = (conversation){ 0 };
}

static char *conversation_copy_text(str text, error *e) {
    char *copy = malloc(text.length + 1);
    if (!copy) {
        fail_memory(e, "the conversation", text.length);
        return NULL;
    }
    if (text.length) memcpy(copy, text.data, text.length);
    copy[text.length] = 0;
    return copy;
}

gm_status conversation_add(conversation *c, bool from_user, str content, error *e) {
    if (c->count == c->capacity) {
        const size_t capacity = max_size(16, 2 * c->capacity);
        chat_turn   *turns = realloc(c->turns, capacity * sizeof *turns);
        if (!turns) return fail_memory(e, "the conversation", capacity * sizeof *turns);
        c->turns = turns;
        c->capacity = capacity;
    }
    char *copy = conversation_copy_text(content, e);
    if (!copy) return e->status;
    c->turns[c->count++] = (chat_turn){ from_user, copy };
    return GM_OK;
}

void conversation_remove_last(conversation *c) {
    if (c->count) free(c->turns[--c->count].content);
}

bool conversation_drop_oldest(conversation *c) {
    size_t end = 1; /* index of the second question */
    while (end < c->count && !c->turns[end].from_user) end++;
    if (end >= c->count) return false;
    for (size_t i = 0; i < end; i++) free(c->turns[i].content);
    memmove(c->turns, c->turns + end, (c->count - end) * sizeof *c->turns);
    c->count -= end;
    return true;
}

gm_status conversation_set_system(conversation *c, const char *text, error *e) {
    char *copy = text ? conversation_copy_text(str_of(text), e) : NULL;
    if (text && !copy) return e->status;
    free(c->system);
    c->system = copy;
    return GM_OK;
}

gm_status conversation_messages(const conversation *c, gm_message **out, size_t *count, error *e) {
    gm_message *messages = calloc(c->count + 1, sizeof *messages);
    if (!messages) return fail_memory(e, "the conversation", c->count * sizeof *messages);
    size_t n = 0;
    if (c->system) messages[n++] = (gm_message){ .role = "system", .content = *c->system ? c->system : NULL };
    for (size_t i = 0; i < c->count; i++) {
        messages[n++] =
            (gm_message){ .role = c->turns[i].from_user ? "user" : "assistant", .content = c->turns[i].content };
    }
    *out = messages;
    *count = n;
    return GM_OK;
}
