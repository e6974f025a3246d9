/* Pictures for the vision tower: patches in the order in which the tower wants them. */

#include "session/tower_parts.h"

#include <stdlib.h>

static gm_status vision_check(const gguf *file, uint32_t soft_width, error *e) {
    vision_weights shapes;
    TRY(vision_shapes(file, soft_width, &shapes, e));
    vision_free(&shapes);
    return GM_OK;
}

static gm_status vision_load_weights(engine_tower *t, const gguf *file, uint32_t soft_width, error *e) {
    TRY(vision_load(file, soft_width, &t->vision, e));
    t->kv_heads = t->vision.config.heads;
    t->head = t->vision.config.head;
    return GM_OK;
}

static gm_status vision_make_graph(const engine_tower *t, const model_adapters *adapters, graph *out, tensor **leaf,
                                   error *e) {
    return vision_graph(&t->vision, adapters, out, leaf, e);
}

static uint64_t vision_bytes(const gguf *file, uint32_t soft_width) {
    vision_weights shapes;
    error          ignored = { 0 };
    if (vision_shapes(file, soft_width, &shapes, &ignored)) return 0;
    const uint64_t bytes = vision_run_bytes(&shapes.config, 280);
    vision_free(&shapes);
    return bytes;
}

static void vision_free_weights(engine_tower *t) { vision_free(&t->vision); }

/* The patches of a soft token follow each other: square by square, and row by row within a square. Where token i of the run is. */
typedef struct {
    uint32_t column, row;
} patch_place;

static patch_place patch_at(const vision_config *c, const tower_item *item, size_t i) {
    const size_t side = c->merged, square = i / (side * side), within = i % (side * side);
    const size_t squares = item->width / (c->patch * side);
    return (patch_place){ (uint32_t)(square % squares * side + within % side),
                          (uint32_t)(square / squares * side + within / side) };
}

static void vision_mark(const engine_tower *t, const tower_item *item, token_record *records, int32_t *output_rows) {
    const vision_config *c = &t->vision.config;
    for (size_t i = 0; i < item->tokens; i++) {
        const patch_place at = patch_at(c, item, i);
        records[i].id = (int32_t)at.column;
        records[i].position = at.row;
    }
    for (size_t i = 0; i < item->outputs; i++) output_rows[i] = (int32_t)(i * c->merged * c->merged);
}

/* What the leaf gets for each value of a pixel, rounded as the reference does: from 0 to 1, or for the encoder from −1 to 1. */
static void pixel_values(const vision_config *c, const tower_item *item, float values[256]) {
    for (int i = 0; i < 256; i++) {
        const float value = item->frame ? (float)i / 255.0f : (float)i * (1.0f / 255.0f);
        values[i] = c->layers ? 2 * value - 1 : value;
    }
}

/* Weights have channel after channel; pictures have the three channels of each pixel together. */
static void fill_pixels(const vision_config *c, const tower_item *item, patch_place at, const float values[256],
                        float *restrict out) {
    const size_t side = c->patch, area = side * side;
    for (size_t y = 0; y < side; y++, out += side) {
        const uint8_t *pixel = (const uint8_t *)item->data + ((at.row * side + y) * item->width + at.column * side) * 3;
        for (size_t x = 0; x < side; x++, pixel += 3) {
            out[x] = values[pixel[0]];
            out[area + x] = values[pixel[1]];
            out[2 * area + x] = values[pixel[2]];
        }
    }
}

/* The same from patches as the reference lays them out. */
static void fill_patch(const vision_config *c, const tower_item *item, patch_place at, float *out) {
    const size_t area = (size_t)c->patch * c->patch, grid = item->width / c->patch;
    const float *from = (const float *)item->data + (at.row * grid + at.column) * area * 3;
    for (size_t i = 0; i < 3 * area; i++) {
        const float value = from[i];
        out[i % 3 * area + i / 3] = c->layers ? 2 * value - 1 : value;
    }
}

static void vision_fill(const engine_tower *t, const tower_item *item, size_t first, size_t count, float *out) {
    const vision_config *c = &t->vision.config;
    float                values[256];
    pixel_values(c, item, values);
    for (size_t i = 0; i < count; i++, out += t->leaf->ne[0]) {
        const patch_place at = patch_at(c, item, first + i);
        if (item->patches) fill_patch(c, item, at, out);
        else fill_pixels(c, item, at, values, out);
    }
}

const tower_type tower_vision = {
    .name = "vision",
    .lacking = "see pictures",
    .tensor = "v.patch_embd.weight",
    .part = PART_VISION,
    .fewest = 9,
    .check = vision_check,
    .load = vision_load_weights,
    .graph = vision_make_graph,
    .free_weights = vision_free_weights,
    .run_bytes = vision_bytes,
    .mark = vision_mark,
    .fill = vision_fill,
};

/* ---- jobs ---- */

static gm_status add_picture(tower_job *job, const vision_config *c, const tower_picture *p, error *e) {
    const uint32_t side = c->patch * c->merged, columns = p->width / c->patch, rows = p->height / c->patch;
    if (!p->width || !p->height || p->width % side || p->height % side)
        return fail(e, GM_BAD_ARGUMENT,
                    "a picture for the vision tower has sides of a multiple of %u pixels, not %u × %u", side, p->width,
                    p->height);
    if (columns > c->positions || rows > c->positions)
        return fail(e, GM_BAD_ARGUMENT, "a picture of %u × %u patches is too long: the vision tower has %u positions",
                    columns, rows, c->positions);
    const size_t values = (size_t)p->width * p->height * 3, tokens = (size_t)columns * rows;
    tower_item  *item =
        tower_job_add(job, p->patches ? (const void *)p->patches : p->pixels,
                      p->patches ? values * sizeof(float) : values, tokens, tokens / (c->merged * c->merged), e);
    if (!item) return e->status;
    item->width = p->width;
    item->height = p->height;
    item->patches = p->patches != NULL;
    item->frame = p->frame;
    return GM_OK;
}

gm_status tower_encode_pictures(gm_engine *engine, const tower_picture *pictures, size_t count, tower_job **out,
                                error *e) {
    vision_weights shapes;
    TRY(tower_job_new(engine, TOWER_VISION, count, out, e));
    gm_status status = vision_shapes(engine_tower_file(engine, TOWER_VISION), engine->weights.config.width, &shapes, e);
    for (size_t i = 0; i < count && !status; i++) { status = add_picture(*out, &shapes.config, &pictures[i], e); }
    vision_free(&shapes);
    if (!status) return GM_OK;
    tower_job_free(*out);
    *out = NULL;
    return status;
}
