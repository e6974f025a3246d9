/* Bytes from memory, from a mapped file, or handed in as pieces. */

#include "gguf/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct range range;
struct range {
    range   *next;
    uint64_t offset, length;
    uint8_t  data[];
};

struct source {
    uint64_t       length;
    const uint8_t *whole;  /* NULL for pieces */
    void          *mapped; /* to be unmapped */
    uint64_t       piece;
    range         *kept; /* ranges that have arrived */
    bool           waiting;
    uint64_t       wanted_offset, wanted_length, filled; /* while waiting: the range, and how much of it has arrived */
    range         *filling;                              /* NULL until its first piece arrives */
};

static const uint8_t no_bytes[1];

static gm_status source_new(uint64_t length, source **out, error *e) {
    source *s = *out = calloc(1, sizeof *s);
    if (!s) return fail_memory(e, "a byte source", sizeof *s);
    s->length = length;
    s->piece = SOURCE_PIECE;
    return GM_OK;
}

gm_status source_memory(const void *data, uint64_t length, source **out, error *e) {
    *out = NULL;
    if (!data && length)
        return fail(e, GM_BAD_ARGUMENT, "a source of %llu bytes without data", (unsigned long long)length);
    gm_status status = source_new(length, out, e);
    if (*out) (*out)->whole = data ? data : no_bytes;
    return status;
}

gm_status source_pieces(uint64_t length, source **out, error *e) { return source_new(length, out, e); }

uint64_t source_length(const source *s) { return s->length; }

const uint8_t *source_whole(const source *s) { return s->whole; }

uint64_t source_piece(const source *s) { return s->piece; }

void source_set_piece(source *s, uint64_t bytes) { s->piece = bytes ? bytes : SOURCE_PIECE; }

/* ---- mapped files ---- */

#ifdef __wasm__

gm_status source_file(const char *path, source **out, error *e) {
    *out = NULL;
    return fail(e, GM_UNSUPPORTED, "%s: this build cannot open files; hand the bytes in", path);
}

static void source_unmap(source *s) { (void)s; }

void source_will_need(source *s) { (void)s; }

void source_is_read(source *s, uint64_t offset, uint64_t length) { (void)s, (void)offset, (void)length; }

