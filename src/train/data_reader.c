/* The bytes of a data file, through a window that moves over it; and the files beside it that examples name. */

#include "train/data_parts.h"

#include <string.h>

enum { READER_STEP = 1 << 18 };

gm_status data_changed(const data_reader *r, error *e) {
    return fail(e, GM_BAD_FILE, "%s has changed since it was read; start again with the file as it is now", r->name);
}

/* ---- files ---- */

#ifdef __wasm__ /* no files: data come as bytes */

static gm_status reader_open_file(data_reader *r, const char *path, error *e) {
    (void)r;
    return fail(e, GM_UNSUPPORTED, "%s: this build cannot open files; hand the bytes in", path);
}

static void reader_close_file(int file) { (void)file; }

gm_status data_reader_check(const data_reader *r, error *e) {
    (void)r, (void)e;
    return GM_OK;
}

static gm_status reader_fill(int file, const char *name, uint64_t at, size_t want, buffer *out, error *e) {
    (void)file, (void)at, (void)want, (void)out;
    return fail(e, GM_UNSUPPORTED, "%s: this build cannot read files", name);
}

static gm_status reader_open_media(const data_reader *r, const char *path, int *out, error *e) {
    (void)r, (void)out;
    return fail(e, GM_UNSUPPORTED, "%s: this build cannot read files", path);
}

#else

#include "store/below.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static gm_status reader_stat(const data_reader *r, struct stat *about, error *e) {
    if (!fstat(r->file, about)) return GM_OK;
    return fail(e, GM_IO, "%s: cannot be examined: %s", r->name, strerror(errno));
}

