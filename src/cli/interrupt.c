#include "cli/interrupt.h"

#include "cli/cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* A signal handler has no other place to look. Lock-free atomics may be used in one; cancelling sets such a flag too. */
static atomic_int            pending;
static _Atomic(gm_session *) watched;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (atomic_fetch_add(&pending, 1) > 0) _exit(EXIT_INTERRUPTED);
    gm_session *session = atomic_load(&watched);
    if (session) gm_session_cancel(session);
}

void interrupt_catch(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* without SA_RESTART: a read that waits for input must come back */
}

void interrupt_watch(gm_session *session) { atomic_store(&watched, session); }
bool interrupted(void) { return atomic_load(&pending) > 0; }
void interrupt_clear(void) { atomic_store(&pending, 0); }
