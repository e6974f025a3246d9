#include "media/ffmpeg.h"

#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Numbers of the files in the child. */
enum { CHILD_IN = 3, CHILD_OUT = 4 };

static gm_status ffmpeg_spawn(const char *const *arguments, int in, int out, int messages, pid_t *child,
                              const char *what, const char *otherwise, error *e) {
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions)) return fail_memory(e, "the start of ffmpeg", sizeof actions);
    /* First to numbers that nobody else has: 3 may be one of ours. */
    const int spare = (int)max_size((size_t)in, max_size((size_t)out, max_size((size_t)messages, CHILD_OUT))) + 1;
    int       problem = posix_spawn_file_actions_adddup2(&actions, in, spare);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, out, spare + 1);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, messages, STDERR_FILENO);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, spare, CHILD_IN);
    if (!problem) problem = posix_spawn_file_actions_adddup2(&actions, spare + 1, CHILD_OUT);
    if (!problem) problem = posix_spawn_file_actions_addclose(&actions, spare);
    if (!problem) problem = posix_spawn_file_actions_addclose(&actions, spare + 1);
    if (!problem) problem = posix_spawnp(child, "ffmpeg", &actions, NULL, (char *const *)arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (!problem) return GM_OK;
    if (problem == ENOENT)
        return fail(e, GM_UNSUPPORTED,
                    "%s is decoded by the program ffmpeg, which is not installed (apt-get install ffmpeg); %s", what,
                    otherwise);
    return fail(e, GM_IO, "ffmpeg cannot be started: %s", strerror(problem));
}

struct ffmpeg {
    pid_t       child; /* 0: it has ended */
    FILE       *messages;
    const char *what;
};

gm_status ffmpeg_start(const char *const *arguments, int in, int out, const char *what, const char *otherwise,
                       ffmpeg **started, error *e) {
    ffmpeg *f = *started = calloc(1, sizeof *f);
    if (!f) return fail_memory(e, "the start of ffmpeg", sizeof *f);
    gm_status status = GM_OK;
    f->what = what;
    f->messages = tmpfile(); /* without a name: it is gone when it is closed */
    if (!f->messages) status = fail(e, GM_IO, "cannot create a temporary file for ffmpeg: %s", strerror(errno));
    if (!status) status = ffmpeg_spawn(arguments, in, out, fileno(f->messages), &f->child, what, otherwise, e);
    if (!status) return GM_OK;
    f->child = 0;
    ffmpeg_free(f);
    *started = NULL;
    return status;
}

/* Whether it has ended, and how. Never returns false if the deadline is infinite. */
static bool ffmpeg_ended(ffmpeg *f, double deadline, int *how) {
    static const struct timespec pause = { 0, 5000000 };
    for (;;) {
        const pid_t ended = waitpid(f->child, how, isinf(deadline) ? 0 : WNOHANG);
        if (ended == f->child || (ended < 0 && errno != EINTR)) return true;
        if (clock_seconds() >= deadline) return false;
        if (!ended) nanosleep(&pause, NULL);
    }
}

gm_status ffmpeg_wait(ffmpeg *f, double deadline, error *e) {
    int how = -1;
    if (!f->child) return GM_OK;
    if (!ffmpeg_ended(f, deadline, &how)) return GM_AGAIN;
    f->child = 0;
    if (WIFEXITED(how) && !WEXITSTATUS(how)) return GM_OK;
    /* Ctrl-C reaches it, too. ffmpeg ends with 255 then. */
    if ((WIFSIGNALED(how) && WTERMSIG(how) == SIGINT) || (WIFEXITED(how) && WEXITSTATUS(how) == 255))
        return fail(e, GM_CANCELLED, "interrupted while ffmpeg decoded the %s file", f->what);
    char why[160] = "";
    rewind(f->messages);
    const size_t length = fread(why, 1, sizeof why - 1, f->messages);
    why[strcspn(why, "\r\n")] = 0;
    return fail(e, GM_BAD_FILE, "ffmpeg cannot decode the %s file: %s", f->what, length ? why : "it gives no reason");
}

void ffmpeg_free(ffmpeg *f) {
    int ignored;
    if (!f) return;
    if (f->child && !kill(f->child, SIGKILL)) ffmpeg_ended(f, INFINITY, &ignored);
    if (f->messages) fclose(f->messages);
    free(f);
}
