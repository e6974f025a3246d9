/* Shader texts: the files of wgsl/, embedded in the program, through a small preprocessor.
 *
 *   #if NAME   #if NAME == VALUE   #elif …   #else   #endif   #include "file.wgsl"   ${NAME}
 *
 * An unknown name is 0 in a condition and an error in ${…}. Nothing else is special, so a file without these lines is plain WGSL. */

#ifndef GM_GPU_SHADER_H
#define GM_GPU_SHADER_H

#include "base/buffer.h"

typedef struct {
    const char *name;
    const char *value; /* a word or a number */
} shader_define;

/* Appends the processed text of wgsl/<file>. The error names file and line. */
gm_status shader_text(const char *file, const shader_define *defines, size_t count, buffer *out, error *e);

/* The embedded files (made by the build from wgsl/): sorted by name, ended by NULL. */
typedef struct {
    const char *name, *text;
} shader_file;
extern const shader_file shader_files[];

#endif
