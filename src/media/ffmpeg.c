#include "media/ffmpeg.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Numbers of the files in the child. */
enum { CHILD_IN = 3, CHILD_OUT = 4 };

static gm_status ffmpeg_start(const char *const *arguments, int in, int out, int messages, pid_t *child,
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

static gm_status ffmpeg_wait(pid_t child, FILE *messages, const char *what, error *e) {
    int   how = 0;
    pid_t ended;
    do ended = waitpid(child, &how, 0);
    while (ended < 0 && errno == EINTR);
    if (ended == child && WIFEXITED(how) && !WEXITSTATUS(how)) return GM_OK;
    char why[160] = "";
    rewind(messages);
    const size_t length = fread(why, 1, sizeof why - 1, messages);
    why[strcspn(why, "\r\n")] = 0;
    return fail(e, GM_BAD_FILE, "ffmpeg cannot decode the %s file: %s", what, length ? why : "it gives no reason");
}

gm_status ffmpeg_run(const char *const *arguments, int in, int out, const char *what, const char *otherwise, error *e) {
    pid_t child = 0;
    FILE *messages = tmpfile(); /* without a name: it is gone when it is closed */
    if (!messages) return fail(e, GM_IO, "cannot create a temporary file for ffmpeg: %s", strerror(errno));
    gm_status status = ffmpeg_start(arguments, in, out, fileno(messages), &child, what, otherwise, e);
    if (!status) status = ffmpeg_wait(child, messages, what, e);
    fclose(messages);
    return status;
}
