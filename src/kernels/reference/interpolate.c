#include "kernels/interpolate.h"
#include "kernels/reference/reference.h"

/* y's element `i` is made of eight of x: two along each axis. */
typedef struct corners {
    tern__taps taps[TERN__SPACE];
    tern__space in;
    int64_t plane; /* the number of its first element in x */
} corners;

static corners corners_of(const tern__call *call, const tern__view *x, const tern__view *y, int64_t i)
{
    corners c = {.in = tern__space_of(x)};
    tern__space out = tern__space_of(y);
    c.plane = i / out.count * c.in.count;
    for (int d = TERN__SPACE - 1; d >= 0; i /= out.size[d--])
        c.taps[d] =
            tern__taps_of(call->attr, d, c.in.size[d], out.size[d], i % out.size[d], x->dtype == TERN_F64);
    return c;
}

/* Corner k's weight, and its number in x if it counts. */
static double corner(const corners *c, int k, int64_t *number)
{
    double weight = 1;
    int64_t at = 0;
    for (int d = 0; d < TERN__SPACE; d++) {
        int side = k >> d & 1;
        weight *= c->taps[d].weight[side];
        at = at * c->in.size[d] + c->taps[d].first + side;
    }
    *number = c->plane + at;
    return weight;
}

#define EACH_CORNER(k) for (int k = 0; k < 1 << TERN__SPACE; k++)

int tern__reference_interpolate(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y), number;
    for (int64_t i = 0; i < count; i++) {
        corners c = corners_of(call, x, y, i);
        double sum = 0;
        EACH_CORNER(k)
        {
            double weight = corner(&c, k, &number);
            if (weight != 0) sum += weight * tern__view_get(x, number);
        }
        tern__reference_put(call, 0, i, sum);
    }
    return TERN_OK;
}

int tern__reference_interpolate_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy), number;
    double *sums = tern__reference_sums_new(call, 0);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        corners c = corners_of(call, dx, dy, i);
        EACH_CORNER(k)
        {
            double weight = corner(&c, k, &number);
            if (weight != 0) sums[tern__view_offset(dx, number)] += weight * tern__view_get(dy, i);
        }
    }
    tern__reference_sums_put(call, sums, 1);
    return TERN_OK;
}
