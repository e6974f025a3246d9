/* Videos are pictures with times: which frames are looked at (gemma4.md 4.5). */

#ifndef GM_VIDEO_H
#define GM_VIDEO_H

#include "base/base.h"

enum { VIDEO_FRAMES = 32, VIDEO_BUDGET = 70 }; /* frames by default; soft tokens of a frame */
enum { VIDEO_MOST_FRAMES = 512 };              /* of one video in a message */
#define VIDEO_RATE 24.0                        /* frames per second, if nobody knows */

/* A frame as the file of a picture, which is a piece of some bytes. */
typedef struct {
    double time; /* in seconds from the start */
    size_t begin, size;
} video_shot;

/* The frame that is the i-th of `wanted` out of `total`. */
uint32_t video_frame(uint32_t i, uint32_t wanted, uint32_t total);

#endif
