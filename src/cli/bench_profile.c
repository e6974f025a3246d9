#include "cli/bench_profile.h"

#include "base/new_file.h"

#include <stdio.h>

typedef struct {
    const char        *name, *unit; /* "decode", "token" */
    const gpu_profile *profile;
    double             units; /* tokens of decode, or 1 prompt */
} phase;

enum { PHASES = 7 };

static size_t phases_of(const bench_profile *p, phase out[PHASES]) {
    size_t count = 0;
    if (p->prefill.runs) out[count++] = (phase){ "prefill", "prompt", &p->prefill, 1 };
    if (p->decode.runs) out[count++] = (phase){ "decode", "token", &p->decode, (double)p->decode.runs };
    if (p->canvas.runs) out[count++] = (phase){ "diffusion", "step", &p->canvas, (double)p->canvas.runs };
    if (p->parallel.runs) out[count++] = (phase){ "parallel", "step", &p->parallel, (double)p->parallel.runs };
    if (p->train.runs) out[count++] = (phase){ "train", "step", &p->train, 1 };
    if (p->image.runs) out[count++] = (phase){ "image", "picture", &p->image, 1 };
    if (p->audio.runs) out[count++] = (phase){ "audio", "sound", &p->audio, 1 };
    return count;
}

static double profile_rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }
static double profile_percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* How close a row is to what bandwidth and arithmetic allow, in profile_percent. */
static double bandwidth_used(const bench_profile *p, const profile_row *r) {
    return profile_percent(profile_rate(r->bytes, r->seconds), p->limits.bytes);
}
static double arithmetic_used(const bench_profile *p, const profile_row *r) {
    return profile_percent(profile_rate(r->flops, r->seconds), p->limits.flops);
}

static double milliseconds(const phase *f) { return f->profile->seconds * 1e3 / f->units; }
static double dispatches(const phase *f) { return (double)f->profile->dispatches / f->units; }

/* ---- table ---- */

void bench_profile_print(const bench_profile *p) {
    phase        phases[PHASES];
    const size_t count = phases_of(p, phases);
    printf("limits    %.4g GB/s and %.3g TFLOP/s in f32, as measured here; products in 8 bits or on matrix units can "
           "exceed the latter\n",
           p->limits.bytes / 1e9, p->limits.flops / 1e12);
    for (size_t i = 0; i < count; i++) {
        const phase *f = &phases[i];
        printf("\n%s: %.0f dispatches, %.3f ms per %s on the GPU\n", f->name, dispatches(f), milliseconds(f), f->unit);
        printf("   share   µs each    count      GB/s  of all   TFLOP/s  of all  kernel                what\n");
        for (size_t j = 0; j < f->profile->count; j++) {
            const profile_row *r = &f->profile->rows[j];
            printf("%6.1f %% %9.2f %8.0f %9.1f %5.0f %% %9.3f %5.0f %%  %-21s %s\n",
                   profile_percent(r->seconds, f->profile->seconds), r->seconds * 1e6 / (double)r->count,
                   (double)r->count / f->units, profile_rate(r->bytes, r->seconds) / 1e9, bandwidth_used(p, r),
                   profile_rate(r->flops, r->seconds) / 1e12, arithmetic_used(p, r), r->kernel, r->what);
        }
    }
}

/* ---- JSON ---- */

static void report_profile_row(report *r, const phase *f, const profile_row *row) {
    report_open(r, NULL, '{');
    report_text(r, "what", row->what);
    report_text(r, "kernel", row->kernel);
    report_count(r, "count", row->count);
    report_number(r, "microseconds", row->seconds * 1e6);
    report_number(r, "share", row->seconds / f->profile->seconds);
    report_count(r, "bytes", (uint64_t)row->bytes);
    report_count(r, "flops", (uint64_t)row->flops);
    report_close(r, '}');
}

void bench_profile_report(report *r, const bench_profile *p) {
    phase        phases[PHASES];
    const size_t count = phases_of(p, phases);
    report_open(r, "profile", '{');
    report_number(r, "bytes_per_second", p->limits.bytes);
    report_number(r, "flops_per_second", p->limits.flops);
    for (size_t i = 0; i < count; i++) {
        const phase *f = &phases[i];
        report_open(r, f->name, '{');
        report_count(r, "runs", f->profile->runs);
        report_count(r, "tokens", f->profile->tokens);
        report_count(r, "dispatches", f->profile->dispatches);
        report_number(r, "microseconds", f->profile->seconds * 1e6);
        report_open(r, "kinds", '[');
        for (size_t j = 0; j < f->profile->count; j++) report_profile_row(r, f, &f->profile->rows[j]);
        report_close(r, ']');
        report_close(r, '}');
    }
    report_close(r, '}');
}

/* ---- picture ---- */

enum { WIDTH = 1180, LEFT = 530, BAR = 300, ROW = 20, HEAD = 44, TOP = 56 };

