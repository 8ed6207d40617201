/* test_winograd.c - compares Winograd's convolutions with the reference in double. The error bound is
 * computed, not found by trial.
 *
 * With the algorithm's matrices A, G and B, which are made here from its points by their definition, a result
 * is A' [ sum (G g G') . (B' d B) ] A. The same expression of absolute values, |A|' [ sum (|G| |g| |G|') .
 * (|B|' |d| |B|) ] |A|, bounds the effect of one rounding anywhere on the way from the operands to the
 * result. On that way there are at most 4 roundings in each of six one-dimensional steps (constants,
 * products, sums), one for the product, one for each term of the sum, and one each for the bias and the old
 * value. So the error of an element is at most that many times 2^-24 of the expression.
 *
 * The mean square error has a tighter bound. Roundings are independent and the data have no preferred sign,
 * so squares add up instead of absolute values: the same expression of squares bounds the mean square.
 *
 * 16-bit numbers are exact in f32, and the result is rounded once more, by at most half a unit in the last
 * place. That error is uniformly distributed, so its mean square is a third of the maximum's square. */
#include "kernels/conv_operands.h"
#include "ledger.h"

#include "kernels/cpu/conv/winograd/conv.h"
#include "kernels/pack.h"

#include <math.h>
#include <string.h>

#define UNIT 0x1p-24

typedef struct sizes {
    int64_t images, in, out, size[2], padding[2];
} sizes;

/* The dtype of x, b and y, and that of w. */
typedef struct dtypes {
    tern_dtype activation, weight;
} dtypes;

static const dtypes all_f32 = {TERN_F32, TERN_F32};

/* ---- the matrices ---- */

enum { POINTS = 6, OUTS = 4, TAPS = 3 };
static double a_matrix[POINTS][OUTS], g_matrix[POINTS][TAPS], b_matrix[POINTS][POINTS];

/* Computes the coefficients of the product of (x - q) over all finite points q except p. */
static void polynomial(int p, const double *points, double coefficients[POINTS])
{
    memset(coefficients, 0, POINTS * sizeof(double));
    coefficients[0] = 1;
    for (int q = 0, degree = 0; q < POINTS - 1; q++) {
        if (q == p) continue;
        degree++;
        for (int i = degree; i >= 0; i--)
            coefficients[i] = (i ? coefficients[i - 1] : 0) - points[q] * coefficients[i];
    }
}

static double value_at(const double coefficients[POINTS], double x)
{
    double value = 0;
    for (int i = POINTS - 1; i >= 0; i--) value = value * x + coefficients[i];
    return value;
}

static void make_matrices(void)
{
    const double points[POINTS - 1] = {0, 0.625, -0.625, 1.5, -1.5};
    for (int p = 0; p < POINTS; p++) {
        bool finite = p < POINTS - 1;
        polynomial(p, points, b_matrix[p]);
        double scale = finite ? value_at(b_matrix[p], points[p]) : 1;
        for (int i = 0; i < OUTS; i++) a_matrix[p][i] = finite ? pow(points[p], i) : i == OUTS - 1;
        for (int i = 0; i < TAPS; i++) g_matrix[p][i] = finite ? pow(points[p], i) / scale : i == TAPS - 1;
    }
}

/* ---- a case ---- */

static tern__view empty(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    return view;
}

static tern__view filled(uint32_t *state, tern_dtype dtype, tern__layout layout, int ndim,
                         const int64_t *shape)
{
    tern__view view = empty(dtype, layout, ndim, shape);
    for (int64_t i = 0; i < tern__view_count(&view); i++) {
        *state = *state * 1664525u + 1013904223u;
        tern__view_set(&view, i, (double)(*state >> 8) * 0x1p-23 - 1);
    }
    return view;
}

static operands make(const sizes *s, dtypes t, uint32_t seed)
{
    const int64_t *p = s->padding, height = s->size[0], width = s->size[1];
    int64_t x[] = {s->images, s->in, height, width}, w[] = {s->out, s->in, 3, 3};
    int64_t y[] = {s->images, s->out, height + 2 * p[0] - 2, width + 2 * p[1] - 2};
    operands o = {.attr = {{1, 1, 1}, {0, p[0], p[1]}, {1, 1, 1}, 1}};
    o.x = filled(&seed, t.activation, TERN__BLOCKED16, 4, x);
    o.w = filled(&seed, t.weight, TERN__PLAIN, 4, w);
    o.b = filled(&seed, t.activation, TERN__PLAIN, 1, &s->out);
    o.y = filled(&seed, t.activation, TERN__BLOCKED16, 4, y);
    return o;
}

