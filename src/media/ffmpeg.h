/* The program ffmpeg, if it is installed: for kinds of sound and video that no library of ours decodes. */

#ifndef GM_FFMPEG_H
#define GM_FFMPEG_H

#include "base/buffer.h"
#include "media/video.h"

/* A running ffmpeg. In its arguments the file `in` is /dev/fd/3, and `out` is /dev/fd/4; no shell reads them. `what` names the input's kind
 * in errors ("M4A"). If there is no ffmpeg, the error ends with `otherwise`. */
typedef struct ffmpeg ffmpeg;

gm_status ffmpeg_start(const char *const *arguments, int in, int out, const char *what, const char *otherwise,
                       ffmpeg **started, error *e);
/* GM_OK: it has ended, and `out` is complete. GM_AGAIN: it still runs, and the clock is past `deadline`. */
gm_status ffmpeg_wait(ffmpeg *f, double deadline, error *e);
/* Whether it still runs. Does not wait. */
bool ffmpeg_runs(ffmpeg *f);
/* Kills it if it still runs. */
void ffmpeg_free(ffmpeg *f);

/* Up to `most` frames of a video, at equal distances, scaled down to VIDEO_SIDE; `bytes` has one PNG file after another. free() the list.
 * The file is recognised by its content: MP4, MOV, WebM, Matroska, AVI, MPEG-TS or GIF. */
enum { VIDEO_SIDE = 960 };
gm_status ffmpeg_video(int in, uint32_t most, buffer *bytes, video_shot **shots, size_t *count, error *e);

#endif