static void svg_text(buffer *b, const char *text) {
    for (const char *c = text; *c; c++) {
        if (*c == '&') buffer_text(b, "&amp;");
        else if (*c == '<') buffer_text(b, "&lt;");
        else if (*c == '>') buffer_text(b, "&gt;");
        else buffer_char(b, *c);
    }
}

/* A bar as long as the row's share of the time. Its dark part is the time that bandwidth or arithmetic alone would take. */
static void draw_row(buffer *b, const bench_profile *p, const phase *f, const profile_row *r, double longest,
                     size_t y) {
    const double bandwidth = bandwidth_used(p, r), arithmetic = arithmetic_used(p, r);
    const double length = BAR * r->seconds / longest, limit = bandwidth > arithmetic ? bandwidth : arithmetic;
    buffer_printf(b, "<text x=\"%d\" y=\"%zu\" text-anchor=\"end\">", LEFT - 8, y + 14);
    svg_text(b, r->what);
    buffer_text(b, " <tspan class=\"note\">");
    svg_text(b, r->kernel);
    buffer_printf(b, "</tspan></text>\n<rect class=\"time\" x=\"%d\" y=\"%zu\" width=\"%.1f\" height=\"%d\"/>\n", LEFT,
                  y + 3, length, ROW - 6);
    buffer_printf(b, "<rect class=\"limit\" x=\"%d\" y=\"%zu\" width=\"%.1f\" height=\"%d\"/>\n", LEFT, y + 3,
                  length * (limit < 100 ? limit : 100) / 100, ROW - 6);
    buffer_printf(b, "<text class=\"note\" x=\"%.1f\" y=\"%zu\">%.1f %% · %.1f µs × %.0f", LEFT + length + 6, y + 14,
                  profile_percent(r->seconds, f->profile->seconds), r->seconds * 1e6 / (double)r->count,
                  (double)r->count / f->units);
    if (limit >= 0.5) buffer_printf(b, " · %.0f %% of %s", limit, bandwidth > arithmetic ? "bandwidth" : "arithmetic");
    buffer_text(b, "</text>\n");
}

static void draw_phase(buffer *b, const bench_profile *p, const phase *f, size_t y) {
    buffer_printf(b, "<text class=\"head\" x=\"16\" y=\"%zu\">%s: %.0f dispatches, %.3f ms per %s</text>\n", y + 28,
                  f->name, dispatches(f), milliseconds(f), f->unit);
    for (size_t i = 0; i < f->profile->count; i++)
        draw_row(b, p, f, &f->profile->rows[i], f->profile->rows[0].seconds, y + HEAD + i * ROW);
}

static void draw_all(buffer *b, const bench_profile *p, const char *title) {
    phase        phases[PHASES];
    const size_t count = phases_of(p, phases);
    size_t       height = TOP + 16;
    for (size_t i = 0; i < count; i++) height += HEAD + phases[i].profile->count * ROW;
    buffer_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" viewBox=\"0 0 %d %zu\">\n"
                  "<style>text { font: 12px sans-serif; fill: #222 } .title { font-size: 16px; font-weight: bold }\n"
                  ".head { font-size: 14px; font-weight: bold } .note { fill: #555 } .time { fill: #9cc3e6 } "
                  ".limit { fill: #1f6fb2 }</style>\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text class=\"title\" x=\"16\" y=\"28\">",
                  WIDTH, height, WIDTH, height);
    svg_text(b, title);
    buffer_printf(
        b,
        "</text>\n<text class=\"note\" x=\"16\" y=\"48\">bar: share of the time; dark: the time that %.4g GB/s or "
        "%.3g TFLOP/s (f32) alone would take</text>\n",
        p->limits.bytes / 1e9, p->limits.flops / 1e12);
    for (size_t i = 0, y = TOP; i < count; i++) {
        draw_phase(b, p, &phases[i], y);
        y += HEAD + phases[i].profile->count * ROW;
    }
    buffer_text(b, "</svg>\n");
}

gm_status bench_profile_draw(const bench_profile *p, const char *title, const char *path, error *e) {
    buffer    b = { 0 };
    new_file *file = NULL;
    error     problem = { 0 };
    draw_all(&b, p, title);
    if (b.failed) fail_memory(&problem, "the picture", b.length);
    gm_status status = new_file_open(path, NEW_FILE_BULK, &file, e);
    if (!status && !problem.status) new_file_write(file, b.data, b.length);
    if (!status) status = new_file_end(file, &problem, e);
    buffer_free(&b);
    return status;
}

void bench_profile_free(bench_profile *p) {
    gpu_profile_free(&p->prefill);
    gpu_profile_free(&p->decode);
    gpu_profile_free(&p->canvas);
    gpu_profile_free(&p->parallel);
    gpu_profile_free(&p->train);
    gpu_profile_free(&p->image);
    gpu_profile_free(&p->audio);
}