static tern__view widened(const tern__view *view)
{
    tern__view wide = empty(TERN_F32, view->layout, view->ndim, view->shape);
    for (int64_t i = 0; i < tern__view_count(view); i++) tern__view_set(&wide, i, tern__view_get(view, i));
    return wide;
}

/* Returns the operands in f32. */
static operands twin_of(const operands *o)
{
    return (operands){widened(&o->x), widened(&o->w), widened(&o->b), widened(&o->y), o->attr};
}

static int run(const tern__call *call, operands *o)
{
    assert_true(tern__winograd_takes(call, &o->x, &o->w, &o->y));
    if (call->kernel == TERN__CONV_WEIGHT_GRAD) return tern__winograd_weight_grad(call, &o->x, &o->y, &o->w);
    return tern__winograd(call, &o->x, &o->w, &o->y, call->in[2]);
}

/* ---- the effect of a rounding ---- */

/* One transformation: to = m from m' or, if transposed, to = m' from m. */
typedef struct side {
    const double *m;
    int rows, inner;
    bool transposed;
} side;

static const side of_input = {&b_matrix[0][0], POINTS, POINTS, false};
static const side of_weight = {&g_matrix[0][0], POINTS, TAPS, false};
static const side of_grad = {&a_matrix[0][0], POINTS, OUTS, false};
static const side to_output = {&a_matrix[0][0], OUTS, POINTS, true};
static const side to_weight = {&g_matrix[0][0], TAPS, POINTS, true};

static double factor(const side *s, int row, int inner, int power)
{
    double m = fabs(s->transposed ? s->m[inner * s->rows + row] : s->m[row * s->inner + inner]);
    return power == 2 ? m * m : m;
}

static void both_sides(double *to, const side *s, const double *from, int power)
{
    double half[POINTS * POINTS];
    for (int i = 0; i < s->rows; i++)
        for (int l = 0; l < s->inner; l++) {
            half[i * s->inner + l] = 0;
            for (int k = 0; k < s->inner; k++)
                half[i * s->inner + l] += factor(s, i, k, power) * from[k * s->inner + l];
        }
    for (int i = 0; i < s->rows; i++)
        for (int j = 0; j < s->rows; j++) {
            to[i * s->rows + j] = 0;
            for (int l = 0; l < s->inner; l++)
                to[i * s->rows + j] += half[i * s->inner + l] * factor(s, j, l, power);
        }
}

/* Returns |element| of a plane or of a weight's taps, to the power; 0 outside. */
static double size_at(const tern__view *view, int64_t n, int64_t c, int64_t row, int64_t column, int power)
{
    const int64_t *shape = view->shape;
    if (row < 0 || column < 0 || row >= shape[2] || column >= shape[3]) return 0;
    double v = fabs(tern__view_get(view, ((n * shape[1] + c) * shape[2] + row) * shape[3] + column));
    return power == 2 ? v * v : v;
}

/* Transforms the square of elements that begins at (row, column). */
static void transformed(double to[POINTS * POINTS], const side *s, const tern__view *view, int64_t n,
                        int64_t c, int64_t row, int64_t column, int power)
{
    double from[POINTS * POINTS];
    for (int i = 0; i < s->inner; i++)
        for (int j = 0; j < s->inner; j++)
            from[i * s->inner + j] = size_at(view, n, c, row + i, column + j, power);
    both_sides(to, s, from, power);
}

/* A transformed tile. Sums over channels are made point by point: sum[o][p] += ins[c][p] weights[o][c][p]. */
typedef double points[POINTS * POINTS];

static void add_products(double *sum, const double *a, const double *b)
{
    for (int p = 0; p < POINTS * POINTS; p++) sum[p] += a[p] * b[p];
}

static int64_t tiles_of(int64_t size)
{
    return (size + OUTS - 1) / OUTS;
}

