/* `gemmule chat`: what the loop and the slash commands share. */

#ifndef GM_CLI_CHAT_H
#define GM_CLI_CHAT_H

#include "cli/conversation.h"
#include "cli/line_editor.h"
#include "cli/video_input.h"

typedef struct {
    gm_engine   *engine;
    gm_session  *session;
    line_editor *lines;
    conversation talk;
    chat_media  *attached; /* for the next question */
    size_t       attached_count;
    video_values video;
    size_t       context; /* in tokens */
    bool         interactive, quiet;
    bool         leave; /* /exit was typed */
} chat_state;

/* Runs a slash command. */
gm_status chat_command(chat_state *s, const char *line, error *e);

#endif
