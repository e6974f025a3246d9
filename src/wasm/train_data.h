/* A file of examples, and the pictures and sounds that it names, in the module's memory. */

#ifndef GM_WASM_TRAIN_DATA_H
#define GM_WASM_TRAIN_DATA_H

#include "wasm/wasm.h"

typedef struct wasm_file {
    struct wasm_file *next;
    char             *path, *bytes;
    size_t            size;
} wasm_file;

typedef struct {
    wasm_file *main, *media;
} wasm_data;

/* NULL if there is no such picture or sound. */
const wasm_file *wasm_data_find(const wasm_data *d, const char *path);

#endif