/* A source (x, or dy in a data gradient) and a target. `turned`: the weight maps the target's channels to the
 * source's. */
typedef struct direction {
    const tern__view *in, *out, *w;
    int64_t padding[2];
    bool turned;
} direction;

static direction direction_of(operands *o, bool turned)
{
    direction d = {turned ? &o->y : &o->x, turned ? &o->x : &o->y, &o->w, {0}, turned};
    for (int i = 0; i < 2; i++) d.padding[i] = turned ? 2 - o->attr.padding[1 + i] : o->attr.padding[1 + i];
    return d;
}

static points *weights_of(const direction *d, int power)
{
    int64_t ins = d->in->shape[1], outs = d->out->shape[1];
    points *w = tern__alloc((size_t)(ins * outs) * sizeof(*w), __func__, NULL);
    for (int64_t o = 0; o < outs; o++)
        for (int64_t c = 0; c < ins; c++) {
            double taps[TAPS * TAPS];
            for (int k = 0; k < TAPS * TAPS; k++) {
                int tap = d->turned ? TAPS * TAPS - 1 - k : k;
                taps[k] = size_at(d->w, d->turned ? c : o, d->turned ? o : c, tap / TAPS, tap % TAPS, power);
            }
            both_sides(w[o * ins + c], &of_weight, taps, power);
        }
    return w;
}

/* Computes the cost of a tile in all channels of an image. `cost` has the target's shape, row-major. */
static void tile_cost(const direction *d, points *weights, double *cost, int64_t n, int64_t row,
                      int64_t column, int power)
{
    int64_t ins = d->in->shape[1], outs = d->out->shape[1], height = d->out->shape[2],
            width = d->out->shape[3];
    points *tile = tern__alloc((size_t)ins * sizeof(*tile), __func__, NULL);
    for (int64_t c = 0; c < ins; c++)
        transformed(tile[c], &of_input, d->in, n, c, row - d->padding[0], column - d->padding[1], power);
    for (int64_t o = 0; o < outs; o++) {
        points sum = {0};
        double out[OUTS * OUTS];
        for (int64_t c = 0; c < ins; c++) add_products(sum, tile[c], weights[o * ins + c]);
        both_sides(out, &to_output, sum, power);
        for (int i = 0; i < OUTS && row + i < height; i++)
            for (int j = 0; j < OUTS && column + j < width; j++)
                cost[((n * outs + o) * height + row + i) * width + column + j] = out[i * OUTS + j];
    }
    tern__free(tile);
}

static void output_cost(const direction *d, double *cost, int power)
{
    points *weights = weights_of(d, power);
    for (int64_t n = 0; n < d->out->shape[0]; n++)
        for (int64_t row = 0; row < d->out->shape[2]; row += OUTS)
            for (int64_t column = 0; column < d->out->shape[3]; column += OUTS)
                tile_cost(d, weights, cost, n, row, column, power);
    tern__free(weights);
}

/* Returns all transformed tiles of a channel. */
static points *tiles_of_channel(const side *s, const tern__view *view, const operands *o, int64_t c,
                                const int64_t back[2], int power)
{
    int64_t rows = tiles_of(o->y.shape[2]), columns = tiles_of(o->y.shape[3]);
    int64_t count = o->y.shape[0] * rows * columns;
    points *tiles = tern__alloc((size_t)count * sizeof(*tiles), __func__, NULL);
    for (int64_t t = 0; t < count; t++)
        transformed(tiles[t], s, view, t / (rows * columns), c, t / columns % rows * OUTS - back[0],
                    t % columns * OUTS - back[1], power);
    return tiles;
}

static void weight_cost(const operands *o, double *cost, int power)
{
    int64_t ins = o->x.shape[1], outs = o->y.shape[1];
    int64_t count = o->y.shape[0] * tiles_of(o->y.shape[2]) * tiles_of(o->y.shape[3]);
    points **x = tern__alloc((size_t)ins * sizeof(*x), __func__, NULL);
    for (int64_t c = 0; c < ins; c++)
        x[c] = tiles_of_channel(&of_input, &o->x, o, c, o->attr.padding + 1, power);
    for (int64_t k = 0; k < outs; k++) {
        points *dy = tiles_of_channel(&of_grad, &o->y, o, k, (int64_t[]){0, 0}, power);
        for (int64_t c = 0; c < ins; c++) {
            points sum = {0};
            for (int64_t t = 0; t < count; t++) add_products(sum, x[c][t], dy[t]);
            both_sides(cost + (k * ins + c) * TAPS * TAPS, &to_weight, sum, power);
        }
        tern__free(dy);
    }
    for (int64_t c = 0; c < ins; c++) tern__free(x[c]);
    tern__free(x);
}

