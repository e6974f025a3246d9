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
    int         how;   /* as waitpid says */
    FILE       *messages;
    const char *what;
};

gm_status ffmpeg_start(const char *const *arguments, int in, int out, const char *what, const char *otherwise,
                       ffmpeg **started, error *e) {
    ffmpeg *f = *started = calloc(1, sizeof *f);
    if (!f) return fail_memory(e, "the start of ffmpeg", sizeof *f);
    gm_status status = GM_OK;
    f->what = what;
    f->how = -1;
    f->messages = tmpfile(); /* without a name: it is gone when it is closed */
    if (!f->messages) status = fail(e, GM_IO, "cannot create a temporary file for ffmpeg: %s", strerror(errno));
    if (!status) status = ffmpeg_spawn(arguments, in, out, fileno(f->messages), &f->child, what, otherwise, e);
    if (!status) return GM_OK;
    f->child = 0;
    ffmpeg_free(f);
    *started = NULL;
    return status;
}

/* Whether it has ended. Never returns false if the deadline is infinite. */
static bool ffmpeg_ended(ffmpeg *f, double deadline) {
    static const struct timespec pause = { 0, 5000000 };
    while (f->child) {
        const pid_t ended = waitpid(f->child, &f->how, isinf(deadline) ? 0 : WNOHANG);
        if (ended == f->child || (ended < 0 && errno != EINTR)) f->child = 0;
        else if (clock_seconds() >= deadline) return false;
        else if (!ended) nanosleep(&pause, NULL);
    }
    return true;
}

bool ffmpeg_runs(ffmpeg *f) { return !ffmpeg_ended(f, 0); }

/* Ctrl-C reaches it, too. ffmpeg ends with 255 then, and has no errors to tell, or tells of the signal. 255 with another message is an error
 * like any other: that something is not permitted, for one. */
static bool ffmpeg_interrupted(int how, const char *messages) {
    if (WIFSIGNALED(how)) return WTERMSIG(how) == SIGINT;
    return WIFEXITED(how) && WEXITSTATUS(how) == 255 && (!*messages || strstr(messages, "received signal"));
}

gm_status ffmpeg_wait(ffmpeg *f, double deadline, error *e) {
    if (!ffmpeg_ended(f, deadline)) return GM_AGAIN;
    const int how = f->how;
    if (WIFEXITED(how) && !WEXITSTATUS(how)) return GM_OK;
    char why[160] = "";
    rewind(f->messages);
    const size_t length = fread(why, 1, sizeof why - 1, f->messages);
    if (ffmpeg_interrupted(how, why))
        return fail(e, GM_CANCELLED, "interrupted while ffmpeg decoded the %s file", f->what);
    why[strcspn(why, "\r\n")] = 0;
    return fail(e, GM_BAD_FILE, "ffmpeg cannot decode the %s file: %s", f->what, length ? why : "it gives no reason");
}

void ffmpeg_free(ffmpeg *f) {
    if (!f) return;
    if (f->child && !kill(f->child, SIGKILL)) ffmpeg_ended(f, INFINITY);
    if (f->messages) fclose(f->messages);
    free(f);
}
