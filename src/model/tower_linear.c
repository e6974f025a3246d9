/* Linear layers that clip their input and their output. */

#include "model/towers.h"

#include <float.h>

static bool unbounded(float least, float most) { return least <= -FLT_MAX && most >= FLT_MAX; }

static tensor *clip_shared(graph *g, last_clip *last, tensor *x, float least, float most) {
    if (unbounded(least, most)) return x;
    if (x != last->from || least != last->least || most != last->most)
        *last = (last_clip){ x, graph_clamp(g, x, least, most), least, most };
    return last->clipped;
}

tensor *tower_linear(graph *g, last_clip *last, const clipped_linear *l, tensor *x) {
    tensor *y = graph_matmul(g, weight_tensor(g, &l->w), clip_shared(g, last, x, l->in_least, l->in_most));
    return unbounded(l->out_least, l->out_most) ? y : graph_clamp(g, y, l->out_least, l->out_most);
}