/* The folder that holds the file; its own path may contain links, what is below it may not. */
static gm_status reader_open_folder(data_reader *r, const char *path, error *e) {
    char        folder[4096];
    const char *slash = strrchr(path, '/');
    const int   length = slash ? (int)(slash - path) + 1 : 0;
    if (length >= (int)sizeof folder) return fail(e, GM_BAD_ARGUMENT, "%s: the path is too long", path);
    memcpy(folder, path, (size_t)length);
    memcpy(folder + length, ".", 2);
    r->folder = open(folder, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    return GM_OK; /* only examples with media need it */
}

static gm_status reader_open_file(data_reader *r, const char *path, error *e) {
    struct stat about;
    r->file = open_regular_file(path);
    if (r->file < 0 && errno == EINVAL)
        return fail(e, GM_BAD_ARGUMENT, "%s: expected a file, found a folder or a device", r->name);
    if (r->file < 0)
        return fail(e, errno == ENOENT || errno == ENOTDIR ? GM_NOT_FOUND : GM_IO, "%s: cannot be opened: %s", r->name,
                    strerror(errno));
    TRY(reader_stat(r, &about, e));
    r->length = (uint64_t)about.st_size;
    r->modified[0] = about.st_mtim.tv_sec;
    r->modified[1] = about.st_mtim.tv_nsec;
    return reader_open_folder(r, path, e);
}

static void reader_close_file(int file) {
    if (file >= 0) close(file);
}

gm_status data_reader_check(const data_reader *r, error *e) {
    struct stat about;
    if (r->file < 0) return GM_OK;
    TRY(reader_stat(r, &about, e));
    const bool same = (uint64_t)about.st_size == r->length && about.st_mtim.tv_sec == r->modified[0] &&
                      about.st_mtim.tv_nsec == r->modified[1];
    return same ? GM_OK : data_changed(r, e);
}

static gm_status reader_fill(int file, const char *name, uint64_t at, size_t want, buffer *out, error *e) {
    char piece[1 << 16];
    for (size_t got = 0; got < want;) {
        const ssize_t n = pread(file, piece, min_size(want - got, sizeof piece), (off_t)(at + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(e, GM_IO, "%s: cannot be read: %s", name, strerror(errno));
        if (!n) break;
        buffer_append(out, piece, (size_t)n);
        if (out->failed) return fail_memory(e, name, want);
        got += (size_t)n;
    }
    return GM_OK;
}

static gm_status reader_open_media(const data_reader *r, const char *path, int *out, error *e) {
    *out = below_open_file(r->folder, path);
    if (*out >= 0) return GM_OK;
    if (errno == ELOOP) return fail(e, GM_BAD_FILE, "%s is a link, or below one; links are not followed", path);
    if (errno == EINVAL) return fail(e, GM_BAD_FILE, "%s is not a regular file", path);
    return fail(e, GM_BAD_FILE, "%s cannot be opened: %s", path, strerror(errno));
}

#endif

/* ---- opening and reading ---- */

gm_status data_reader_open(data_reader *r, const data_source *from, error *e) {
    *r = (data_reader){ .source = from, .name = from->path ? from->path : from->name, .file = -1, .folder = -1 };
    if (!r->name) r->name = "the data";
    r->length = from->bytes.length;
    return from->path ? reader_open_file(r, from->path, e) : GM_OK;
}

void data_reader_close(data_reader *r) {
    reader_close_file(r->file);
    reader_close_file(r->folder);
    buffer_free(&r->window);
}

gm_status data_reader_peek(data_reader *r, uint64_t at, size_t want, str *out, error *e) {
    *out = (str){ "", 0 };
    if (at >= r->length) return GM_OK;
    if (!r->source->path) {
        *out = (str){ r->source->bytes.data + at, (size_t)(r->length - at) };
        return GM_OK;
    }
    if (want > r->length - at) want = (size_t)(r->length - at);
    if (at < r->window_at || at + want > r->window_at + r->window.length) {
        const uint64_t all = r->length - at;
        const size_t   step = max_size(want, READER_STEP);
        const size_t   most = all < step ? (size_t)all : step;
        buffer_clear(&r->window);
        r->window_at = at;
        TRY(reader_fill(r->file, r->name, at, most, &r->window, e));
        if (r->window.length < most) return data_changed(r, e); /* it has become shorter */
    }
    const size_t skip = (size_t)(at - r->window_at);
    *out = (str){ r->window.data + skip, r->window.length - skip };
    return GM_OK;
}

/* ---- media ---- */

/* below_open_file refuses these, too; a host's own function need not. */
static bool reader_leads_outside(const char *path) {
    for (const char *name = path;; name += strcspn(name, "/") + 1) {
        if (!*name || *name == '/' || *name == '.' || strchr(name, '\\')) return true;
        if (!name[strcspn(name, "/")]) return false;
    }
}

gm_status data_reader_media(const data_reader *r, str path, buffer *out, error *e) {
    char      name[1024];
    int       file = -1;
    gm_status status;
    if (path.length >= sizeof name || (path.length && memchr(path.data, 0, path.length)))
        return fail(e, GM_BAD_FILE, "\"%.*s…\" is not the name of a file", (int)min_size(path.length, 40), path.data);
    memcpy(name, path.data, path.length);
    name[path.length] = 0;
    if (!strncmp(name, "./", 2)) memmove(name, name + 2, path.length - 1);
    if (reader_leads_outside(name))
        return fail(e, GM_BAD_FILE, "expected a file in the folder of the data or below it, found \"%s\"", name);
    if (!r->source->path && !r->source->read_media)
        return fail(e, GM_UNSUPPORTED, "the data come without files, so %s is missing", name);
    if (!r->source->path) {
        status = r->source->read_media(r->source->host, name, out, e);
    } else {
        TRY(reader_open_media(r, name, &file, e));
        status = reader_fill(file, name, 0, DATA_MOST_MEDIA + 1, out, e);
        reader_close_file(file);
    }
    if (!status && out->length > DATA_MOST_MEDIA)
        return fail(e, GM_BAD_FILE, "%s is longer than %d MiB", name, DATA_MOST_MEDIA >> 20);
    return status;
}
