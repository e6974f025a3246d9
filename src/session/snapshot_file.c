/* Snapshots from and to files and buffers: the public functions, which wait until their job is done.
 *
 * Other threads get the engine between two steps of a job. */

#include "session/session.h"

#include "base/new_file.h"

enum { WAIT_MILLISECONDS = 50 };

/* Ends a turn after which the job goes on: lets the GPU's news in first. */
static void end_turn(gm_engine *engine, gm_status status) {
    if (status == GM_AGAIN && engine->on_gpu) gpu_host_wait(engine->gpu.host, WAIT_MILLISECONDS);
    engine_leave(engine);
}

/* ---- saving ---- */

static gm_status write_session(gm_session *s, gguf_sink sink, void *user, error *e) {
    gm_engine       *engine = s->engine;
    snapshot_saving *job = NULL;
    engine_enter(engine);
    gm_status status = snapshot_save(s, sink, user, &job, e);
    engine_leave(engine);
    if (status) return status;
    do {
        engine_enter(engine);
        status = snapshot_save_step(job, e);
        if (status != GM_AGAIN) snapshot_save_free(job);
        end_turn(engine, status);
    } while (status == GM_AGAIN);
    return status;
}

gm_status gm_session_save_buffer(gm_session *s, void **data, size_t *size, char *why, size_t why_size) {
    error  e = { 0 };
    buffer out = { 0 };
    *data = NULL;
    *size = 0;
    write_session(s, buffer_sink, &out, &e);
    if (out.failed) { /* the writer only knows that nobody took its bytes */
        e = (error){ 0 };
        fail_memory(&e, "the snapshot", out.length);
    }
    if (e.status) {
        buffer_free(&out);
    } else {
        *data = out.data;
        *size = out.length;
    }
    return error_report(&e, why, why_size);
}

gm_status gm_session_save(gm_session *s, const char *path, char *why, size_t why_size) {
    error     e = { 0 }, problem = { 0 };
    new_file *file = NULL;
    if (!new_file_open(path, NEW_FILE_KEPT, &file, &e)) {
        write_session(s, new_file_write, file, &problem);
        new_file_end(file, &problem, &e);
    }
    return error_report(&e, why, why_size);
}

/* ---- restoring ---- */

/* Takes the file over. */
static gm_status restore(gm_session *s, gguf *g, error *e) {
    gm_engine          *engine = s->engine;
    snapshot_restoring *job = NULL;
    engine_enter(engine);
    gm_status status = snapshot_restore(s, g, &job, e);
    engine_leave(engine);
    if (status) return status;
    do {
        engine_enter(engine);
        status = snapshot_restore_step(job, e);
        if (status != GM_AGAIN) snapshot_restore_free(job);
        end_turn(engine, status);
    } while (status == GM_AGAIN);
    return status;
}

gm_status gm_session_restore_buffer(gm_session *s, const void *data, size_t size, char *why, size_t why_size) {
    error e = { 0 };
    gguf *g = NULL;
    if (!gguf_open_memory(data, size, &g, &e)) restore(s, g, &e);
    return error_report(&e, why, why_size);
}

gm_status gm_session_restore(gm_session *s, const char *path, char *why, size_t why_size) {
    error e = { 0 };
    gguf *g = NULL;
    if (!gguf_open_file(path, &g, &e)) restore(s, g, &e);
    return error_report(&e, why, why_size);
}
