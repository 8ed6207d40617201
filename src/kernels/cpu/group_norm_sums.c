/* group_norm_sums.c - sums over rows, sixteen values at a time, each in its own lane. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/group_norm_sums.h"
#include "kernels/cpu/lanes.h"

#include <math.h>

#define LANES TERN__LANES
#define BLOCK TERN__BLOCK
#define PARTS TERN__PARTS
#define CHUNK TERN__GROUP_CHUNK
#define HEAD  (4 * BLOCK) /* values whose mean is a chunk's centre */

TERN__INLINE double total(const tern__lanes v[PARTS])
{
    double sum = 0;
    TERN__EACH_PART(p) sum += tern__lanes_sum(v[p]);
    return sum;
}

/* The distances of n values from `centre`, n <= LANES, the rest 0. */
TERN__INLINE tern__lanes distances(const float *x, tern__lanes centre, int n)
{
    return tern__lanes_load(x, n) - tern__lanes_load((const float *)&centre, n);
}

/* The sum of the distances of n values from the first of them. */
TERN__INLINE double sum_from_first(const float *x, int64_t n)
{
    int64_t whole = n / BLOCK * BLOCK;
    int rest = (int)(n - whole);
    tern__lanes first = (tern__lanes){0} + *x, sum[PARTS] = {{0}};
    if (rest) TERN__EACH_PART(p) sum[p] = distances(x + whole + p * LANES, first, tern__lanes_in(rest, p));
    for (int64_t i = 0; i < whole; i += BLOCK)
        TERN__EACH_PART(p) sum[p] += distances(x + i + p * LANES, first, LANES);
    return total(sum);
}

/* For values whose squares leave f32's range. */
static void moments_f64(const float *x, int64_t n, double *mean, double *m2)
{
    double sum = 0, square = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) square += ((double)x[i] - *mean) * ((double)x[i] - *mean);
    *m2 = square;
}

/* The mean of the first values is the centre. A mean is summed up as the distances from the first value: that
 * of equal values is the value itself. */
TERN__SIMD static void group_norm_moments(const float *x, int64_t n, double *mean, double *m2)
{
    int64_t head = TERN__MIN(n, HEAD), whole = n / BLOCK * BLOCK;
    int rest = (int)(n - whole);
    const double share = 1 / (double)n, head_share = 1 / (double)head; /* no sum waits for a division */
    double near = (double)*x + sum_from_first(x, head) * head_share, off = near - (double)(float)near;
    tern__lanes centre = (tern__lanes){0} + (float)near, sum[PARTS] = {{0}}, square[PARTS] = {{0}};
    if (rest) TERN__EACH_PART(p)
        {
            sum[p] = distances(x + whole + p * LANES, centre, tern__lanes_in(rest, p));
            square[p] = sum[p] * sum[p];
        }
    for (int64_t i = 0; i < whole; i += BLOCK) TERN__EACH_PART(p)
        {
            tern__lanes d = distances(x + i + p * LANES, centre, LANES);
            sum[p] += d;
            square[p] += d * d;
        }
    if (head < n) off = total(sum) * share;
    double all = total(square) - (double)n * off * off;
    *mean = (double)centre[0] + off;
    *m2 = all < 0 ? 0 : all; /* below 0 by rounding */
    if (!isfinite(all)) moments_f64(x, n, mean, m2);
}

/* For values whose squares leave f32's range. */
static double squares_f64(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

TERN__SIMD static double group_norm_squares(const float *x, int64_t n)
{
    int64_t whole = n / BLOCK * BLOCK;
    int rest = (int)(n - whole);
    tern__lanes square[PARTS] = {{0}};
    if (rest) TERN__EACH_PART(p)
        {
            tern__lanes v = tern__lanes_load(x + whole + p * LANES, tern__lanes_in(rest, p));
            square[p] = v * v;
        }
    for (int64_t i = 0; i < whole; i += BLOCK) TERN__EACH_PART(p)
        {
            tern__lanes v = tern__lanes_load(x + i + p * LANES, LANES);
            square[p] += v * v;
        }
    double all = total(square);
    return isfinite(all) ? all : squares_f64(x, n);
}

typedef struct sums {
    tern__lanes d[PARTS], product[PARTS];
} sums;

/* Adds channels from `at` on, of which part p has `lanes`; in missing lanes dy is 0. */
TERN__INLINE void add_channels(sums *to, const tern__group_row *row, float *dw, float *db, int64_t at, int p,
                               int lanes)
{
    tern__lanes d = tern__lanes_load(row->dy + at, lanes), centre = (tern__lanes){0} + row->unit.centre,
                xhat = distances(row->x + at, centre, lanes) * row->unit.inverse + row->unit.rest;
    if (db) tern__lanes_put(db + at, d, lanes, true);
    tern__lanes_put(dw + at, d * xhat, lanes, true);
    if (row->w) d *= tern__lanes_load(row->w + at, lanes);
    to->d[p] += d;
    to->product[p] += d * xhat;
}

TERN__SIMD static void channel_sums(const tern__group_row *of, float *dw, float *db, double result[2])
{
    const tern__group_row row = *of;
    result[0] = result[1] = 0;
    for (int64_t first = 0; first < row.n; first += CHUNK) {
        int64_t last = TERN__MIN(row.n, first + CHUNK), i = first;
        sums s = {{{0}}, {{0}}};
        for (; i + BLOCK <= last; i += BLOCK)
            TERN__EACH_PART(p) add_channels(&s, &row, dw, db, i + p * LANES, p, LANES);
        if (i < last) TERN__EACH_PART(p)
        add_channels(&s, &row, dw, db, i + p * LANES, p, tern__lanes_in((int)(last - i), p));
        result[0] += total(s.d);
        result[1] += total(s.product);
    }
}

/* For products that leave f32's range. */
static void position_sums_f64(const float *dy, const float *x, int64_t n, float centre, double result[2])
{
    result[0] = result[1] = 0;
    for (int64_t i = 0; i < n; i++) {
        result[0] += (double)dy[i];
        result[1] += (double)dy[i] * ((double)x[i] - (double)centre);
    }
}

TERN__SIMD static void position_sums(const float *dy, const float *x, int64_t n, float centre,
                                     double result[2])
{
    result[0] = result[1] = 0;
    for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t last = TERN__MIN(n, first + CHUNK), i = first;
        sums s = {{{0}}, {{0}}};
        for (; i + BLOCK <= last; i += BLOCK) TERN__EACH_PART(p)
            {
                tern__lanes d = tern__lanes_load(dy + i + p * LANES, LANES);
                s.d[p] += d;
                s.product[p] += d * (tern__lanes_load(x + i + p * LANES, LANES) - centre);
            }
        result[0] += total(s.d);
        result[1] += total(s.product);
        for (; i < last; i++) {
            result[0] += (double)dy[i];
            result[1] += (double)dy[i] * (double)(x[i] - centre);
        }
    }
    if (!isfinite(result[1])) position_sums_f64(dy, x, n, centre, result);
}

const tern__group_sums_fns TERN__OF_WIDTH(tern__group_sums) = {group_norm_moments, group_norm_squares,
                                                               channel_sums, position_sums};
