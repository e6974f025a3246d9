/* A canvas as JSON, for clients of the server and for the package. */

#ifndef GM_CANVAS_JSON_H
#define GM_CANVAS_JSON_H

#include "base/buffer.h"
#include "gemmule.h"

/* {"block", "step", "most_steps", "mean_entropy", "last", "tokens": [{"id", "text", "entropy", "accepted", "pinned"}, …]} */
void canvas_json(const gm_engine *engine, const gm_canvas *canvas, buffer *out);

#endif
