/* A file that replaces another one when it is complete.
 *
 * Everything is written under a name of its own in the same folder (.gemmule-….part) and then renamed:
 * whatever fails, the old file stays as it was, and several writers of one path each leave a whole file. A part that a crash
 * left behind is removed when the next new file is made in that folder; a lock tells it from one that is being written. */

#ifndef GM_NEW_FILE_H
#define GM_NEW_FILE_H

#include "base/base.h"

#include <stdio.h>

typedef struct new_file new_file;

typedef enum {
    NEW_FILE_KEPT, /* synced to disk before it replaces the old one; private (0600) */
    NEW_FILE_BULK, /* large, and can be made again: not synced; mode as the umask says */
} new_file_kind;

/* Only a regular file is replaced, and its mode is kept; a link to one stays. */
gm_status new_file_open(const char *path, new_file_kind kind, new_file **out, error *e);
/* A gguf_sink: false if the bytes cannot be written. After a failure it writes nothing more. */
bool new_file_write(void *file, const void *data, size_t length);
/* For libraries that write to a stream themselves. Its errors count. */
FILE *new_file_stream(new_file *f);
/* Ends the file and frees it. It takes its place only if nothing failed: `problem` is what went wrong where its bytes come
 * from, and is passed on unless writing failed first. */
gm_status new_file_end(new_file *f, const error *problem, error *e);

#endif
