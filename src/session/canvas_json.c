#include "session/canvas_json.h"

#include "base/json.h"

void canvas_json(const gm_engine *engine, const gm_canvas *canvas, buffer *out) {
    buffer_printf(out, "{\"block\":%zu,\"step\":%zu,\"most_steps\":%zu,\"mean_entropy\":%.6g,\"last\":%s,\"tokens\":[",
                  canvas->block, canvas->step, canvas->most_steps, (double)canvas->mean_entropy,
                  canvas->last ? "true" : "false");
    for (size_t i = 0; i < canvas->count; i++) {
        const char *text = "";
        size_t      length = 0;
        gm_token_text(engine, canvas->ids[i], &text, &length);
        buffer_printf(out, "%s{\"id\":%d,\"text\":", i ? "," : "", (int)canvas->ids[i]);
        json_write_string(out, (str){ text, length });
        buffer_printf(out, ",\"entropy\":%.4g,\"accepted\":%s,\"pinned\":%s}", (double)canvas->entropies[i],
                      canvas->accepted[i] ? "true" : "false", canvas->pinned[i] ? "true" : "false");
    }
    buffer_text(out, "]}");
}
