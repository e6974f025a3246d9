#include "media/video.h"

uint32_t video_frame(uint32_t i, uint32_t wanted, uint32_t total) { return (uint32_t)((uint64_t)i * total / wanted); }
