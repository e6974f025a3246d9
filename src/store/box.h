/* The model in the box: where its file is. */

#ifndef GM_BOX_H
#define GM_BOX_H

#include "base/arena.h"

/* The path of its file: $GEMMULE_BOX as it is, else the first that is there beside the program, where `make install` puts it, in the
 * source tree of a program that was built there, or beside the shared library. GM_NOT_FOUND says where it was looked for. */
gm_status box_find(arena *a, const char **path, error *e);

#endif
