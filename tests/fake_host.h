/* What a test may ask the fake host (fake_host.c) about the shaders that it was given. */

#ifndef GM_FAKE_HOST_H
#define GM_FAKE_HOST_H

#include "gpu/host.h"

/* The label of text `index` of those that this host was asked to compile, and whether a list dispatched it; NULL behind the last. */
const char *fake_host_text(const gpu_host *h, size_t index, bool *dispatched);
/* Whether this host dispatched the text that `other` has as text `index`. */
bool fake_host_dispatched(const gpu_host *h, const gpu_host *other, size_t index);

#endif
