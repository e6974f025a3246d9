#include "store/below.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST_NAME = 255 };

/* Linux reports a link as ENOTDIR where a folder was wanted. */
static int open_without_links(int folder, const char *name, int flags) {
    const int found = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags);
    if (found >= 0) return found;
    const int   reason = errno;
    struct stat about;
    const bool  link = !fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) && S_ISLNK(about.st_mode);
    errno = link ? ELOOP : reason;
    return -1;
}

static void close_keeping_errno(int file) {
    const int reason = errno;
    close(file);
    errno = reason;
}

/* Opens one name after the other, each relative to the folder before it. `last` are the flags for the last name. */
static int open_path(int folder, const char *path, int last) {
    int at = folder;
    for (;;) {
        char         name[LONGEST_NAME + 1];
        const size_t length = strcspn(path, "/");
        const bool   end = !path[length];
        int          next = -1;
        if (!length || length > LONGEST_NAME || path[0] == '.') {
            errno = EINVAL;
        } else {
            memcpy(name, path, length);
            name[length] = 0;
            next = open_without_links(at, name, end ? last : O_DIRECTORY);
        }
        if (at != folder) close_keeping_errno(at);
        if (end || next < 0) return next;
        at = next;
        path += length + 1;
    }
}

/* O_NONBLOCK, above and below: opening a pipe must not wait for its other end. */
static int keep_regular(int file) {
    struct stat about;
    if (file < 0) return -1;
    if (!fstat(file, &about) && S_ISREG(about.st_mode)) return file;
    close(file);
    errno = EINVAL;
    return -1;
}

int below_open_folder(int folder, const char *path) {
    if (!*path) return openat(folder, ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    return open_path(folder, path, O_DIRECTORY);
}

int below_open_file(int folder, const char *path) { return keep_regular(open_path(folder, path, 0)); }

int open_regular_file(const char *path) { return keep_regular(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)); }
