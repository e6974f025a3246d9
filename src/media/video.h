/* Videos are pictures with times: which frames are looked at, and how their times are written (gemma4.md 4.5). */

#ifndef GM_VIDEO_H
#define GM_VIDEO_H

#include "base/base.h"

enum { VIDEO_FRAMES = 32, VIDEO_BUDGET = 70 }; /* frames by default; soft tokens of a frame */
#define VIDEO_RATE 24.0                        /* frames per second, if nobody knows */

/* The frame that is the i-th of `wanted` out of `total`. */
uint32_t video_frame(uint32_t i, uint32_t wanted, uint32_t total);
/* "mm:ss", rounded down; more digits after 99 minutes. */
void video_time(double seconds, char out[24]);

#endif
