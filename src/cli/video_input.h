/* A video from the user: a folder with frames, or a file. */

#ifndef GM_VIDEO_INPUT_H
#define GM_VIDEO_INPUT_H

#include "cli/options.h"
#include "gemmule.h"

#include "base/buffer.h"

/* How many frames of a video are shown, and how fast those of a folder follow each other. */
typedef struct {
    number_value rate;
    count_value  frames;
} video_values;

enum { VIDEO_OPTIONS = 2 };
extern const option video_options[VIDEO_OPTIONS];
#define VIDEO_GROUP(offset) { "video", video_options, VIDEO_OPTIONS, offset }

typedef struct {
    buffer    bytes; /* of all frames: files of pictures */
    gm_frame *frames;
    size_t    count;
} video_input; /* zero-initialise */

/* Chooses the frames at equal distances, or all if there are few. The frames of a folder are its files, in the order of the numbers in their
 * names. Errors name the path. */
gm_status video_input_read(const char *path, const video_values *values, video_input *out, error *e);
void      video_input_free(video_input *v);

#endif
