#include "media/video.h"

#include <stdio.h>

uint32_t video_frame(uint32_t i, uint32_t wanted, uint32_t total) { return (uint32_t)((uint64_t)i * total / wanted); }

void video_time(double seconds, char out[24]) {
    const unsigned long long whole = seconds > 0 && seconds < 1e12 ? (unsigned long long)seconds : 0;
    snprintf(out, 24, "%02llu:%02llu", whole / 60, whole % 60);
}
