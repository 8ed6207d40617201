/* f64.c - convolutions in f64, for which oneDNN has none and the other algorithms here are made of f32:
 * products of matrices. What the taps see of an image and a group's channels from some rows of y becomes a
 * matrix, with a line for each tap of each channel and a column for each element of those rows. The weight
 * times the matrix makes the rows of y; the weight, transposed, times dy makes the matrix of a data gradient,
 * and each of its elements is added to the one of dx that it is of; dy times the matrix, transposed, is added
 * to the weight's gradient. Rows are taken so many at a time that the matrix stays in the second-level cache.
 *
 * Chellapilla, Puri and Simard, "High performance convolutional neural networks for document processing"
 * (2006). */
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/f64_matmul.h"
#include "kernels/cpu/loops.h"

#include <string.h>

#define ROOM (1 << 16) /* elements of a matrix, but for one row */

enum { MATRIX = TERN__SCRATCH_OPERAND + 1 }; /* the first one is the products' */

typedef struct job {
    const tern__call *call;
    tern__call product;
    const tern__conv_attr *attr;
    double *x, *w, *y;                 /* or their gradients */
    int64_t images, groups, ins, outs; /* channels of a group */
    int64_t in[3], kernel[3], out[3];  /* depth (1 where there is none), height, width */
    int64_t in_count, taps, out_count;
    int64_t lines, rows; /* of a matrix; of y at a time */
    double *matrix;
} job;

/* Rows of y, and what they are of. */
typedef struct band {
    double *x, *w, *y; /* of the image and the group; y from the first row on */
    int64_t first, last, columns;
    bool adds; /* to a weight's gradient */
} band;

/* ---- the matrix ---- */

static int64_t up(int64_t count, int64_t by)
{
    return (count + by - 1) / by;
}

/* What a tap sees of a plane of x from a row of y; or back, where it is added. */
static void pass_row(const job *j, double *plane, double *line, int64_t tap, int64_t row, bool back)
{
    const tern__conv_attr *a = j->attr;
    int64_t k[3] = {tap / j->kernel[2] / j->kernel[1], tap / j->kernel[2] % j->kernel[1], tap % j->kernel[2]};
    int64_t depth = row / j->out[1] * a->stride[0] - a->padding[0] + k[0] * a->dilation[0];
    int64_t height = row % j->out[1] * a->stride[1] - a->padding[1] + k[1] * a->dilation[1];
    int64_t begin = k[2] * a->dilation[2] - a->padding[2], step = a->stride[2], width = j->out[2];
    bool is_seen = depth >= 0 && depth < j->in[0] && height >= 0 && height < j->in[1];
    int64_t first = TERN__MIN(width, begin < 0 ? up(-begin, step) : 0);
    int64_t last = is_seen && begin < j->in[2] ? TERN__MIN(width, up(j->in[2] - begin, step)) : 0;
    double *from = plane + (depth * j->in[1] + height) * j->in[2] + begin;
    if (!back) memset(line, 0, (size_t)width * sizeof(*line));
    for (int64_t c = first; c < last; c++)
        if (back)
            from[c * step] += line[c];
        else
            line[c] = from[c * step];
}

/* Threads take channels: what is added to one of dx is added in one order. */
static void pass(const job *j, const band *b, bool back)
{
    int threads = tern__loop_threads(j->call, j->lines * b->columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t line = 0; line < j->ins; line++)
        for (int64_t tap = 0; tap < j->taps; tap++)
            for (int64_t row = b->first; row < b->last; row++)
                pass_row(j, b->x + line * j->in_count,
                         j->matrix + (line * j->taps + tap) * b->columns + (row - b->first) * j->out[2], tap,
                         row, back);
}

/* ---- products ---- */

static tern__matrix matrix(double *data, int64_t rows, int64_t columns, int64_t stride)
{
    return (tern__matrix){(char *)data, rows, columns, stride, 1};
}

static tern__matrix transposed(tern__matrix m)
{
    return (tern__matrix){m.data, m.columns, m.rows, m.column_stride, m.row_stride};
}

static int multiply(const job *j, const band *b)
{
    const tern__call *p = &j->product;
    tern__matrix seen = matrix(j->matrix, j->lines, b->columns, b->columns);
    tern__matrix w = matrix(b->w, j->outs, j->lines, j->lines);
    tern__matrix y = matrix(b->y, j->outs, b->columns, j->out_count);
    if (j->call->kernel == TERN__CONV) {
        pass(j, b, false);
        return tern__f64_matmul(p, &w, &seen, &y, j->call->add[0] || j->call->in[2]);
    }
    if (j->call->kernel == TERN__CONV_DATA_GRAD) {
        w = transposed(w);
        int status = tern__f64_matmul(p, &w, &y, &seen, false);
        pass(j, b, true);
        return status;
    }
    pass(j, b, false);
    seen = transposed(seen);
    return tern__f64_matmul(p, &y, &seen, &w, b->adds);
}

