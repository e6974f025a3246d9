/* Turns the messages of the API into a chat. */

#ifndef GM_PROMPT_H
#define GM_PROMPT_H

#include "session/engine.h"

/* The chat's texts and media are the caller's; the rest is in the arena. */
gm_status prompt_chat(const gm_engine *engine, const gm_message *messages, size_t count,
                      const gm_reply_options *options, arena *a, chat *out, error *e);

#endif
