#include "cli/interrupt.h"

#include "cli/cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* A signal handler can only reach globals. Lock-free atomics are safe in it; cancelling sets such a flag, too. */
static atomic_int            pending;
static _Atomic(gm_session *) watched;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (atomic_fetch_add(&pending, 1) > 0) _exit(EXIT_INTERRUPTED);
    gm_session *session = atomic_load(&watched);
    if (session) gm_session_cancel(session);
}

static void catch_signal(int signal_number, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL); /* no SA_RESTART: a read waiting for input must return */
}

void interrupt_catch(void) { catch_signal(SIGINT, on_interrupt); }

static void on_bus_error(int signal_number) {
    static const char message[] = "gemmule: a file in use became shorter or unreadable\n";
    (void)signal_number;
    const ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
    (void)written;
    _exit(EXIT_BAD_INPUT);
}

void interrupt_catch_file_trouble(void) {
    catch_signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond `ulimit -f` is then a failed write, which is reported */
}

void interrupt_watch(gm_session *session) { atomic_store(&watched, session); }
bool interrupted(void) { return atomic_load(&pending) > 0; }
void interrupt_clear(void) { atomic_store(&pending, 0); }