static int run(const job *j)
{
    int64_t all = j->out[0] * j->out[1];
    int status = TERN_OK;
    for (int64_t n = 0; n < j->images; n++)
        for (int64_t g = 0; g < j->groups; g++)
            for (int64_t row = 0; row < all && !status; row += j->rows) {
                int64_t image = n * j->groups + g, last = TERN__MIN(all, row + j->rows);
                band b = {.x = j->x + image * j->ins * j->in_count,
                          .w = j->w + g * j->outs * j->lines,
                          .y = j->y + image * j->outs * j->out_count + row * j->out[2],
                          .first = row,
                          .last = last,
                          .columns = (last - row) * j->out[2],
                          .adds = j->call->add[0] || n > 0 || row > 0};
                status = multiply(j, &b);
            }
    return status;
}

/* ---- the bias, and what sums begin with ---- */

/* Channel `at`, counted over all images. */
static double *channel(const job *j, int64_t at)
{
    return j->y + at * j->out_count;
}

static void add_bias(const job *j)
{
    int64_t channels = j->groups * j->outs;
    const double *bias = j->call->in[2]->data;
    for (int64_t at = 0; at < j->images * channels; at++)
        for (int64_t i = 0; i < j->out_count; i++)
            channel(j, at)[i] = bias[at % channels] + (j->call->add[0] ? channel(j, at)[i] : 0);
}

static void sum_bias(const job *j)
{
    int64_t channels = j->groups * j->outs;
    double *to = j->call->out[1]->data;
    for (int64_t o = 0; o < channels; o++) {
        double sum = j->call->add[1] ? to[o] : 0;
        for (int64_t n = 0; n < j->images; n++)
            for (int64_t i = 0; i < j->out_count; i++) sum += channel(j, n * channels + o)[i];
        to[o] = sum;
    }
}

/* ---- the three kernels ---- */

/* Depth, height and width; returns their product. */
static int64_t spatial(const tern__view *view, int64_t size[3])
{
    int64_t count = 1;
    for (int d = 0; d < 3; d++) {
        int axis = view->ndim - 3 + d;
        size[d] = axis < 2 ? 1 : view->shape[axis];
        count *= size[d];
    }
    return count;
}

static job job_of(const tern__call *call, const tern__view *x, const tern__view *w, const tern__view *y)
{
    const tern__conv_attr *attr = call->attr;
    job j = {.call = call, .attr = attr, .x = x->data, .w = w ? w->data : NULL, .y = y->data};
    j.product = (tern__call){.device = call->device, .kernel = TERN__MATMUL, .err = call->err};
    j.images = x->shape[0];
    j.groups = attr->groups;
    j.ins = x->shape[1] / attr->groups;
    j.outs = y->shape[1] / attr->groups;
    j.in_count = spatial(x, j.in);
    j.taps = w ? spatial(w, j.kernel) : 0;
    j.out_count = spatial(y, j.out);
    j.lines = j.ins * j.taps;
    if (w) j.rows = TERN__MIN(j.out[0] * j.out[1], TERN__MAX(1, ROOM / (j.lines * j.out[2])));
    return j;
}

static bool takes(const tern__call *call)
{
    bool fine = true;
    for (int i = 0; i < 5; i++) {
        const tern__view *view = i < 3 ? call->in[i] : call->out[i - 3];
        if (view)
            fine =
                fine && view->dtype == TERN_F64 && tern__view_count(view) && tern__view_is_contiguous(view);
    }
    return fine;
}

int tern__f64_conv(const tern__call *call)
{
    bool forward = call->kernel == TERN__CONV, weight = call->kernel == TERN__CONV_WEIGHT_GRAD;
    if (!takes(call)) return TERN_E_UNSUPPORTED;
    const tern__view *x = forward ? call->in[0] : weight ? call->in[1] : call->out[0];
    job j = job_of(call, x, weight ? call->out[0] : call->in[1], forward ? call->out[0] : call->in[0]);
    if (forward && call->in[2]) add_bias(&j);
    if (weight && call->out[1]) sum_bias(&j);
    if (!j.w) return TERN_OK;
    if (!forward && !weight && !call->add[0]) memset(j.x, 0, tern__view_bytes(x));
    size_t bytes = (size_t)(j.lines * j.rows * j.out[2]) * sizeof(double);
    j.matrix = tern__loop_scratch_of(call, MATRIX, bytes);
    return j.matrix ? run(&j) : TERN_E_MEMORY;
}
