/* What a plugin for several processes gives the program: one object, `gemmule_peers`, in a shared library of its own. The program itself
 * knows nothing of MPI. Functions return 0, or say in `why` what failed; all are called by one thread. */

#ifndef GM_PEERS_PLUGIN_H
#define GM_PEERS_PLUGIN_H

#include <stddef.h>

enum { PEERS_PLUGIN_VERSION = 1 };

typedef struct {
    unsigned version;
    /* The first call: which process this is, and how many there are. */
    int (*join)(size_t *part, size_t *parts, char *why, size_t why_size);
    /* Every process calls it with as many values, and gets the same sums, bit by bit. */
    int (*sum)(float *values, size_t count, char *why, size_t why_size);
    /* To process 0. */
    int (*send)(const void *bytes, size_t count, char *why, size_t why_size);
    /* Only process 0: a message that has arrived, which the caller frees; *bytes is NULL if there is none. Does not wait. */
    int (*receive)(void **bytes, size_t *count, char *why, size_t why_size);
    /* The last call: waits until all processes leave. */
    void (*leave)(void);
    /* Instead of leaving: ends all processes, with this exit code. */
    void (*end_all)(int code);
} peers_plugin;

#endif
