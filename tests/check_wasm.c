/* `gemmule check` as a WebAssembly program, for pages and Node: the command and the engine are the program's own. Here is what only
 * an operating system has: files are read whole, nothing interrupts, and there is no terminal. The last line says what computed it.
 *
 *     check_wasm MODEL EXPECT [OPTIONS] */

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "gguf/source.h"
#include "session/runner.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- files: the engine for the web does not open any, so the linker puts this function before its own ---- */

gm_status __wrap_source_file(const char *path, source **out, error *e);

gm_status __wrap_source_file(const char *path, source **out, error *e) {
    FILE *file = fopen(path, "rb");
    *out = NULL;
    if (!file) return fail(e, GM_NOT_FOUND, "%s: cannot be opened", path);
    fseek(file, 0, SEEK_END);
    const long length = ftell(file);
    rewind(file);
    void      *bytes = length > 0 ? malloc((size_t)length) : NULL; /* kept: the program ends after one check */
    const bool whole = bytes && fread(bytes, 1, (size_t)length, file) == (size_t)length;
    fclose(file);
    return whole ? source_memory(bytes, (uint64_t)length, out, e) : fail(e, GM_IO, "%s: cannot be read", path);
}

/* ---- waiting: a page returns to its event loop instead, and calls again; a command waits for the GPU, where JSPI suspends it ---- */

bool      __wrap_runner_wait(gpu_host *gpu, double deadline);
gm_status __real_runner_step(runner *r, const kv_store *store, const run_inputs *in, float *logits, double deadline,
                             error *e);
gm_status __wrap_runner_step(runner *r, const kv_store *store, const run_inputs *in, float *logits, double deadline,
                             error *e);

static const char *ran_on = "nothing"; /* what computed the last run */

bool __wrap_runner_wait(gpu_host *gpu, double deadline) {
    (void)deadline;
    gpu_host_wait(gpu, 100);
    return true;
}

gm_status __wrap_runner_step(runner *r, const kv_store *store, const run_inputs *in, float *logits, double deadline,
                             error *e) {
    const gm_status status = __real_runner_step(r, store, in, logits, deadline, e);
    ran_on = r->engine->on_gpu ? "the GPU" : "the CPU";
    if (status == GM_AGAIN && r->engine->on_gpu) gpu_host_wait(r->engine->gpu.host, 100);
    return status;
}

/* ---- signals and terminals ---- */

void interrupt_catch(void) {}
void interrupt_watch(gm_session *session) { (void)session; }
bool interrupted(void) { return false; }

bool   terminal_input(void) { return false; }
bool   terminal_output(void) { return false; }
size_t terminal_width(void) { return 80; }

void progress_start(progress *p, const char *what, progress_unit unit, bool wanted) {
    (void)unit, (void)wanted;
    *p = (progress){ .what = what };
}
void progress_update(progress *p, uint64_t done, uint64_t total) { (void)p, (void)done, (void)total; }
void progress_end(progress *p) { (void)p; }

/* ---- the command ---- */

int main(int argc, char **argv) {
    const command *c = &command_check;
    error          e = { 0 };
    arguments      args = { 0 };
    void          *values = calloc(1, c->values_size);
    if (!values || options_parse(argc - 1, argv + 1, c->groups, c->group_count, values, &args, &e))
        return complain_error(&e);
    if (args.count != c->fewest) return complain(EXIT_USAGE, "usage: %s %s [OPTIONS]", argv[0], c->arguments);
    const int code = c->run(values, &args);
    printf("ran on %s\n", ran_on);
    return code;
}