/* Returns the expression in the head of this file for every element of a result: of absolute values for power
 * 1, of squares for power 2. *terms = the number of terms of the sum. */
static double *costs_of(operands *o, tern__kernel kernel, int power, int64_t *terms)
{
    double *cost =
        tern__alloc((size_t)tern__view_count(result_of(o, kernel)) * sizeof(*cost), __func__, NULL);
    if (kernel == TERN__CONV_WEIGHT_GRAD) {
        *terms = o->y.shape[0] * tiles_of(o->y.shape[2]) * tiles_of(o->y.shape[3]);
        weight_cost(o, cost, power);
    } else {
        direction d = direction_of(o, kernel == TERN__CONV_DATA_GRAD);
        *terms = d.in->shape[1];
        output_cost(&d, cost, power);
    }
    return cost;
}

/* ---- tests ---- */

/* Returns the number of roundings: 4 in each of six steps, the product, the terms, the bias and the old
 * value, and one of the reference. */
static double roundings(int64_t terms)
{
    return 24 + 1 + (double)terms + 2 + 1;
}

/* Returns half a unit in the last place of a result of about v. */
static double half_unit(tern_dtype dtype, double v)
{
    if (dtype == TERN_F32) return 0; /* counted among the roundings */
    return dtype == TERN_BF16 ? 0x1p-8 * fabs(v) : fmax(0x1p-11 * fabs(v), 0x1p-25);
}

static void expect_near(operands *ours, operands *plain, tern__kernel kernel)
{
    tern_dtype dtype = result_of(ours, kernel)->dtype;
    int64_t terms, count = tern__view_count(result_of(ours, kernel));
    double *cost = costs_of(plain, kernel, 1, &terms), *squares = costs_of(plain, kernel, 2, &terms);
    double error = 0, allowed = 0;
    for (int64_t i = 0; i < count; i++) {
        double want = tern__view_get(result_of(plain, kernel), i);
        double off = tern__view_get(result_of(ours, kernel), i) - want;
        double most = UNIT * roundings(terms) * (cost[i] + 2); /* bias and old value are below 1 */
        most += half_unit(dtype, fabs(want) + most);
        if (!(fabs(off) <= most))
            fail_msg("%s: element %lld is off by %g, at most %g", tern_dtype_name(dtype), (long long)i, off,
                     most);
        error += off * off;
        allowed += UNIT * UNIT * roundings(terms) * (squares[i] + 2) + pow(half_unit(dtype, want), 2) / 3;
    }
    if (!(error <= allowed))
        fail_msg("%s: mean square %g, at most %g", tern_dtype_name(dtype), error / (double)count,
                 allowed / (double)count);
    tern__free(cost);
    tern__free(squares);
}

static void compare(tern_device *fast, tern_device *plain, tern__kernel kernel, const sizes *s, dtypes t,
                    bool add)
{
    tern_error err = {0};
    operands a = make(s, t, 7), b = twin_of(&a);
    tern__call ours = call_of(fast, kernel, &a, add, kernel == TERN__CONV, &err);
    tern__call oracle = call_of(plain, kernel, &b, add, kernel == TERN__CONV, &err);
    poison(fast);
    assert_int_equal(run(&ours, &a), TERN_OK);
    assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
    assert_ok(err);
    expect_near(&a, &b, kernel);
    release(&a);
    release(&b);
}

/* Draws 1x1 to 37x37 images with 16 to 112 channels, fewer if they are large. */
static sizes random_sizes(uint32_t *state)
{
    sizes s = {
        1 + draw_below(state, 5), 16 * (1 + draw_below(state, 7)), 16 * (1 + draw_below(state, 7)), {0}, {0}};
    for (int i = 0; i < 2; i++) {
        s.padding[i] = draw_below(state, 3);
        s.size[i] = 1 + draw_below(state, 37);
        if (s.size[i] + 2 * s.padding[i] < 3) s.size[i] += 2;
    }
    while (s.images * s.in * s.out * s.size[0] * s.size[1] > 50000) {
        if (s.images > 1)
            s.images--;
        else if (s.in > 16)
            s.in -= 16;
        else if (s.out > 16)
            s.out -= 16;
        else
            break;
    }
    return s;
}

