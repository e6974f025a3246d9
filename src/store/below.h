/* Opening what lies below a folder. Links are never followed, so nothing outside the folder can be reached, whatever names
 * and links somebody put there, and whenever they put them there. */

#ifndef GM_BELOW_H
#define GM_BELOW_H

#include "base/base.h"

/* Each returns a descriptor, or -1 with errno. The path consists of names separated by slashes; a name that is empty or
 * starts with a dot is EINVAL, a link on the way or at the end is ELOOP. */
int below_open_folder(int folder, const char *path); /* "" is the folder itself */
int below_open_file(int folder, const char *path);   /* only a regular file: anything else is EINVAL */

/* A regular file by its path, links followed. */
int open_regular_file(const char *path);

#endif
