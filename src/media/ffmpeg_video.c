/* Frames of a video file by the program ffmpeg. A first run copies no picture but lists the times of all frames; a second one decodes the
 * file and keeps the frames that were chosen. */

#include "media/ffmpeg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TOTAL = 10000000, MOST_BYTES = 512 << 20 }; /* frames of a file, and bytes of what ffmpeg writes */

typedef struct {
    const char *name, *format; /* ffmpeg's */
    size_t      at;
    const char *mark;
} video_kind;

static const video_kind *video_recognise(int in) {
    static const video_kind kinds[] = {
        { "MP4", "mov", 4, "ftyp" }, { "MOV", "mov", 4, "moov" },
        { "MOV", "mov", 4, "mdat" }, { "MOV", "mov", 4, "wide" },
        { "GIF", "gif", 0, "GIF8" }, { "WebM or Matroska", "matroska", 0, "\x1a\x45\xdf\xa3" },
        { "AVI", "avi", 8, "AVI " },
    };
    char          head[189] = { 0 };
    const ssize_t got = pread(in, head, sizeof head, 0);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (got >= 12 && !memcmp(head + kinds[i].at, kinds[i].mark, 4)) return &kinds[i];
    }
    static const video_kind stream = { .name = "MPEG-TS", .format = "mpegts" };
    return got == (ssize_t)sizeof head && head[0] == 0x47 && head[188] == 0x47 ? &stream : NULL;
}

/* What ffmpeg writes for one set of arguments. Only the named format, and only local files, as for sound. */
static gm_status video_run(int in, const video_kind *kind, const char *const *more, size_t more_count, buffer *out,
                           error *e) {
    const char *arguments[40] = { "ffmpeg", "-nostdin", "-v",         "error", "-protocol_whitelist",
                                  "file",   "-f",       kind->format, "-i",    "/dev/fd/3",
                                  "-map",   "0:V:0",    "-an" };
    size_t      n = 13;
    for (size_t i = 0; i < more_count; i++) arguments[n++] = more[i];
    arguments[n++] = "-y";
    arguments[n++] = "/dev/fd/4";
    FILE *file = tmpfile();
    if (!file) return fail(e, GM_IO, "cannot create a temporary file for ffmpeg: %s", strerror(errno));
    ffmpeg   *program = NULL;
    gm_status status = ffmpeg_start(arguments, in, fileno(file), kind->name,
                                    "a folder with the frames needs no other program", &program, e);
    if (!status) status = ffmpeg_wait(program, INFINITY, e);
    ffmpeg_free(program);
    char part[1 << 16];
    rewind(file);
    for (size_t got; !status && (got = fread(part, 1, sizeof part, file)) > 0;) {
        buffer_append(out, part, got);
        if (out->failed) status = fail_memory(e, "the video's frames", out->length);
        else if (out->length > MOST_BYTES)
            status = fail(e, GM_BAD_FILE, "the video's frames take more than %d MiB: choose fewer", MOST_BYTES >> 20);
    }
    fclose(file);
    return status;
}

/* ---- times ---- */

