/* A conversation: the turns so far, the system prompt, and the settings; and the file that `/save` writes. */

#ifndef GM_CONVERSATION_H
#define GM_CONVERSATION_H

#include "cli/engine_arguments.h"

/* Settings that /set changes. */
typedef struct {
    sampling_values sampling;
    count_value     max; /* tokens per answer */
} chat_settings;

enum { CHAT_SETTING_GROUPS = 2 };
extern const option_group chat_setting_groups[CHAT_SETTING_GROUPS]; /* offsets in chat_settings */

/* A picture, a sound, or a frame of a video, as the bytes of its file. The frames of a video follow each other. */
typedef struct {
    gm_part_kind kind;
    void        *data;
    size_t       size;
    double       time;  /* of a frame, in seconds */
    bool         first; /* of a video's frames */
} chat_media;

typedef struct {
    bool        from_user;
    char       *content;
    chat_media *media; /* before the content */
    size_t      media_count;
} chat_turn;

typedef struct {
    chat_turn    *turns;
    size_t        count, capacity;
    char         *system; /* NULL: the Ollama model's own, if any; "": none */
    bool          think;
    chat_settings settings;
} conversation; /* zero-initialise */

void      conversation_free(conversation *c);
gm_status conversation_add(conversation *c, bool from_user, str content, error *e);
/* Adds a copy of the bytes to a list: of what comes with the next question. */
gm_status chat_media_add(chat_media **list, size_t *count, gm_part_kind kind, str bytes, error *e);
void      chat_media_free(chat_media **list, size_t *count);
/* Gives the list to the last turn. */
void conversation_attach(conversation *c, chat_media **list, size_t *count);
void conversation_remove_last(conversation *c);
/* Forgets all turns and keeps the settings. */
void conversation_clear(conversation *c);
/* Forgets the oldest question and its answer; false if only the last question is left. */
bool      conversation_drop_oldest(conversation *c);
gm_status conversation_set_system(conversation *c, const char *text, error *e); /* as above */

/* The messages for gm_reply_start, valid until the conversation changes; free() the array. */
gm_status conversation_messages(const conversation *c, gm_message **out, size_t *count, error *e);

/* One GGUF file: the turns and settings as metadata, the session's snapshot as a tensor of bytes, so that going on costs
 * nothing and gives the same text as without the break. Written beside the target and renamed. */
gm_status conversation_save(const conversation *c, gm_session *session, const char *path, error *e);
/* Replaces conversation and session; a file that does not fit changes nothing. */
gm_status conversation_load(conversation *c, gm_session *session, const char *path, error *e);

#endif
