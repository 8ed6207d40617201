/* cut.c - crops, mirrors and turns a slice in one pass.
 *
 * Under any mirrors and quarter turns, one step to the right in the result is one step right, left, down or
 * up in the source, and so is one step down. So each row of the result is a strided run of the source; the
 * part of the run that is outside the source is filled. */
#include "data/augment/augment.h"

#include <string.h>

/* A position in the source, (row, column), and how it moves per step down and right in the result. */
typedef struct path {
    int64_t at[2], down[2], right[2];
} path;

/* torch.rot90 of a square: element (y, x) of the result is element (x, n - 1 - y) of the source. */
static path turn(path p, int64_t n)
{
    path turned = {.at = {p.at[0] + (n - 1) * p.right[0], p.at[1] + (n - 1) * p.right[1]}};
    for (int d = 0; d < 2; d++) {
        turned.down[d] = -p.right[d];
        turned.right[d] = p.down[d];
    }
    return turned;
}

static path find_path(const tern__change *c, const int64_t cut[3])
{
    path p = {.down = {1, 0}, .right = {0, 1}};
    for (int d = 0; d < 2; d++) {
        p.at[d] = c->start[1 + d] + (c->flip[1 + d] ? cut[1 + d] - 1 : 0);
        p.down[d] *= c->flip[1 + d] ? -1 : 1;
        p.right[d] *= c->flip[1 + d] ? -1 : 1;
    }
    for (int i = 0; i < c->turns; i++) p = turn(p, cut[1]);
    return p;
}

/* Narrows [*first, *end) to the steps of a run that are in [0, size). The run starts at `at` and moves by
 * `step`: -1, 0 or 1. */
static void cut_clip(int64_t at, int64_t step, int64_t size, int64_t *first, int64_t *end)
{
    int64_t from = step > 0 ? -at : step < 0 ? at - size + 1 : 0;
    int64_t to = step > 0 ? size - at : step < 0 ? at + 1 : *end;
    if (!step && (at < 0 || at >= size)) to = 0;
    *first = TERN__MAX(*first, from);
    *end = TERN__MIN(*end, to);
}

#define DEFINE_RUN(type)                                                                                     \
    static void fill_##type(type value, int64_t n, type *to)                                                 \
    {                                                                                                        \
        for (int64_t i = 0; i < n; i++) to[i] = value;                                                       \
    }                                                                                                        \
    static void run_##type(const type *from, int64_t stride, int64_t n, type *to)                            \
    {                                                                                                        \
        if (stride == 1)                                                                                     \
            memcpy(to, from, (size_t)n * sizeof(type));                                                      \
        else                                                                                                 \
            for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];                                        \
    }                                                                                                        \
    static void row_##type(const type *from, int64_t stride, int64_t first, int64_t end, int64_t n,          \
                           const void *fill, type *to)                                                       \
    {                                                                                                        \
        fill_##type(*(const type *)fill, first, to);                                                         \
        run_##type(from, stride, end - first, to + first);                                                   \
        fill_##type(*(const type *)fill, n - end, to + end);                                                 \
    }
DEFINE_RUN(uint8_t)
DEFINE_RUN(uint32_t)
DEFINE_RUN(uint64_t)

void tern__image_slice_cut(const tern__image_slice *s, const tern__change *change, const int64_t cut[3],
                           const void *fill, void *to)
{
    path p = find_path(change, cut);
    int64_t stride = p.right[0] * s->size[1] + p.right[1];
    for (int64_t y = 0; y < cut[1]; y++) {
        int64_t first = 0, end = cut[2], at[2];
        for (int d = 0; d < 2; d++) {
            at[d] = p.at[d] + y * p.down[d] - s->origin[d];
            cut_clip(at[d], p.right[d], s->size[d], &first, &end);
        }
        if (first >= end) first = end = cut[2];
        int64_t from = first < end ? at[0] * s->size[1] + at[1] + first * stride : 0, row = y * cut[2];
        if (s->bytes == 1)
            row_uint8_t((const uint8_t *)s->data + from, stride, first, end, cut[2], fill,
                        (uint8_t *)to + row);
        else if (s->bytes == 4)
            row_uint32_t((const uint32_t *)s->data + from, stride, first, end, cut[2], fill,
                         (uint32_t *)to + row);
        else
            row_uint64_t((const uint64_t *)s->data + from, stride, first, end, cut[2], fill,
                         (uint64_t *)to + row);
    }
}
