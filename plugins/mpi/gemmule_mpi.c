/* gemmule on MPI: processes that mpirun has started on one or several machines share the work of `gemmule train` and of
 * `gemmule run --prompts`. See src/cli/peers_plugin.h. */

#include "cli/peers_plugin.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 1 << 22, TAG = 1 };

static int my_rank;

/* What MPI's codes say; 0 if there is nothing to say. */
static int mpi_failed(int code, char *why, size_t why_size) {
    char text[MPI_MAX_ERROR_STRING] = "an unknown error";
    int  length = 0;
    if (code == MPI_SUCCESS) return 0;
    MPI_Error_string(code, text, &length);
    snprintf(why, why_size, "%s", text);
    return 1;
}

static int mpi_join(size_t *part, size_t *parts, char *why, size_t why_size) {
    int level = 0, size = 0;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, &size);
    *part = (size_t)my_rank;
    *parts = (size_t)size;
    return mpi_failed(code, why, why_size);
}

/* One process adds, and all get its sums: with MPI_Allreduce, each may round in an order of its own. */
static int mpi_sum(float *values, size_t count, char *why, size_t why_size) {
    int code = MPI_SUCCESS;
    for (size_t at = 0; at < count && code == MPI_SUCCESS; at += PIECE) {
        const int n = count - at < PIECE ? (int)(count - at) : PIECE;
        code = MPI_Reduce(my_rank ? values + at : MPI_IN_PLACE, my_rank ? NULL : values + at, n, MPI_FLOAT, MPI_SUM, 0,
                          MPI_COMM_WORLD);
        if (code == MPI_SUCCESS) code = MPI_Bcast(values + at, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
    return mpi_failed(code, why, why_size);
}

static int mpi_send(const void *bytes, size_t count, char *why, size_t why_size) {
    if (count > 1u << 30) {
        snprintf(why, why_size, "a message of %zu bytes is too long", count);
        return 1;
    }
    return mpi_failed(MPI_Send(bytes, (int)count, MPI_BYTE, 0, TAG, MPI_COMM_WORLD), why, why_size);
}

static int mpi_receive(void **bytes, size_t *count, char *why, size_t why_size) {
    MPI_Status status;
    int        there = 0, n = 0;
    *bytes = NULL;
    int code = MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &there, &status);
    if (code != MPI_SUCCESS || !there) return mpi_failed(code, why, why_size);
    code = MPI_Get_count(&status, MPI_BYTE, &n);
    if (code != MPI_SUCCESS) return mpi_failed(code, why, why_size);
    void *message = malloc((size_t)n + 1);
    if (!message) {
        snprintf(why, why_size, "not enough memory for a message of %d bytes", n);
        return 1;
    }
    code = MPI_Recv(message, n, MPI_BYTE, status.MPI_SOURCE, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) {
        free(message);
        return mpi_failed(code, why, why_size);
    }
    *bytes = message;
    *count = (size_t)n;
    return 0;
}

static void mpi_leave(void) { MPI_Finalize(); }

static void mpi_end_all(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

__attribute__((visibility("default"))) extern const peers_plugin gemmule_peers;

const peers_plugin gemmule_peers = {
    .version = PEERS_PLUGIN_VERSION,
    .join = mpi_join,
    .sum = mpi_sum,
    .send = mpi_send,
    .receive = mpi_receive,
    .leave = mpi_leave,
    .end_all = mpi_end_all,
};
