#include "base/new_file.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = ".gemmule-", suffix[] = ".part";

/* Linux caches a file in the sizes it was written in, and small pages make reading slow (see source.c). */
enum { NAME_DIGITS = 16, NAME_TRIES = 100, BULK_PAGE = 2 << 20 };

struct new_file {
    /* target: the path with its links resolved, so that a link to a file stays one; page: of a bulk file's stream */
    char         *path, *target, *part, *page;
    FILE         *file;
    new_file_kind kind;
    mode_t        mode;
    bool          replaces;
    int           reason; /* errno of what failed first; 0: nothing */
};

/* ---- parts that were left behind ---- */

static bool is_part(const char *name) {
    const size_t begin = sizeof prefix - 1;
    if (strncmp(name, prefix, begin)) return false;
    return strspn(name + begin, "0123456789abcdef") == NAME_DIGITS && !strcmp(name + begin + NAME_DIGITS, suffix);
}

/* Who writes a part holds its lock. */
static void remove_if_abandoned(int folder, const char *name) {
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (!flock(fd, LOCK_EX | LOCK_NB)) unlinkat(folder, name, 0);
    close(fd);
}

static void remove_abandoned(const char *folder) {
    DIR           *all = opendir(folder);
    struct dirent *entry;
    while (all && (entry = readdir(all))) {
        if (is_part(entry->d_name)) remove_if_abandoned(dirfd(all), entry->d_name);
    }
    if (all) closedir(all);
}

/* ---- opening ---- */

static void new_file_free(new_file *f) {
    if (!f) return;
    free(f->path);
    free(f->target);
    free(f->part);
    free(f->page);
    free(f);
}

/* Names must only differ from those of other writers: whoever draws the same one finds it taken. */
static uint64_t next_name(uint64_t seed) {
    seed += UINT64_C(0x9e3779b97f4a7c15);
    seed = (seed ^ seed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    seed = (seed ^ seed >> 27) * UINT64_C(0x94d049bb133111eb);
    return seed ^ seed >> 31;
}

/* Creates and locks our own file. A cleaner may have removed it before we locked it: then it has no name any more. */
static int open_locked(const char *path, mode_t mode) {
    struct stat about;
    const int   fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) return -1;
    const bool taken = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!taken && !fstat(fd, &about) && about.st_nlink) return fd;
    close(fd);
    unlink(path);
    errno = EEXIST;
    return -1;
}

static int open_part(new_file *f, size_t folder) {
    uint64_t name = (uint64_t)(clock_seconds() * 1e9) ^ (uint64_t)getpid() << 32 ^ (uintptr_t)f;
    int      fd = -1;
    for (int i = 0; i < NAME_TRIES && fd < 0; i++) {
        name = next_name(name);
        sprintf(f->part + folder, "%s%016llx%s", prefix, (unsigned long long)name, suffix);
        fd = open_locked(f->part, f->replaces ? 0600 : f->mode);
        if (fd < 0 && errno != EEXIST) break;
    }
    return fd;
}

static gm_status check_target(new_file *f, error *e) {
    struct stat about;
    if (!*f->path) return fail(e, GM_BAD_ARGUMENT, "cannot write a file without a name");
    f->mode = f->kind == NEW_FILE_BULK ? 0666 : 0600;
    if (stat(f->target, &about)) return GM_OK;
    if (!S_ISREG(about.st_mode))
        return fail(e, GM_IO, "cannot write '%s': it is %s", f->path,
                    S_ISDIR(about.st_mode) ? "a folder" : "not a regular file");
    f->replaces = true;
    f->mode = about.st_mode & 0777;
    return GM_OK;
}

/* "folder/" of a path; nothing for a bare name. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

gm_status new_file_open(const char *path, new_file_kind kind, new_file **out, error *e) {
    new_file *f = calloc(1, sizeof *f);
    size_t    folder = 0;
    *out = NULL;
    if (f) f->kind = kind;
    if (f) f->path = strdup(path);
    if (f) f->target = realpath(path, NULL);
    if (f && !f->target && errno != ENOMEM) f->target = strdup(path); /* there is no file yet */
    if (f && f->target) folder = folder_length(f->target);
    if (f) f->part = malloc(max_size(folder, 2) + sizeof prefix + NAME_DIGITS + sizeof suffix);
    const bool made = f && f->path && f->target && f->part;
    gm_status  status = made ? check_target(f, e) : fail_memory(e, "a path", strlen(path));
    if (status) {
        new_file_free(f);
        return status;
    }
    memcpy(f->part, f->target, folder);
    strcpy(f->part + folder, folder ? "" : ".");
    remove_abandoned(f->part);
    const int fd = open_part(f, folder);
    f->file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (f->file) {
        f->page = kind == NEW_FILE_BULK ? malloc(BULK_PAGE) : NULL; /* without one, it is written in smaller pieces */
        if (f->page) setvbuf(f->file, f->page, _IOFBF, BULK_PAGE);
        *out = f;
        return GM_OK;
    }
    status = fail(e, GM_IO, "cannot write '%s': %s", path, strerror(errno));
    if (fd >= 0) {
        unlink(f->part);
        close(fd);
    }
    new_file_free(f);
    return status;
}

/* ---- writing ---- */

static bool note_failure(new_file *f, bool failed) {
    if (failed && !f->reason) f->reason = errno ? errno : EIO;
    return !f->reason;
}

bool new_file_write(void *file, const void *data, size_t length) {
    new_file *f = file;
    errno = 0;
    return !f->reason && note_failure(f, fwrite(data, 1, length, f->file) != length);
}

FILE *new_file_stream(new_file *f) { return f->file; }

gm_status new_file_end(new_file *f, const error *problem, error *e) {
    const bool wanted = !problem->status;
    errno = 0;
    if (wanted && !f->reason) {
        note_failure(f, fflush(f->file) || ferror(f->file));
        /* If the file system has no modes, the file keeps the one it was created with. */
        if (!f->replaces || !fchmod(fileno(f->file), f->mode)) errno = 0;
        note_failure(f, !f->reason && f->kind == NEW_FILE_KEPT && fsync(fileno(f->file)));
        note_failure(f, !f->reason && rename(f->part, f->target));
    }
    gm_status status = GM_OK;
    if (f->reason) status = fail(e, GM_IO, "cannot write '%s': %s", f->path, strerror(f->reason));
    else if (!wanted) status = fail(e, problem->status, "%s", problem->why);
    if (f->reason || !wanted) unlink(f->part);
    fclose(f->file); /* after the rename: until then the lock protects the part from cleaners */
    new_file_free(f);
    return status;
}
