#include "cli/report.h"

#include "cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void begin_item(report *r, const char *key) {
    if (r->comma) buffer_char(&r->text, ',');
    r->comma = true;
    if (!key) return;
    json_write_string(&r->text, str_of(key));
    buffer_char(&r->text, ':');
}

void report_open(report *r, const char *key, char bracket) {
    begin_item(r, key);
    buffer_char(&r->text, bracket);
    r->comma = false;
}

void report_close(report *r, char bracket) {
    buffer_char(&r->text, bracket);
    r->comma = true;
}

void report_str(report *r, const char *key, str value) {
    begin_item(r, key);
    json_write_string(&r->text, value);
}

void report_text(report *r, const char *key, const char *value) {
    if (value) report_str(r, key, str_of(value));
    else report_null(r, key);
}

void report_count(report *r, const char *key, uint64_t value) {
    begin_item(r, key);
    buffer_printf(&r->text, "%" PRIu64, value);
}

void report_integer(report *r, const char *key, int64_t value) {
    begin_item(r, key);
    buffer_printf(&r->text, "%" PRId64, value);
}

void report_number(report *r, const char *key, double value) {
    begin_item(r, key);
    if (isfinite(value)) buffer_printf(&r->text, "%.6g", value);
    else buffer_text(&r->text, "null");
}

void report_bool(report *r, const char *key, bool value) {
    begin_item(r, key);
    buffer_text(&r->text, value ? "true" : "false");
}

void report_null(report *r, const char *key) {
    begin_item(r, key);
    buffer_text(&r->text, "null");
}

void report_json(report *r, const char *key, str written) {
    begin_item(r, key);
    buffer_str(&r->text, written);
}

int report_print(report *r) {
    int code = EXIT_OK;
    if (r->text.failed) {
        code = complain(EXIT_NO_DEVICE, "not enough memory for the output");
    } else {
        fwrite(r->text.data, 1, r->text.length, stdout);
        putchar('\n');
    }
    buffer_free(&r->text);
    *r = (report){ 0 };
    return code;
}
