/* cut.c - a slice cut, mirrored and turned in one pass.
 *
 * Whatever mirrors and quarter turns there are, going right in the result is going one step right, left, down
 * or up in the source, and going down likewise. So each row of the result is a run of the source with a
 * stride, of which the part that lies outside is filled. */
#include "data/augment.h"

#include <string.h>

/* A place in the source, row and column, and how it moves when the result's goes down or right. */
typedef struct path {
    int64_t at[2], down[2], right[2];
} path;

static path straight(void)
{
    return (path){.down = {1, 0}, .right = {0, 1}};
}

/* torch.rot90 of a square: element (y, x) of the result is (x, n - 1 - y) of the source. */
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
    path p = straight();
    for (int d = 0; d < 2; d++) {
        p.at[d] = c->start[1 + d] + (c->flip[1 + d] ? cut[1 + d] - 1 : 0);
        p.down[d] *= c->flip[1 + d] ? -1 : 1;
        p.right[d] *= c->flip[1 + d] ? -1 : 1;
    }
    for (int i = 0; i < c->turns; i++) p = turn(p, cut[1]);
    return p;
}

/* Of a run that begins at `at` and moves by `step`, -1, 0 or 1, the places [*first, *end) are in [0, size).
 */
static void clip(int64_t at, int64_t step, int64_t size, int64_t *first, int64_t *end)
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
            clip(at[d], p.right[d], s->size[d], &first, &end);
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
