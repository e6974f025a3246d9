/* Large writes to GPU buffers, through mapped pieces of staging memory that are used again and again. The library's own QueueWriteBuffer takes
 * new staging memory for every large write, and a fresh page costs more than copying to it: it is three to four times slower on a large GPU.
 *
 * A write is copied into mapped pieces at once. The commands that copy it on to its buffer are collected, and submitted before anything that
 * might depend on them: a list, any other write, a fence, the end of a buffer. Then the pieces are mapped again, which succeeds when the GPU
 * has copied them. */

#include "gpu/host_native.h"

#include <string.h>

/* Pieces are not worth trying again once one could not be made or mapped: writes then go by the library's own way. */
static void on_piece_mapped(uint32_t status, WGPUStringView message, void *first, void *second) {
    (void)message;
    gpu_host          *h = first;
    host_upload_piece *piece = second;
    h->news++;
    if (status == WGPUStatus_Success && piece->buffer)
        piece->memory = h->api.BufferGetMappedRange(piece->buffer, 0, UPLOAD_PIECE);
    if (!piece->memory) h->uploads.refused = true;
}

static bool upload_piece_make(gpu_host *h, host_upload_piece *piece) {
    const WGPUBufferDescriptor d = { .usage = WGPUBufferUsage_MapWrite | WGPUBufferUsage_CopySrc,
                                     .size = UPLOAD_PIECE,
                                     .mappedAtCreation = true };
    error                      ignored = { 0 };
    host_scope_begin(h);
    WGPUBuffer      buffer = h->api.DeviceCreateBuffer(h->device, &d);
    const gm_status status = host_scope_end(h, "staging memory for writes", &ignored);
    void           *memory = status || !buffer ? NULL : h->api.BufferGetMappedRange(buffer, 0, UPLOAD_PIECE);
    if (!memory) {
        if (buffer) h->api.BufferRelease(buffer);
        return false;
    }
    *piece = (host_upload_piece){ .buffer = buffer, .memory = memory };
    return true;
}

/* Whether the mapped pieces have room for so many bytes; makes more pieces if that helps. */
static bool uploads_make_room(gpu_host *h, uint64_t bytes) {
    host_uploads *u = &h->uploads;
    uint64_t      room = 0;
    for (size_t i = 0; i < COUNT_OF(u->pieces) && room < bytes && !u->refused; i++) {
        host_upload_piece *piece = &u->pieces[i];
        if (!piece->buffer) u->refused = !upload_piece_make(h, piece);
        if (piece->memory) room += UPLOAD_PIECE - piece->used;
    }
    return room >= bytes;
}

void host_uploads_flush(gpu_host *h) {
    host_uploads     *u = &h->uploads;
    const webgpu_api *api = &h->api;
    if (!u->copy_count) return;
    for (size_t i = 0; i < COUNT_OF(u->pieces); i++) {
        if (!u->pieces[i].used) continue;
        api->BufferUnmap(u->pieces[i].buffer);
        u->pieces[i].memory = NULL;
    }
    WGPUCommandEncoder encoder = api->DeviceCreateCommandEncoder(h->device, NULL);
    for (size_t i = 0; i < u->copy_count; i++) {
        const host_upload_copy *copy = &u->copies[i];
        api->CommandEncoderCopyBufferToBuffer(encoder, copy->from, copy->at, copy->to, copy->offset, copy->bytes);
    }
    WGPUCommandBuffer commands = api->CommandEncoderFinish(encoder, NULL);
    api->QueueSubmit(h->queue, 1, &commands);
    api->CommandBufferRelease(commands);
    api->CommandEncoderRelease(encoder);
    u->copy_count = 0;
    for (size_t i = 0; i < COUNT_OF(u->pieces); i++) {
        const WGPUBufferMapCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                 .callback = on_piece_mapped,
                                                 .userdata1 = h,
                                                 .userdata2 = &u->pieces[i] };
        if (!u->pieces[i].used) continue;
        u->pieces[i].used = 0;
        api->BufferMapAsync(u->pieces[i].buffer, WGPUMapMode_Write, 0, UPLOAD_PIECE, info);
    }
}

/* ---- copying ---- */

enum { COPY_THREADS = 4, COPY_PART = 256 << 10 };

typedef struct {
    pool          *threads;
    uint8_t       *to;
    const uint8_t *from;
    size_t         bytes;
} upload_memcpy;

static void upload_memcpy_work(void *context, size_t thread, size_t threads) {
    (void)thread, (void)threads;
    const upload_memcpy *c = context;
    size_t               at;
    while ((at = pool_take(c->threads) * COPY_PART) < c->bytes)
        memcpy(c->to + at, c->from + at, min_size(COPY_PART, c->bytes - at));
}

void host_copy(gpu_host *h, uint8_t *to, const uint8_t *from, size_t bytes) {
    host_uploads *u = &h->uploads;
    error         ignored = { 0 };
    if (bytes <= 2 * COPY_PART || h->info.software) {
        memcpy(to, from, bytes);
        return;
    }
    if (!u->threads) pool_new(min_size(COPY_THREADS, physical_cores()), &u->threads, &ignored);
    upload_memcpy copy = { .threads = u->threads, .to = to, .from = from, .bytes = bytes };
    if (u->threads) pool_run(u->threads, upload_memcpy_work, &copy);
    else memcpy(to, from, bytes);
}

/* ---- writing ---- */

bool host_uploads_write(gpu_host *h, WGPUBuffer to, uint64_t offset, const void *data, uint64_t bytes) {
    host_uploads *u = &h->uploads;
    if (bytes < UPLOAD_SMALLEST || bytes > UPLOAD_LARGEST) return false;
    if (u->copy_count + UPLOAD_PIECES > COUNT_OF(u->copies)) host_uploads_flush(h);
    if (!uploads_make_room(h, bytes)) {
        host_uploads_flush(h);
        host_process(h); /* perhaps pieces have come back */
        if (!uploads_make_room(h, bytes)) return false;
    }
    const uint8_t *next = data;
    for (host_upload_piece *piece = u->pieces; bytes; piece++) {
        const uint64_t count = piece->memory ? min_size(bytes, UPLOAD_PIECE - piece->used) : 0;
        if (!count) continue;
        host_copy(h, piece->memory + piece->used, next, count);
        u->copies[u->copy_count++] =
            (host_upload_copy){ .from = piece->buffer, .at = piece->used, .to = to, .offset = offset, .bytes = count };
        piece->used += count;
        next += count;
        offset += count;
        bytes -= count;
    }
    return true;
}

void host_uploads_close(gpu_host *h) {
    for (size_t i = 0; i < UPLOAD_PIECES; i++) {
        WGPUBuffer buffer = h->uploads.pieces[i].buffer;
        if (!buffer) continue;
        h->api.BufferDestroy(buffer); /* ends a mapping that is under way */
        h->api.BufferRelease(buffer);
    }
    pool_free(h->uploads.threads);
    h->uploads = (host_uploads){ .refused = true };
}
