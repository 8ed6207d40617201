/* f64.c - convolutions in f64 as matrix products, since oneDNN has none in f64 and the other algorithms
 * here compute in f32.
 *
 * What the taps read of a group's channels for some rows of y is copied into a matrix, with a line for
 * each tap of each channel and a column for each element of those rows. The weight times the matrix gives
 * the rows of y. The transposed weight times dy gives the matrix of a data gradient, whose elements are
 * added to the elements of dx that they were read from. dy times the transposed matrix is added to the
 * weight's gradient. As many rows are taken at a time as keep the matrix in the second-level cache, but
 * not so few that reading a large weight takes longer than its products. The rows may belong to several
 * images; their rows of y are then copied next to each other.
 *
 * Chellapilla, Puri and Simard, "High performance convolutional neural networks for document processing"
 * (2006). */
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/loops.h"

#include <string.h>

#define ROOM  (1 << 16) /* elements of a matrix, unless that makes it narrower than .. */
#define WIDTH 128       /* .. this many columns */

enum { MATRIX = TERN__SCRATCH_OPERAND + 1 }; /* the first buffer is used by the products */

typedef struct job {
    const tern__call *call;
    tern__call product;
    const tern__conv_attr *attr;
    double *x, *w, *y;                 /* or their gradients */
    int64_t images, groups, ins, outs; /* ins, outs: channels of a group */
    int64_t in[3], kernel[3], out[3];  /* depth (1 if there is none), height, width */
    int64_t in_count, taps, out_count;
    int64_t image_rows;    /* rows of an image's y */
    int64_t lines, rows;   /* lines of a matrix; rows of y at a time */
    double *matrix, *copy; /* copy: of y's rows */
} job;

/* Rows of y, counted over all images, and the group of their channels. */
typedef struct band {
    int64_t group, first, last, columns;
} band;

/* ---- the matrix ---- */

static int64_t up(int64_t count, int64_t by)
{
    return (count + by - 1) / by;
}

/* Copies what a tap reads of a plane of x for a row of y; with `back`, adds it to the plane. */
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

/* Threads take channels, so that additions to a channel of dx have a fixed order. */
static void f64_conv_pass(const job *j, const band *b, bool back)
{
    int64_t rows = j->image_rows;
    int threads = tern__loop_threads(j->call, j->lines * b->columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t line = 0; line < j->ins; line++)
        for (int64_t tap = 0; tap < j->taps; tap++)
            for (int64_t row = b->first; row < b->last; row++) {
                int64_t channel = (row / rows * j->groups + b->group) * j->ins + line;
                pass_row(j, j->x + channel * j->in_count,
                         j->matrix + (line * j->taps + tap) * b->columns + (row - b->first) * j->out[2], tap,
                         row % rows, back);
            }
}

/* ---- rows of y ---- */

static double *y_at(const job *j, const band *b, int64_t channel, int64_t row)
{
    int64_t rows = j->image_rows, plane = (row / rows * j->groups + b->group) * j->outs + channel;
    return j->y + plane * j->out_count + row % rows * j->out[2];
}

/* Copies rows of y next to each other; with `back`, stores or adds them to y. */
static void pass_y(const job *j, const band *b, bool back, bool add)
{
    int64_t width = j->out[2];
    int threads = tern__loop_threads(j->call, j->outs * b->columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t o = 0; o < j->outs; o++)
        for (int64_t row = b->first; row < b->last; row++) {
            double *y = y_at(j, b, o, row), *copy = j->copy + o * b->columns + (row - b->first) * width;
            if (!back) memcpy(copy, y, (size_t)width * sizeof(*y));
            for (int64_t i = 0; i < width && back; i++) y[i] = add ? y[i] + copy[i] : copy[i];
        }
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

static int f64_conv_multiply(const job *j, const band *b)
{
    const tern__call *p = &j->product;
    bool one = b->first / j->image_rows == (b->last - 1) / j->image_rows;
    bool adds = j->call->add[0] || j->call->in[2];
    double *weight = j->w + b->group * j->outs * j->lines;
    tern__matrix seen = matrix(j->matrix, j->lines, b->columns, b->columns);
    tern__matrix w = matrix(weight, j->outs, j->lines, j->lines);
    tern__matrix y = one ? matrix(y_at(j, b, 0, b->first), j->outs, b->columns, j->out_count)
                         : matrix(j->copy, j->outs, b->columns, b->columns);
    int status;
    if (j->call->kernel == TERN__CONV) {
        f64_conv_pass(j, b, false);
        status = tern__f64_matmul(p, &w, &seen, &y, one && adds);
        if (!one) pass_y(j, b, true, adds);
        return status;
    }
    if (!one) pass_y(j, b, false, false);
    if (j->call->kernel == TERN__CONV_DATA_GRAD) {
        w = transposed(w);
        status = tern__f64_matmul(p, &w, &y, &seen, false);
        f64_conv_pass(j, b, true);
        return status;
    }
    f64_conv_pass(j, b, false);
    seen = transposed(seen);
    return tern__f64_matmul(p, &y, &seen, &w, j->call->add[0] || b->first > 0);
}

static int f64_conv_run(const job *j)
{
    int64_t all = j->images * j->image_rows;
    int status = TERN_OK;
    for (int64_t g = 0; g < j->groups; g++)
        for (int64_t row = 0; row < all && !status; row += j->rows) {
            int64_t last = TERN__MIN(all, row + j->rows);
            band b = {.group = g, .first = row, .last = last, .columns = (last - row) * j->out[2]};
            status = f64_conv_multiply(j, &b);
        }
    return status;
}

/* ---- the bias, and initial values of sums ---- */

/* Returns channel `at`, counted over all images. */
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

/* Sets depth, height and width; returns their product. */
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
    j.image_rows = j.out[0] * j.out[1];
    j.lines = j.ins * j.taps;
    if (!w) return j;
    int64_t columns = TERN__MAX(WIDTH, ROOM / j.lines);
    j.rows = TERN__MIN(j.images * j.image_rows, (columns + j.out[2] - 1) / j.out[2]);
    return j;
}

static bool f64_conv_takes(const tern__call *call)
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
    if (!f64_conv_takes(call)) return TERN_E_UNSUPPORTED;
    const tern__view *x = forward ? call->in[0] : weight ? call->in[1] : call->out[0];
    job j = job_of(call, x, weight ? call->out[0] : call->in[1], forward ? call->out[0] : call->in[0]);
    if (forward && call->in[2]) add_bias(&j);
    if (weight && call->out[1]) sum_bias(&j);
    if (!j.w) return TERN_OK;
    if (!forward && !weight && !call->add[0]) memset(j.x, 0, tern__view_bytes(x));
    int64_t columns = j.rows * j.out[2];
    j.matrix =
        tern__loop_scratch_of(call, MATRIX, (size_t)((j.lines + j.outs) * columns) * sizeof(*j.matrix));
    j.copy = j.matrix ? j.matrix + j.lines * columns : NULL;
    return j.matrix ? f64_conv_run(&j) : TERN_E_MEMORY;
}
