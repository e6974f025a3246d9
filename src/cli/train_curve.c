/* The loss curve of a training as an SVG picture: the steps' losses, their smoothed course, and the evaluations. */

#include "cli/train_report.h"

#include "base/buffer.h"
#include "base/new_file.h"

#include <math.h>

enum { CURVE_WIDTH = 800, CURVE_HEIGHT = 400, CURVE_LEFT = 60, CURVE_RIGHT = 20, CURVE_TOP = 20, CURVE_BOTTOM = 40 };

typedef struct {
    buffer          out;
    const float    *losses, *evals;
    const uint64_t *eval_steps;
    size_t          steps, eval_count;
    double          low, high; /* of the vertical axis */
} train_curve;

static double curve_x(const train_curve *c, double step) {
    const double span = c->steps > 1 ? (double)c->steps : 1;
    return CURVE_LEFT + step / span * (CURVE_WIDTH - CURVE_LEFT - CURVE_RIGHT);
}

static double curve_y(const train_curve *c, double loss) {
    return CURVE_HEIGHT - CURVE_BOTTOM -
           (loss - c->low) / (c->high - c->low) * (CURVE_HEIGHT - CURVE_TOP - CURVE_BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that an axis gets some five marks. */
static double curve_mark(double span) {
    const double rough = span / 5, power = pow(10, floor(log10(rough))), times = rough / power;
    return power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

static void curve_measure(train_curve *c) {
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < c->steps + c->eval_count; i++) {
        const double loss = (double)(i < c->steps ? c->losses[i] : c->evals[i - c->steps]);
        low = loss < low ? loss : low;
        high = loss > high ? loss : high;
    }
    if (!(high > low)) high = low + 1;
    const double mark = curve_mark(high - low);
    c->low = floor(low / mark) * mark;
    c->high = ceil(high / mark) * mark;
}

static void curve_axes(train_curve *c) {
    const double mark = curve_mark(c->high - c->low), steps = fmax(1, curve_mark((double)c->steps));
    for (int i = 0; c->low + i * mark <= c->high + mark / 2; i++) {
        const double y = curve_y(c, c->low + i * mark);
        buffer_printf(&c->out, "<path d=\"M%d %.1fH%d\" stroke=\"#8884\"/>\n", CURVE_LEFT, y,
                      CURVE_WIDTH - CURVE_RIGHT);
        buffer_printf(&c->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", CURVE_LEFT - 8, y + 4,
                      c->low + i * mark);
    }
    for (size_t i = 0; (double)i * steps <= (double)c->steps; i++)
        buffer_printf(&c->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                      curve_x(c, (double)i * steps), CURVE_HEIGHT - CURVE_BOTTOM + 18, (double)i * steps);
    buffer_printf(&c->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">steps</text>\n", CURVE_WIDTH - CURVE_RIGHT,
                  CURVE_HEIGHT - 6);
}

/* At most a thousand points, each the mean of its steps; if smooth, averaged over about a tenth of them that came before. */
static void curve_steps(train_curve *c, bool smooth, const char *style) {
    const size_t every = c->steps / 1000 + 1, points = c->steps / every + 1;
    const double keeps = smooth ? fmin(0.95, (double)points / (double)(points + 10)) : 0;
    double       mean = 0, weight = 0;
    buffer_printf(&c->out, "<polyline fill=\"none\" %s points=\"", style);
    for (size_t first = 0; first < c->steps; first += every) {
        const size_t end = min_size(first + every, c->steps);
        double       sum = 0;
        for (size_t i = first; i < end; i++) sum += (double)c->losses[i];
        mean = keeps * mean + (1 - keeps) * sum / (double)(end - first);
        weight = keeps * weight + 1 - keeps;
        buffer_printf(&c->out, "%.1f,%.1f ", curve_x(c, (double)end), curve_y(c, mean / weight));
    }
    buffer_text(&c->out, "\"/>\n");
}

static void curve_evaluations(train_curve *c) {
    buffer_text(&c->out, "<polyline fill=\"none\" stroke=\"#d9722e\" stroke-width=\"2\" points=\"");
    for (size_t i = 0; i < c->eval_count; i++)
        buffer_printf(&c->out, "%.1f,%.1f ", curve_x(c, (double)c->eval_steps[i]), curve_y(c, (double)c->evals[i]));
    buffer_text(&c->out, "\"/>\n");
    for (size_t i = 0; i < c->eval_count; i++)
        buffer_printf(&c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#d9722e\"/>\n",
                      curve_x(c, (double)c->eval_steps[i]), curve_y(c, (double)c->evals[i]));
    if (c->eval_count)
        buffer_printf(&c->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#d9722e\">evaluation</text>\n",
                      CURVE_WIDTH - CURVE_RIGHT, CURVE_TOP + 28);
}

gm_status train_curve_save(const gm_training *t, const char *path, error *e) {
    train_curve c = { 0 };
    new_file   *file = NULL;
    c.steps = gm_training_losses(t, &c.losses);
    c.eval_count = gm_training_evaluations(t, &c.evals, &c.eval_steps);
    if (!c.steps) return GM_OK;
    curve_measure(&c);
    buffer_printf(&c.out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
                  "font-size=\"12\" fill=\"#888\">\n<title>Loss of %zu steps: %.4f at first, %.4f at last</title>\n",
                  CURVE_WIDTH, CURVE_HEIGHT, c.steps, (double)c.losses[0], (double)c.losses[c.steps - 1]);
    curve_axes(&c);
    curve_steps(&c, false, "stroke=\"#3b82c4\" stroke-opacity=\"0.35\"");
    curve_steps(&c, true, "stroke=\"#3b82c4\" stroke-width=\"2\"");
    curve_evaluations(&c);
    buffer_printf(&c.out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#3b82c4\">loss</text>\n</svg>\n",
                  CURVE_WIDTH - CURVE_RIGHT, CURVE_TOP + 12);
    gm_status status = c.out.failed ? fail_memory(e, "the loss curve", c.out.length) : GM_OK;
    if (!status) status = new_file_open(path, NEW_FILE_BULK, &file, e);
    if (!status) {
        const error none = { 0 };
        new_file_write(file, c.out.data, c.out.length);
        status = new_file_end(file, &none, e);
    }
    buffer_free(&c.out);
    return status;
}