/* Results are stored and added in turn. */
static void random_shapes_of(dtypes t, int count)
{
    uint32_t seed = 2;
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    for (int i = 0; i < count; i++) {
        sizes s = random_sizes(&seed);
        compare(fast, plain, (tern__kernel)(TERN__CONV + i % 3), &s, t, i & 1);
    }
    tern_device_close(fast);
    tern_device_close(plain);
}

static void random_shapes(void **state)
{
    (void)state;
    random_shapes_of(all_f32, 45);
}

static void random_shapes_in_bf16(void **state)
{
    (void)state;
    random_shapes_of((dtypes){TERN_BF16, TERN_BF16}, 30);
    random_shapes_of((dtypes){TERN_BF16, TERN_F32}, 18);
}

static void random_shapes_in_f16(void **state)
{
    (void)state;
    random_shapes_of((dtypes){TERN_F16, TERN_F16}, 18);
    random_shapes_of((dtypes){TERN_F16, TERN_F32}, 12);
}

/* Several runs of tiles with weights transformed beforehand and with weights transformed on the way; more
 * inputs than a chunk has; a last group of 16 outputs; a single tile. */
static const sizes large[] = {
    {114, 16, 16, {3, 7}, {0, 0}}, {29, 64, 16, {3, 7}, {0, 0}}, {129, 144, 16, {3, 3}, {0, 0}},
    {2, 16, 272, {7, 5}, {0, 2}},  {1, 272, 48, {5, 6}, {1, 1}}, {1, 512, 512, {1, 1}, {1, 1}},
    {1, 512, 32, {3, 2}, {1, 2}},
};

static void large_shapes(void **state)
{
    (void)state;
    tern_device *fast = open_device("cpu", 2), *plain = open_device("cpu:reference", 1);
    for (size_t i = 0; i < TERN__COUNT(large); i++)
        for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++)
            compare(fast, plain, (tern__kernel)k, &large[i], i & 1 ? (dtypes){TERN_BF16, TERN_BF16} : all_f32,
                    k == TERN__CONV);
    tern_device_close(fast);
    tern_device_close(plain);
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(large); i++)
        for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++) {
            operands one = make(&large[i], all_f32, 3);
            for (int threads = 1; threads <= 5; threads += 1 + (threads > 1) * 2) {
                tern_error err = {0};
                operands more = make(&large[i], all_f32, 3);
                tern_device *device = open_device("cpu", threads);
                tern__call call = call_of(device, (tern__kernel)k, threads == 1 ? &one : &more, false,
                                          k == TERN__CONV, &err);
                assert_int_equal(run(&call, threads == 1 ? &one : &more), TERN_OK);
                const tern__view *a = result_of(&one, (tern__kernel)k), *b = call.out[0];
                assert_memory_equal(a->data, b->data, tern__view_bytes(a));
                tern_device_close(device);
                release(&more);
            }
            release(&one);
        }
}

/* They are kept over microbatches, and made again when the weight has changed. */
static void weights_are_kept_with_their_parameter(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    operands a = make(&large[1], all_f32, 5), b = twin_of(&a);
    tern__packs packs = {0};
    a.w.packs = &packs;
    for (int use = 0; use < 6; use++)
        for (int k = TERN__CONV; k <= TERN__CONV_DATA_GRAD; k++) {
            tern__call ours = call_of(fast, (tern__kernel)k, &a, false, k == TERN__CONV, &err);
            tern__call oracle = call_of(plain, (tern__kernel)k, &b, false, k == TERN__CONV, &err);
            if (use == 3 && k == TERN__CONV) {
                packs.version++;
                tern__view_set(&a.w, 100, 9);
                tern__view_set(&b.w, 100, 9);
            }
            assert_int_equal(run(&ours, &a), TERN_OK);
            assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
            expect_near(&a, &b, (tern__kernel)k);
            memcpy(ours.out[0]->data, oracle.out[0]->data, tern__view_bytes(ours.out[0]));
        }
    tern__packs_free(&packs);
    release(&a);
    release(&b);
    tern_device_close(fast);
    tern_device_close(plain);
}

