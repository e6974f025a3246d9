#include "cli/peers.h"

#include "base/beside.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLUGIN "libgemmule-mpi.so"

/* Where a build and an installation have it, beside the program. */
static const char *const near_program[] = { "mpi/" PLUGIN, PLUGIN, "../lib/gemmule/" PLUGIN, "../mpi/" PLUGIN };

static gm_status plugin_path(arena *a, const char **path, error *e) {
    const char *named = getenv("GEMMULE_MPI"), *folder;
    *path = named && *named ? named : NULL;
    if (*path) return GM_OK;
    TRY(beside_program(a, &folder, e));
    TRY(beside_find(folder, near_program, COUNT_OF(near_program), a, path, e));
    if (!*path) *path = PLUGIN; /* in the system's folders */
    return GM_OK;
}

static gm_status plugin_load(peers *p, size_t started, error *e) {
    arena       scratch = { 0 };
    const char *path = NULL;
    gm_status   status = plugin_path(&scratch, &path, e);
    /* Global, since MPI loads plugins of its own that need its symbols. Never unloaded. */
    void *library = status ? NULL : dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!status && !library)
        status =
            fail(e, GM_NOT_FOUND,
                 "mpirun has started %zu processes, but the plugin for MPI cannot be loaded: %s. `make mpi` builds "
                 "it, GEMMULE_MPI=path names one",
                 started, dlerror());
    p->plugin = library ? dlsym(library, "gemmule_peers") : NULL;
    if (!status && (!p->plugin || p->plugin->version != PEERS_PLUGIN_VERSION)) {
        status = fail(e, GM_UNSUPPORTED, "%s is not the plugin of this version of gemmule; `make mpi` builds it", path);
        p->plugin = NULL;
    }
    arena_free(&scratch);
    return status;
}

static gm_status peers_problem(int failed, const char *why, error *e) {
    return failed ? fail(e, GM_IO, "the other processes: %s", why) : GM_OK;
}

gm_status peers_open(peers *p, error *e) {
    const char  *given = getenv("OMPI_COMM_WORLD_SIZE");
    const size_t started = given ? (size_t)strtoul(given, NULL, 10) : 1;
    char         why[200] = "";
    *p = (peers){ .parts = 1 };
    if (started < 2) return GM_OK;
    TRY(plugin_load(p, started, e));
    const gm_status status = peers_problem(p->plugin->join(&p->part, &p->parts, why, sizeof why), why, e);
    if (status) *p = (peers){ .parts = 1 };
    if (!status && p->part && !freopen("/dev/null", "w", stdout))
        return fail(e, GM_IO, "/dev/null: %s", strerror(errno));
    return status;
}

void peers_close(peers *p, bool failed, int code) {
    if (!p->plugin) return;
    fflush(NULL);
    if (failed) p->plugin->end_all(code);
    else p->plugin->leave();
    *p = (peers){ .parts = 1 };
}

gm_status peers_sum(void *p, float *values, size_t count, error *e) {
    const peers *peer = p;
    char         why[200] = "";
    return peer->plugin ? peers_problem(peer->plugin->sum(values, count, why, sizeof why), why, e) : GM_OK;
}

gm_status peers_send(const peers *p, str bytes, error *e) {
    char why[200] = "";
    return peers_problem(p->plugin->send(bytes.data, bytes.length, why, sizeof why), why, e);
}

gm_status peers_receive(const peers *p, buffer *out, error *e) {
    void  *bytes = NULL;
    size_t count = 0;
    char   why[200] = "";
    TRY(peers_problem(p->plugin->receive(&bytes, &count, why, sizeof why), why, e));
    if (bytes) buffer_append(out, bytes, count);
    free(bytes);
    return out->failed ? fail_memory(e, "a message", count) : GM_OK;
}
