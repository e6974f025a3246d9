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

gm_status chat_media_add(chat_media **list, size_t *count, gm_part_kind kind, str bytes, error *e) {
    chat_media *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown) return fail_memory(e, "the conversation", (*count + 1) * sizeof *grown);
    *list = grown;
    char *copy = conversation_copy_text(bytes, e);
    if (!copy) return e->status;
    grown[(*count)++] = (chat_media){ .kind = kind, .data = copy, .size = bytes.length };
    return GM_OK;
}

void chat_media_free(chat_media **list, size_t *count) {
    while (*count) free((*list)[--*count].data);
    free(*list);
    *list = NULL;
}

void conversation_attach(conversation *c, chat_media **list, size_t *count) {
    chat_turn *turn = &c->turns[c->count - 1];
    turn->media = *list;
    turn->media_count = *count;
    *list = NULL;
    *count = 0;
}

static void turn_free(chat_turn *turn) {
    chat_media_free(&turn->media, &turn->media_count);
    free(turn->content);
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
    c->turns[c->count++] = (chat_turn){ .from_user = from_user, .content = copy };
    return GM_OK;
}

void conversation_remove_last(conversation *c) {
    if (c->count) turn_free(&c->turns[--c->count]);
}

bool conversation_drop_oldest(conversation *c) {
    size_t end = 1; /* index of the second question */
    while (end < c->count && !c->turns[end].from_user) end++;
    if (end >= c->count) return false;
    for (size_t i = 0; i < end; i++) turn_free(&c->turns[i]);
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

/* Free places for the parts and frames of messages. */
typedef struct {
    gm_part  *parts;
    gm_frame *frames;
} message_room;

/* Adds to the part before if it is a further frame of its video. */
static void media_to_part(const chat_media *media, gm_message *out, message_room *room) {
    const bool frame = media->kind == GM_PART_VIDEO;
    if (!frame || media->first) {
        *room->parts++ = (gm_part){ .kind = media->kind, .frames = frame ? room->frames : NULL };
        out->part_count++;
    }
    gm_part *part = room->parts - 1;
    if (frame) {
        *room->frames++ = (gm_frame){ .time = media->time, .data = media->data, .size = media->size };
        part->frame_count++;
    } else {
        part->data = media->data;
        part->size = media->size;
    }
}

/* A turn with media becomes parts: first these, then the text. */
static void turn_message(const chat_turn *turn, gm_message *out, message_room *room) {
    *out = (gm_message){ .role = turn->from_user ? "user" : "assistant", .content = turn->content };
    if (!turn->media_count) return;
    out->content = NULL;
    out->parts = room->parts;
    for (size_t i = 0; i < turn->media_count; i++) media_to_part(&turn->media[i], out, room);
    *room->parts++ = (gm_part){ .text = turn->content };
    out->part_count++;
}

gm_status conversation_messages(const conversation *c, gm_message **out, size_t *count, error *e) {
    size_t n = 0, media = 0;
    for (size_t i = 0; i < c->count; i++) media += c->turns[i].media_count ? c->turns[i].media_count + 1 : 0;
    const size_t bytes = (c->count + 1) * sizeof(gm_message) + media * (sizeof(gm_part) + sizeof(gm_frame));
    gm_message  *messages = calloc(1, bytes); /* parts and frames are behind the messages */
    if (!messages) return fail_memory(e, "the conversation", bytes);
    message_room room = { .parts = (gm_part *)(void *)(messages + c->count + 1) };
    room.frames = (gm_frame *)(void *)(room.parts + media);
    if (c->system) messages[n++] = (gm_message){ .role = "system", .content = *c->system ? c->system : NULL };
    for (size_t i = 0; i < c->count; i++) turn_message(&c->turns[i], &messages[n++], &room);
    *out = messages;
    *count = n;
    return GM_OK;
}
