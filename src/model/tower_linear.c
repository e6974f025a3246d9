/* Linear layers that clip their input and their output. */

#include "model/towers.h"

#include <float.h>
#include <stdio.h>

static float linear_bound(weight_loader *from, const char *name, const char *end, float otherwise) {
    char text[128];
    snprintf(text, sizeof text, "%s.%s", name, end);
    const weight w = loader_vector(from, text, 1, false);
    return w.data ? *(const float *)w.data : otherwise;
}

clipped_linear tower_linear_load(weight_loader *from, const char *name, uint64_t k, uint64_t m,
                                 const float otherwise[4]) {
    static const float unlimited[] = { -FLT_MAX, FLT_MAX, -FLT_MAX, FLT_MAX };
    const float       *bounds = otherwise ? otherwise : unlimited;
    char               text[128];
    clipped_linear     out;
    snprintf(text, sizeof text, "%s.weight", name);
    out.w = loader_matrix(from, text, k, m, 1, true);
    out.in_least = linear_bound(from, name, "input_min", bounds[0]);
    out.in_most = linear_bound(from, name, "input_max", bounds[1]);
    out.out_least = linear_bound(from, name, "output_min", bounds[2]);
    out.out_most = linear_bound(from, name, "output_max", bounds[3]);
    if (!from->status && (out.in_least > out.in_most || out.out_least > out.out_most))
        from->status = fail(from->e, GM_BAD_FILE, "the bounds of '%s' are in the wrong order", text);
    return out;
}

static bool unbounded(float least, float most) { return least <= -FLT_MAX && most >= FLT_MAX; }

static tensor *clip_shared(graph *g, last_clip *last, tensor *x, float least, float most) {
    if (unbounded(least, most)) return x;
    if (x != last->from || least != last->least || most != last->most)
        *last = (last_clip){ x, graph_clamp(g, x, least, most), least, most };
    return last->clipped;
}

tensor *tower_product(corrections *added, const weight *w, tensor *x) {
    return corrections_add(added, graph_matmul(added->g, weight_tensor(added->g, w), x), w->name, x);
}

tensor *tower_linear(corrections *added, last_clip *last, const clipped_linear *l, tensor *x) {
    tensor *y = tower_product(added, &l->w, clip_shared(added->g, last, x, l->in_least, l->in_most));
    return unbounded(l->out_least, l->out_most) ? y : graph_clamp(added->g, y, l->out_least, l->out_most);
}
