/* Processes that mpirun has started with the same command: they share its work. Otherwise there is one. The plugin that connects them
 * (plugins/mpi) is loaded at run time, and only then. */

#ifndef GM_PEERS_H
#define GM_PEERS_H

#include "base/buffer.h"

#include "cli/peers_plugin.h"

typedef struct {
    size_t              part, parts; /* this is process `part` of so many */
    const peers_plugin *plugin;      /* NULL: there is one process */
} peers;

/* In other processes than 0, stdout leads nowhere from now on. Close it with what the program ends with. */
gm_status peers_open(peers *p, error *e);
/* If this process failed, all of them end. */
void peers_close(peers *p, bool failed, int code);

/* `p` is a peers*: a train_reduce. */
gm_status peers_sum(void *p, float *values, size_t count, error *e);
gm_status peers_send(const peers *p, str bytes, error *e);
/* Appends a message to `out`, if one has arrived. */
gm_status peers_receive(const peers *p, buffer *out, error *e);

#endif
