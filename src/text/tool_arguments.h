/* A tool call's arguments: Gemma 4's notation → JSON. */

#ifndef GM_TOOL_ARGUMENTS_H
#define GM_TOOL_ARGUMENTS_H

#include "base/json.h"

/* `text` is "{…}"; appends compact JSON, always an object. `properties` (may be NULL) is the schema's, used to mend.
 * Returns GM_OK, GM_BAD_FILE when the text cannot be mended, or GM_NO_MEMORY. */
gm_status tool_arguments_to_json(str text, const json *properties, buffer *out, bool *repaired);

#endif
