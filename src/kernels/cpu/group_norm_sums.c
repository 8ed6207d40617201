/* group_norm_sums.c - sums over rows, sixteen values at a time, each in its own lane. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/group_norm_sums.h"
#include "kernels/cpu/lanes.h"

#define LANES TERN__LANES
#define BLOCK TERN__BLOCK
#define PARTS TERN__PARTS
#define CHUNK TERN__GROUP_CHUNK

TERN__INLINE double total(const tern__lanes v[PARTS])
{
    double sum = 0;
    TERN__EACH_PART(p) sum += tern__lanes_sum(v[p]);
    return sum;
}

/* The squared distances of n values from `centre`, n <= LANES, the rest 0. */
TERN__INLINE tern__lanes squares(const float *x, tern__lanes centre, int n)
{
    tern__lanes v = tern__lanes_load(x, n) - tern__lanes_load((const float *)&centre, n);
    return v * v;
}

TERN__SIMD static void moments(const float *x, int64_t n, double *mean, double *m2)
{
    int64_t whole = n / BLOCK * BLOCK;
    int rest = (int)(n - whole);
    tern__lanes sum[PARTS], square[PARTS];
    TERN__EACH_PART(p) sum[p] = tern__lanes_load(x + whole + p * LANES, tern__lanes_in(rest, p));
    for (int64_t i = 0; i < whole; i += BLOCK)
        TERN__EACH_PART(p) sum[p] += tern__lanes_load(x + i + p * LANES, LANES);
    *mean = total(sum) / (double)n;
    tern__lanes centre = (tern__lanes){0} + (float)*mean;
    TERN__EACH_PART(p) square[p] = squares(x + whole + p * LANES, centre, tern__lanes_in(rest, p));
    for (int64_t i = 0; i < whole; i += BLOCK)
        TERN__EACH_PART(p) square[p] += squares(x + i + p * LANES, centre, LANES);
    double off = *mean - (double)centre[0];
    *m2 = total(square) - (double)n * off * off;
}

typedef struct sums {
    tern__lanes d[PARTS], dc[PARTS];
} sums;

/* Adds channels from `at` on, of which part p has `lanes`; in missing lanes dy is 0. */
TERN__INLINE void add_channels(sums *to, const tern__group_row *row, float *dw, float *db, int64_t at, int p,
                               int lanes)
{
    tern__lanes d = tern__lanes_load(row->dy + at, lanes),
                c = tern__lanes_load(row->x + at, lanes) - row->mean;
    tern__lanes_put(db + at, d, lanes, true);
    tern__lanes_put(dw + at, d * c * row->inverse, lanes, true);
    if (row->w) d *= tern__lanes_load(row->w + at, lanes);
    to->d[p] += d;
    to->dc[p] += d * c;
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
        result[1] += total(s.dc);
    }
}

TERN__SIMD static void position_sums(const float *dy, const float *x, int64_t n, float mean, double result[2])
{
    result[0] = result[1] = 0;
    for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t last = TERN__MIN(n, first + CHUNK), i = first;
        sums s = {{{0}}, {{0}}};
        for (; i + BLOCK <= last; i += BLOCK) TERN__EACH_PART(p)
            {
                tern__lanes d = tern__lanes_load(dy + i + p * LANES, LANES);
                s.d[p] += d;
                s.dc[p] += d * (tern__lanes_load(x + i + p * LANES, LANES) - mean);
            }
        result[0] += total(s.d);
        result[1] += total(s.dc);
        for (; i < last; i++) {
            result[0] += (double)dy[i];
            result[1] += (double)dy[i] * (double)(x[i] - mean);
        }
    }
}

const tern__group_sums_fns TERN__OF_WIDTH(tern__group_sums) = {moments, channel_sums, position_sums};
