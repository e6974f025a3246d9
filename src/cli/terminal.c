#include "cli/terminal.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double first_after = 0.3, redraw_after = 0.1; /* seconds */

bool terminal_input(void) { return isatty(STDIN_FILENO); }
bool terminal_output(void) { return isatty(STDOUT_FILENO); }
bool terminal_errors(void) { return isatty(STDERR_FILENO); }

size_t terminal_width(void) {
    struct winsize size;
    if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col) return size.ws_col;
    return 80;
}

void format_bytes(uint64_t bytes, char out[32]) {
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    double                   value = (double)bytes;
    size_t                   unit = 0;
    while (value >= 999.5 && unit + 1 < COUNT_OF(units)) {
        value /= 1000;
        unit++;
    }
    const int digits = unit == 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    snprintf(out, 32, "%.*f %s", digits, value, units[unit]);
}

void format_duration(double seconds, char out[32]) {
    const double   limited = seconds > 359999 ? 359999 : seconds < 0 ? 0 : seconds;
    const unsigned whole = (unsigned)(limited + 0.5);
    if (whole >= 3600) snprintf(out, 32, "%u:%02u:%02u", whole / 3600, whole / 60 % 60, whole % 60);
    else snprintf(out, 32, "%u:%02u", whole / 60, whole % 60);
}

void progress_start(progress *p, const char *what, progress_unit unit, bool wanted) {
    const double now = clock_seconds();
    *p = (progress){ .on = wanted && terminal_errors(), .what = what, .unit = unit, .started = now, .drawn = now };
}

static void format_amounts(const progress *p, uint64_t done, uint64_t total, double rate, char *out, size_t size) {
    char a[32], b[32], c[32];
    switch (p->unit) {
    case PROGRESS_BYTES:
        format_bytes(done, a);
        format_bytes(total, b);
        format_bytes((uint64_t)rate, c);
        snprintf(out, size, "%s / %s, %s/s", a, b, c);
        break;
    case PROGRESS_TOKENS:
        snprintf(out, size, "%llu / %llu tokens, %.1f/s", (unsigned long long)done, (unsigned long long)total, rate);
        break;
    case PROGRESS_SHADERS:
        snprintf(out, size, "%llu of %llu shaders", (unsigned long long)done, (unsigned long long)total);
        break;
    case PROGRESS_STEPS: snprintf(out, size, "%llu / %llu", (unsigned long long)done, (unsigned long long)total); break;
    }
}

void progress_update(progress *p, uint64_t done, uint64_t total) {
    if (!p->on || !total) return;
    const double now = clock_seconds(), elapsed = now - p->started;
    if (now - p->drawn < (p->shown ? redraw_after : first_after)) return;
    p->drawn = now;
    p->shown = true;

    const double part = done >= total ? 1 : (double)done / (double)total;
    const double rate = elapsed > 0 ? (double)done / elapsed : 0;
    char         amounts[120], left[32] = "-:--", line[300];
    format_amounts(p, done, total, rate, amounts, sizeof amounts);
    if (rate > 0) format_duration((double)(total - (done < total ? done : total)) / rate, left);

    const size_t      texts = strlen(p->what) + strlen(amounts) + strlen(left) + 20;
    const size_t      width = terminal_width();
    const size_t      bar = width > texts + 8 ? min_size(width - texts, 40) : 0;
    const size_t      full = (size_t)(part * (double)bar);
    static const char filled[] = "########################################",
                      empty[] = "........................................";
    if (bar) {
        snprintf(line, sizeof line, "%s [%.*s%.*s] %3.0f %%  %s, %s left", p->what, (int)full, filled,
                 (int)(bar - full), empty, part * 100, amounts, left);
    } else {
        snprintf(line, sizeof line, "%s %3.0f %%", p->what, part * 100);
    }
    fprintf(stderr, "\r%.*s\033[K", (int)(width > 1 ? width - 1 : 1), line); /* one line, never wrapped */
    fflush(stderr);
}

void progress_end(progress *p) {
    if (p->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->on = p->shown = false;
}

const char *dim_on(bool on) { return on ? "\033[2m" : ""; }
const char *dim_off(bool on) { return on ? "\033[0m" : ""; }
