#include "cli/video_input.h"

#include "cli/input.h"
#include "media/ffmpeg.h"
#include "media/video.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const option video_options[VIDEO_OPTIONS] = {
    NUMBER_OPTION(video_values, rate, "fps", 0, "X", 0.001, 1000,
                  "frames per second of a video that is a folder of frames; default 24"),
    COUNT_OPTION(video_values, frames, "frames", 0, "N", 1, VIDEO_MOST_FRAMES,
                 "show the model N frames of a video, at equal distances; default 32"),
};

void video_input_free(video_input *v) {
    buffer_free(&v->bytes);
    free(v->frames);
    *v = (video_input){ 0 };
}

static gm_status video_make_frames(video_input *v, const video_shot *shots, size_t count, error *e) {
    v->frames = calloc(count, sizeof *v->frames);
    if (!v->frames) return fail_memory(e, "the video's frames", count * sizeof *v->frames);
    v->count = count;
    for (size_t i = 0; i < count; i++)
        v->frames[i] =
            (gm_frame){ .time = shots[i].time, .data = v->bytes.data + shots[i].begin, .size = shots[i].size };
    return GM_OK;
}

/* ---- a folder ---- */

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static gm_status video_read_chosen(const char *path, struct dirent **names, uint32_t total, const video_values *values,
                                   video_input *out, error *e) {
    const uint32_t wanted = (uint32_t)min_size(values->frames.given ? values->frames.value : VIDEO_FRAMES, total);
    const double   rate = values->rate.given ? values->rate.value : VIDEO_RATE;
    video_shot    *shots = calloc(max_size(wanted, 1), sizeof *shots);
    gm_status      status = shots ? GM_OK : fail_memory(e, "the video's frames", wanted * sizeof *shots);
    if (!status && !total) status = fail(e, GM_BAD_ARGUMENT, "%s is empty: expected the frames of a video", path);
    for (uint32_t i = 0; i < wanted && !status; i++) {
        const uint32_t at = video_frame(i, wanted, total);
        buffer         name = { 0 };
        buffer_printf(&name, "%s/%s", path, names[at]->d_name);
        buffer_text(&name, "");
        shots[i] = (video_shot){ .time = at / rate, .begin = out->bytes.length };
        status = name.failed ? fail_memory(e, "a path", strlen(path)) : input_read(name.data, &out->bytes, e);
        shots[i].size = out->bytes.length - shots[i].begin;
        buffer_free(&name);
    }
    if (!status) status = video_make_frames(out, shots, wanted, e);
    free(shots);
    return status;
}

static gm_status video_read_folder(const char *path, const video_values *values, video_input *out, error *e) {
    struct dirent **names = NULL;
    const int       total = scandir(path, &names, is_visible, versionsort);
    if (total < 0) return fail(e, GM_IO, "cannot read the folder %s: %s", path, strerror(errno));
    const gm_status status = video_read_chosen(path, names, (uint32_t)total, values, out, e);
    for (int i = 0; i < total; i++) free(names[i]);
    free(names);
    return status;
}

/* ---- a file ---- */

static gm_status read_video_file(const char *path, int file, const video_values *values, video_input *out, error *e) {
#ifdef GM_MEDIA_LIBRARIES
    video_shot *shots = NULL;
    size_t      count = 0;
    error       inner = { 0 };
    gm_status   status = ffmpeg_video(file, values->frames.given ? (uint32_t)values->frames.value : VIDEO_FRAMES,
                                      &out->bytes, &shots, &count, &inner);
    if (status) fail(e, status, "%s: %s", path, inner.why);
    else status = video_make_frames(out, shots, count, e);
    free(shots);
    return status;
#else
    (void)file, (void)values, (void)out;
    return fail(e, GM_UNSUPPORTED, "%s: this build reads videos as folders with frames only", path);
#endif
}

gm_status video_input_read(const char *path, const video_values *values, video_input *out, error *e) {
    struct stat info;
    const int   file = open(path, O_RDONLY | O_CLOEXEC);
    gm_status   status = GM_OK;
    if (file < 0 || fstat(file, &info))
        status = fail(e, errno == ENOENT ? GM_NOT_FOUND : GM_IO, "cannot open %s: %s", path, strerror(errno));
    else if (S_ISDIR(info.st_mode)) status = video_read_folder(path, values, out, e);
    else if (S_ISREG(info.st_mode)) status = read_video_file(path, file, values, out, e);
    else status = fail(e, GM_BAD_ARGUMENT, "%s is neither a folder nor a file", path);
    if (file >= 0) close(file);
    if (status) video_input_free(out);
    return status;
}