static int video_compare_times(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* From lines like "0, dts, pts, duration, size, checksum", in ticks of "#tb 0: 1/12800" seconds. In the order in which they are shown. */
static gm_status video_read_times(const buffer *lines, double **times, size_t *count, error *e) {
    double tick = 0, numerator = 0, denominator = 0;
    size_t total = 0;
    for (size_t i = 0; i < lines->length; i++) total += lines->data[i] == '\n';
    if (total > MOST_TOTAL) return fail(e, GM_UNSUPPORTED, "the video has too many frames: %zu", total);
    double *list = malloc((total + 1) * sizeof *list);
    if (!list) return fail_memory(e, "the times of a video", total * sizeof *list);
    *count = 0;
    for (const char *line = lines->data; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        long long decoded, shown;
        if (sscanf(line, "#tb 0: %lf/%lf", &numerator, &denominator) == 2 && denominator > 0)
            tick = numerator / denominator;
        else if (sscanf(line, "0, %lld, %lld", &decoded, &shown) == 2)
            list[(*count)++] = tick * (double)(shown == INT64_MIN ? decoded : shown);
    }
    qsort(list, *count, sizeof *list, video_compare_times);
    for (size_t i = *count; i-- > 0;) list[i] -= list[0];
    *times = list;
    return *count ? GM_OK : fail(e, GM_BAD_FILE, "the file contains no video");
}

/* ---- frames ---- */

/* One PNG file after another: a signature of 8 bytes, and chunks of length, name, data and checksum up to IEND. */
static size_t png_length(const uint8_t *at, size_t left) {
    size_t length = 8;
    while (left >= length + 12) {
        const uint8_t *chunk = at + length;
        const size_t   data = (size_t)chunk[0] << 24 | (size_t)chunk[1] << 16 | (size_t)chunk[2] << 8 | chunk[3];
        if (data > left) return 0;
        length += 12 + data;
        if (!memcmp(chunk + 4, "IEND", 4)) return length <= left ? length : 0;
    }
    return 0;
}

static gm_status video_split_frames(const buffer *bytes, const double *times, size_t total, uint32_t wanted,
                                    video_shot **shots, size_t *count, error *e) {
    video_shot *list = calloc(wanted, sizeof *list);
    if (!list) return fail_memory(e, "the video's frames", wanted * sizeof *list);
    *count = 0;
    for (size_t at = 0; *count < wanted && at < bytes->length;) {
        const size_t size = png_length((const uint8_t *)bytes->data + at, bytes->length - at);
        if (!size) break;
        list[*count] = (video_shot){ times[video_frame((uint32_t)*count, wanted, (uint32_t)total)], at, size };
        ++*count;
        at += size;
    }
    *shots = list;
    return *count ? GM_OK : fail(e, GM_BAD_FILE, "ffmpeg found no frame in the video");
}

/* Frame n is chosen if it is floor(i · total / wanted) for an i. The frames get new times, so that ffmpeg repeats and drops none. */
static gm_status video_decode_frames(int in, const video_kind *kind, size_t total, uint32_t wanted, buffer *out,
                                     error *e) {
    char filter[400], most[16];
    snprintf(filter, sizeof filter,
             "select='eq(floor(ceil(n*%u/%zu)*%zu/%u),n)*lt(n,%zu)',setpts=N/25/TB,"
             "scale=w='min(iw,%d)':h='min(ih,%d)':force_original_aspect_ratio=decrease",
             wanted, total, total, wanted, total, VIDEO_SIDE, VIDEO_SIDE);
    snprintf(most, sizeof most, "%u", wanted);
    const char *const more[] = { "-vf",      filter,  "-r",   "25",  "-frames:v", most,
                                 "-pix_fmt", "rgb24", "-c:v", "png", "-f",        "image2pipe" };
    return video_run(in, kind, more, COUNT_OF(more), out, e);
}

gm_status ffmpeg_video(int in, uint32_t most, buffer *bytes, video_shot **shots, size_t *count, error *e) {
    static const char *const list[] = { "-c", "copy", "-f", "framecrc" };
    const video_kind        *kind = video_recognise(in);
    buffer                   lines = { 0 };
    double                  *times = NULL;
    size_t                   total = 0;
    *shots = NULL;
    if (!kind)
        return fail(
            e, GM_BAD_FILE,
            "not a video that can be read: expected a folder with frames, or a file in MP4, MOV, WebM, Matroska, "
            "AVI, MPEG-TS or GIF");
    gm_status status = video_run(in, kind, list, COUNT_OF(list), &lines, e);
    if (!status) {
        buffer_text(&lines, "");
        status = lines.failed ? fail_memory(e, "the times of a video", lines.length)
                              : video_read_times(&lines, &times, &total, e);
    }
    const uint32_t wanted = (uint32_t)min_size(most, total);
    if (!status) status = video_decode_frames(in, kind, total, wanted, bytes, e);
    if (!status) status = video_split_frames(bytes, times, total, wanted, shots, count, e);
    free(times);
    buffer_free(&lines);
    return status;
}
