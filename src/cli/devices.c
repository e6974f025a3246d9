/* gemmule devices: lists the GPUs that WebGPU finds. */

#include "cli/cli.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "gpu/host.h"

#include <stdio.h>

enum { MOST_DEVICES = 16 };

typedef struct {
    bool json;
} devices_values;

static const option options[] = {
    FLAG_OPTION(devices_values, json, "json", 0, "print one JSON object with all limits"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

static const struct {
    const char *name;
    size_t      offset;
} features[] = {
    { "subgroups", offsetof(gpu_info, subgroups) },
    { "f16", offsetof(gpu_info, f16) },
    { "dot4", offsetof(gpu_info, dot4) },
    { "timestamps", offsetof(gpu_info, timestamps) },
    { "subgroup_matrix", offsetof(gpu_info, subgroup_matrix) },
};

static bool has_feature(const gpu_info *d, size_t i) { return *((const char *)d + features[i].offset); }

/* Whether --backend auto uses a GPU: the fastest one, unless it is software. */
static bool auto_uses_gpu(const gpu_info *devices, size_t count) { return count && !devices[0].software; }

static int devices_print_json(const gpu_info *devices, size_t count) {
    report r = { 0 };
    report_open(&r, NULL, '{');
    report_open(&r, "devices", '[');
    for (size_t i = 0; i < count; i++) {
        const gpu_info *d = &devices[i];
        report_open(&r, NULL, '{');
        report_count(&r, "gpu", i);
        report_text(&r, "name", d->name);
        report_text(&r, "vendor", d->vendor);
        report_text(&r, "backend", d->backend);
        report_text(&r, "driver", d->driver);
        report_bool(&r, "software", d->software);
        report_open(&r, "features", '[');
        for (size_t j = 0; j < COUNT_OF(features); j++) {
            if (has_feature(d, j)) report_text(&r, NULL, features[j].name);
        }
        report_close(&r, ']');
        report_count(&r, "subgroup_min", d->subgroup_min);
        report_count(&r, "subgroup_max", d->subgroup_max);
        report_count(&r, "max_buffer", d->max_buffer);
        report_count(&r, "max_binding", d->max_binding);
        report_count(&r, "max_storage_buffers", d->max_storage_buffers);
        report_count(&r, "max_invocations", d->max_invocations);
        report_count(&r, "max_workgroups", d->max_workgroups);
        report_count(&r, "max_workgroup_bytes", d->max_workgroup_bytes);
        report_count(&r, "alignment", d->alignment);
        report_close(&r, '}');
    }
    report_close(&r, ']');
    report_text(&r, "auto", auto_uses_gpu(devices, count) ? "gpu" : "cpu");
    report_close(&r, '}');
    return report_print(&r);
}

static void print_device(size_t number, const gpu_info *d) {
    char        largest_buffer[32], largest_binding[32], workgroup[32];
    const char *separator = "";
    format_bytes(d->max_buffer, largest_buffer);
    format_bytes(d->max_binding, largest_binding);
    format_bytes(d->max_workgroup_bytes, workgroup);
    printf("%zu: %s%s\n", number, d->name, d->software ? " (software)" : "");
    printf("   driver      %s, %s\n", d->backend, d->driver[0] ? d->driver : "unknown");
    printf("   features    ");
    for (size_t i = 0; i < COUNT_OF(features); i++) {
        if (!has_feature(d, i)) continue;
        printf("%s%s", separator, features[i].name);
        if (features[i].offset == offsetof(gpu_info, subgroups)) printf(" of %u", d->subgroup_min);
        if (features[i].offset == offsetof(gpu_info, subgroups) && d->subgroup_max > d->subgroup_min) {
            printf(" to %u", d->subgroup_max);
        }
        separator = ", ";
    }
    printf("%s\n", *separator ? "" : "none");
    printf("   buffers     up to %s each, %s per binding, %u bindings\n", largest_buffer, largest_binding,
           d->max_storage_buffers);
    printf("   workgroups  up to %u invocations, %s of memory\n", d->max_invocations, workgroup);
}

static int devices_run(void *values, const arguments *args) {
    (void)args;
    const devices_values *v = values;
    gpu_info              devices[MOST_DEVICES];
    error                 e = { 0 };
    size_t                count = 0;
    if (gpu_host_list(devices, COUNT_OF(devices), &count, &e) != GM_OK) return complain_error(&e);
    count = min_size(count, COUNT_OF(devices));
    if (v->json) return devices_print_json(devices, count);
    for (size_t i = 0; i < count; i++) print_device(i, &devices[i]);
    if (auto_uses_gpu(devices, count)) printf("--backend auto uses GPU 0 for models of at least 128 MiB\n");
    else printf("--backend auto uses the CPU, since a software GPU is slower\n");
    return EXIT_OK;
}

const command command_devices = {
    .name = "devices",
    .arguments = "",
    .summary = "list this machine's GPUs",
    .description = "Prints the number, driver, features and limits of each GPU, the fastest first, and which device "
                   "--backend auto "
                   "uses. If there is no GPU, exits with 4 and says what is missing: the WebGPU library or a driver.",
    .examples = "  gemmule devices\n  gemmule devices --json | jq -r '.devices[].name'\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .values_size = sizeof(devices_values),
    .run = devices_run,
};