static void what_it_does_not_take(void **state)
{
    (void)state;
    tern_error err = {0};
    operands o = make(&large[0], all_f32, 1);
    tern__call call = call_of(NULL, TERN__CONV, &o, false, true, &err);
    const tern__conv_attr right = o.attr;
    const tern__conv_attr wrong[] = {{{1, 2, 1}, {0, 1, 1}, {1, 1, 1}, 1},
                                     {{1, 1, 1}, {0, 1, 3}, {1, 1, 1}, 1},
                                     {{1, 1, 1}, {0, 1, 1}, {1, 1, 2}, 1},
                                     {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 16}};
    assert_true(tern__winograd_takes(&call, &o.x, &o.w, &o.y));
    for (size_t i = 0; i < TERN__COUNT(wrong); i++) {
        o.attr = wrong[i];
        assert_false(tern__winograd_takes(&call, &o.x, &o.w, &o.y));
    }
    o.attr = right;
    tern__view x = o.x, w = o.w;
    x.layout = TERN__PLAIN;
    assert_false(tern__winograd_takes(&call, &x, &o.w, &o.y));
    x = o.x;
    x.dtype = TERN_BF16;
    assert_false(tern__winograd_takes(&call, &x, &o.w, &o.y));
    w.dtype = TERN_BF16;
    assert_false(tern__winograd_takes(&call, &o.x, &w, &o.y));
    w.dtype = TERN_F32;
    w.shape[3] = 1;
    assert_false(tern__winograd_takes(&call, &o.x, &w, &o.y));
    w = o.w;
    w.stride[0] *= 2;
    assert_false(tern__winograd_takes(&call, &o.x, &w, &o.y));
    release(&o);
}

static size_t scratch_of(const tern__call *call, const operands *o)
{
    bool weight = call->kernel == TERN__CONV_WEIGHT_GRAD;
    return (weight ? tern__winograd_weight_scratch : tern__winograd_scratch)(call, &o->x, &o->w, &o->y);
}

/* Checks that the first call has requested as many bytes as announced, and that a second one requests none.
 */
static void expect_warm(ledger *books, const tern__call *call, operands *o)
{
    int asked = atomic_load(&books->requests);
    size_t bytes = 0;
    for (int i = 0; i < TERN__SCRATCH_COUNT; i++) bytes += call->device->scratch[i].bytes;
    assert_int_equal(bytes, scratch_of(call, o));
    assert_int_equal(run(call, o), TERN_OK);
    assert_int_equal(atomic_load(&books->requests), asked);
}

/* Refuses all requests of memory after the first `granted`. Returns whether the call fails. */
static bool is_refused(ledger *books, tern__kernel kernel, operands *o, int granted)
{
    tern_error err = {0};
    tern_device *device = open_device("cpu", 2);
    tern__call call = call_of(device, kernel, o, false, kernel == TERN__CONV, &err);
    books->refuse_at = atomic_load(&books->requests) + granted + 1;
    int status = run(&call, o);
    books->refuse_at = 0;
    assert_int_equal(err.code, status);
    if (status)
        assert_int_equal(status, TERN_E_MEMORY);
    else
        expect_warm(books, &call, o);
    tern_device_close(device);
    return status;
}

static void scratch_is_asked_for_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(large); i++)
        for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++) {
            ledger books = {.refuse_all = true};
            ledger_open(&books);
            operands o = make(&large[i], all_f32, 1);
            int granted = 0;
            while (is_refused(&books, (tern__kernel)k, &o, granted)) granted++;
            assert_true(granted == 2 || granted == 3);
            release(&o);
            ledger_close(&books);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(random_shapes_in_bf16),
        cmocka_unit_test(random_shapes_in_f16),
        cmocka_unit_test(large_shapes),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(weights_are_kept_with_their_parameter),
        cmocka_unit_test(what_it_does_not_take),
        cmocka_unit_test(scratch_is_asked_for_once),
    };
    make_matrices();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
