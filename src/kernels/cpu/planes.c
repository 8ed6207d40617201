/* planes.c - interleaves lines and planes, and separates them again. */
#include "kernels/cpu/planes.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/staging.h"

/* Four lanes, which every target shuffles in one instruction. */
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_mask __attribute__((vector_size(16)));
enum { QUAD = 4 };

/* Transposes four elements of each of four planes. */
TERN__INLINE void turn(quad v[QUAD])
{
    quad a = __builtin_shuffle(v[0], v[1], (quad_mask){0, 4, 1, 5});
    quad b = __builtin_shuffle(v[0], v[1], (quad_mask){2, 6, 3, 7});
    quad c = __builtin_shuffle(v[2], v[3], (quad_mask){0, 4, 1, 5});
    quad d = __builtin_shuffle(v[2], v[3], (quad_mask){2, 6, 3, 7});
    v[0] = __builtin_shuffle(a, c, (quad_mask){0, 1, 4, 5});
    v[1] = __builtin_shuffle(a, c, (quad_mask){2, 3, 6, 7});
    v[2] = __builtin_shuffle(b, d, (quad_mask){0, 1, 4, 5});
    v[3] = __builtin_shuffle(b, d, (quad_mask){2, 3, 6, 7});
}

TERN__SIMD static void planes_join(float *to, const float *from, int64_t step, int64_t n, int lanes)
{
    int64_t i = 0;
    for (; i + QUAD <= n; i += QUAD)
        for (int l = 0; l < TERN__BLOCK; l += QUAD) {
            quad v[QUAD];
            for (int k = 0; k < QUAD; k++)
                memcpy(&v[k], from + (l + k < lanes ? l + k : 0) * step + i, sizeof(quad));
            turn(v);
            for (int k = 0; k < QUAD; k++) memcpy(to + (i + k) * TERN__BLOCK + l, &v[k], sizeof(quad));
        }
    for (; i < n; i++)
        for (int l = 0; l < TERN__BLOCK; l++) to[i * TERN__BLOCK + l] = from[(l < lanes ? l : 0) * step + i];
}

TERN__SIMD static void planes_part(float *to, const float *from, int64_t step, int64_t n, int lanes, bool add)
{
    for (int l = 0; l < lanes; l += QUAD) {
        int64_t i = 0;
        for (; i + QUAD <= n && l + QUAD <= lanes; i += QUAD) {
            quad v[QUAD], old;
            for (int k = 0; k < QUAD; k++) memcpy(&v[k], from + (i + k) * TERN__BLOCK + l, sizeof(quad));
            turn(v);
            for (int k = 0; k < QUAD; k++) {
                float *at = to + (l + k) * step + i;
                memcpy(&old, at, sizeof(old));
                if (add) v[k] += old;
                memcpy(at, &v[k], sizeof(quad));
            }
        }
        for (; i < n; i++)
            for (int k = l; k < TERN__MIN(lanes, l + QUAD); k++)
                to[k * step + i] = from[i * TERN__BLOCK + k] + (add ? to[k * step + i] : 0);
    }
}

void tern__lines_join(float *to, const float *from, int64_t step, int64_t n, int lanes)
{
    planes_join(to, from, step, n, lanes);
}

void tern__lines_part(float *to, const float *from, int64_t step, int64_t n, int lanes, bool add)
{
    planes_part(to, from, step, n, lanes, add);
}

/* The offset in a blocked tensor, whose planes come in groups of 16. */
static int64_t place_in(const tern__planes *p, int64_t first)
{
    return p->plane * p->size + first * (p->view->layout == TERN__BLOCKED16 ? TERN__BLOCK : 1);
}

void tern__planes_join(float *to, const tern__planes *from, int64_t first, int64_t n)
{
    const tern__view *view = from->view;
    int64_t at = place_in(from, first);
    if (view->layout == TERN__BLOCKED16)
        tern__stage_load(TERN__COMPUTE_F32, (tern__stage *)to, view->dtype, view->data, at, 1,
                         n * TERN__BLOCK);
    else
        planes_join(to, (const float *)view->data + at, from->size, n, from->lanes);
}

void tern__planes_part(const tern__planes *to, const float *from, int64_t first, int64_t n, bool add)
{
    const tern__view *view = to->view;
    int64_t at = place_in(to, first);
    if (view->layout == TERN__BLOCKED16)
        tern__stage_store(TERN__COMPUTE_F32, (const tern__stage *)from, view->dtype, view->data, at, 1,
                          n * TERN__BLOCK, add);
    else
        planes_part((float *)view->data + at, from, to->size, n, to->lanes, add);
}

void tern__planes_part_bytes(const tern__planes *to, const uint8_t *from, int64_t first, int64_t n)
{
    uint8_t *data = (uint8_t *)to->view->data + place_in(to, first);
    if (to->view->layout == TERN__BLOCKED16) {
        memcpy(data, from, (size_t)(n * TERN__BLOCK));
        return;
    }
    for (int l = 0; l < to->lanes; l++)
        for (int64_t i = 0; i < n; i++) data[l * to->size + i] = from[i * TERN__BLOCK + l];
}