#else

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static gm_status source_map_file(int file, const char *path, source **out, error *e) {
    struct stat about;
    if (fstat(file, &about)) return fail(e, GM_IO, "%s: cannot be examined: %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode)) return fail(e, GM_BAD_ARGUMENT, "%s: is a directory, not a file", path);
    if (!S_ISREG(about.st_mode)) return fail(e, GM_BAD_ARGUMENT, "%s: is not a regular file", path);
    const uint64_t length = (uint64_t)about.st_size;
    if (length > SIZE_MAX) return fail(e, GM_UNSUPPORTED, "%s: too large for the address space of this build", path);
    void *mapped = length ? mmap(NULL, (size_t)length, PROT_READ, MAP_PRIVATE, file, 0) : NULL;
    if (mapped == MAP_FAILED && errno == ENOMEM) return fail_memory(e, path, length); /* of the address space */
    if (mapped == MAP_FAILED) return fail(e, GM_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    gm_status status = source_new(length, out, e);
    if (!*out) {
        if (mapped) munmap(mapped, (size_t)length);
        return status;
    }
#if defined(MADV_HUGEPAGE)
    /* Asks for 2 MB pages where the file system has them: a model in small pages overflows the TLB, which costs one thread up to
     * a third of its reading speed. Only a hint, so failure is no error. */
    if (mapped) (void)madvise(mapped, (size_t)length, MADV_HUGEPAGE);
#endif
    (*out)->whole = mapped ? mapped : no_bytes;
    (*out)->mapped = mapped;
    return GM_OK;
}

gm_status source_file(const char *path, source **out, error *e) {
    *out = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not block before we refuse it */
    if (file < 0) {
        gm_status status = errno == ENOENT || errno == ENOTDIR ? GM_NOT_FOUND : GM_IO;
        return fail(e, status, "%s: cannot be opened: %s", path, strerror(errno));
    }
    gm_status status = source_map_file(file, path, out, e);
    close(file); /* the mapping stays */
    return status;
}

static void source_unmap(source *s) {
    if (s->mapped) munmap(s->mapped, (size_t)s->length);
}

void source_will_need(source *s) {
    if (s->mapped) posix_madvise(s->mapped, (size_t)s->length, POSIX_MADV_WILLNEED);
}

void source_is_read(source *s, uint64_t offset, uint64_t length) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = round_up(offset, page);
    const uint64_t end = (offset + length) / page * page; /* whole pages only: the others may have neighbours */
    if (s->mapped && end > first && end <= s->length)
        (void)madvise((char *)s->mapped + first, (size_t)(end - first), MADV_DONTNEED);
}

#endif

/* ---- pieces ---- */

void source_free(source *s) {
    if (!s) return;
    source_drop(s, UINT64_MAX);
    free(s->filling);
    source_unmap(s);
    free(s);
}

static bool range_holds(const range *r, uint64_t offset, uint64_t length) {
    return offset >= r->offset && offset - r->offset <= r->length && length <= r->length - (offset - r->offset);
}

static bool range_exists(const source *s, uint64_t offset, uint64_t length) {
    return offset <= s->length && length <= s->length - offset;
}

const uint8_t *source_held(const source *s, uint64_t offset, uint64_t length) {
    if (!range_exists(s, offset, length)) return NULL;
    if (!length) return no_bytes;
    if (s->whole) return s->whole + offset;
    for (const range *r = s->kept; r; r = r->next) {
        if (range_holds(r, offset, length)) return r->data + (offset - r->offset);
    }
    return NULL;
}

const uint8_t *source_bytes(source *s, uint64_t offset, uint64_t length) {
    const uint8_t *held = source_held(s, offset, length);
    if (held || !range_exists(s, offset, length)) return held;
    if (s->waiting && s->wanted_offset == offset && s->wanted_length == length) return NULL;
    free(s->filling);
    s->filling = NULL;
    s->waiting = true;
    s->wanted_offset = offset;
    s->wanted_length = length;
    s->filled = 0;
    return NULL;
}

bool source_wanted(const source *s, uint64_t *offset, uint64_t *length) {
    if (!s->waiting) return false;
    const uint64_t left = s->wanted_length - s->filled;
    *offset = s->wanted_offset + s->filled;
    *length = left < s->piece ? left : s->piece;
    return true;
}

static range *range_new(uint64_t offset, uint64_t length, error *e) {
    range *r = length <= SIZE_MAX - sizeof(range) ? malloc(sizeof(range) + (size_t)length) : NULL;
    if (!r) {
        fail_memory(e, "a piece of the file", length);
        return NULL;
    }
    r->offset = offset;
    r->length = length;
    return r;
}

uint8_t *source_room(source *s, uint64_t offset, uint64_t length, error *e) {
    range *r = range_new(offset, length, e);
    if (!r) return NULL;
    r->next = s->kept;
    s->kept = r;
    return r->data;
}

gm_status source_give(source *s, uint64_t offset, const void *data, uint64_t length, error *e) {
    uint64_t wanted_offset = 0, wanted_length = 0;
    if (!source_wanted(s, &wanted_offset, &wanted_length)) {
        return fail(e, GM_BAD_ARGUMENT, "%llu bytes at %llu were handed in, but none were wanted",
                    (unsigned long long)length, (unsigned long long)offset);
    }
    if (offset != wanted_offset || length != wanted_length) {
        return fail(e, GM_BAD_ARGUMENT, "%llu bytes at %llu were wanted, %llu at %llu handed in",
                    (unsigned long long)wanted_length, (unsigned long long)wanted_offset, (unsigned long long)length,
                    (unsigned long long)offset);
    }
    if (!s->filling) s->filling = range_new(s->wanted_offset, s->wanted_length, e);
    if (!s->filling) return GM_NO_MEMORY;
    memcpy(s->filling->data + s->filled, data, (size_t)length);
    s->filled += length;
    if (s->filled == s->wanted_length) {
        s->filling->next = s->kept;
        s->kept = s->filling;
        s->filling = NULL;
        s->waiting = false;
    }
    return GM_OK;
}

void source_drop(source *s, uint64_t offset) { source_forget(s, 0, offset); }

void source_forget(source *s, uint64_t offset, uint64_t length) {
    for (range **link = &s->kept; *link;) {
        range *r = *link;
        if (r->offset >= offset && r->offset + r->length <= offset + length) {
            *link = r->next;
            free(r);
        } else {
            link = &r->next;
        }
    }
}
