/* The model in the box: where its file is. */

#ifndef GM_BOX_H
#define GM_BOX_H

#include "base/arena.h"

/* The path of its file: $GEMMULE_BOX if set, else the first that exists beside the program, where `make install` puts it,
 * in the source tree the program was built in, or beside the shared library. GM_NOT_FOUND says where we looked. */
gm_status box_find(arena *a, const char **path, error *e);

#endif
