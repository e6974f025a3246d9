/* How much main memory this process may still take. */

#ifndef GM_FREE_MEMORY_H
#define GM_FREE_MEMORY_H

#include "base/base.h"

/* In bytes, about; 0: the system does not say. A container's limit counts. */
uint64_t free_memory(void);

#endif
