/* A tool call's arguments: Gemma 4's notation → JSON. */

#ifndef GM_TOOL_ARGUMENTS_H
#define GM_TOOL_ARGUMENTS_H

#include "base/json.h"

/* `text` is "{…}"; appends compact JSON, always an object. `properties` (may be NULL) of the schema help to repair it.
 * Returns GM_OK, GM_BAD_FILE if the text cannot be repaired, or GM_NO_MEMORY. */
gm_status tool_arguments_to_json(str text, const json *properties, buffer *out, bool *repaired);

#endif
