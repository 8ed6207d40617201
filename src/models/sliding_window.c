/* sliding_window.c - a network's prediction for a volume of any size, assembled from patches.
 *
 * The patches' grid is the product of one grid per dimension, and a patch's weights are the product of one
 * curve per dimension. So the sum of all weights at a voxel is a product of three sums. Before predicting
 * anything, each patch's curve is divided by the sum over all patches along its dimension. All weights at a
 * voxel then sum to 1, so the patches' predictions need only be added, and no volume of weights is kept. */
#include <tern/volume.h>

#include "base/base.h"
#include "base/opts.h"
#include "data/volume/grid.h"
#include "data/volume/volume.h"

#include <math.h>
#include <string.h>

static const char FUNC[] = "tern_sliding_window";

/* One dimension of the grid, and the weights of the voxels of each patch along it. */
typedef struct axis {
    int64_t size, patch, count; /* of the volume without padding; of a patch; number of patches */
    double *weights;            /* [count][patch]                                               */
} axis;

typedef struct window {
    tern_module *net;
    tern_scope *scope;
    const tern_volume *volume;
    tern_window_opts opts;
    int64_t classes;
    axis axes[3];
    int64_t count; /* patches */
    float *batch;  /* (opts.batch, C, d, h, w) */
    float *logits; /* (opts.batch, classes, d, h, w) */
    double *sums;  /* (classes, depth, height, width) */
    float mean, std;
} window;

tern_window_opts tern_window_defaults(void)
{
    return (tern_window_opts){
        .size = sizeof(tern_window_opts), .patch = {32, 64, 64}, .overlap = 0.5, .batch = 1};
}

/* ---- the weights ---- */

static double curve(const window *w, int64_t patch, int64_t i)
{
    if (w->opts.blend == TERN_BLEND_CONSTANT) return 1;
    double from_centre = ((double)i + 0.5 - (double)patch / 2) / ((double)patch / 8);
    return exp(-from_centre * from_centre / 2);
}

static int64_t window_start_of(const axis *a, int64_t i)
{
    return tern__grid_start(TERN__MAX(a->size, a->patch), a->patch, a->count, i);
}

static void fill_weights(const window *w, const axis *a, double *sums)
{
    for (int64_t i = 0; i < a->count; i++)
        for (int64_t v = 0; v < a->patch; v++) sums[window_start_of(a, i) + v] += curve(w, a->patch, v);
    for (int64_t i = 0; i < a->count; i++)
        for (int64_t v = 0; v < a->patch; v++)
            a->weights[i * a->patch + v] = curve(w, a->patch, v) / sums[window_start_of(a, i) + v];
}

static int open_axis(window *w, int d, tern_error *err)
{
    axis *a = &w->axes[d];
    a->size = w->volume->shape[d + 1];
    a->patch = w->opts.patch[d];
    int64_t padded = TERN__MAX(a->size, a->patch);
    int64_t step = TERN__MAX(a->patch - (int64_t)((double)a->patch * w->opts.overlap), 1);
    a->count = tern__grid_count(padded, a->patch, step);
    double *sums = tern__alloc((size_t)padded * sizeof(double), FUNC, err);
    a->weights = sums ? tern__alloc((size_t)(a->count * a->patch) * sizeof(double), FUNC, err) : NULL;
    if (a->weights) fill_weights(w, a, sums);
    tern__free(sums);
    return a->weights ? TERN_OK : TERN_E_MEMORY;
}

/* ---- patches ---- */

static void start_of_patch(const window *w, int64_t index, int64_t number[3], int64_t start[3])
{
    for (int d = 2; d >= 0; d--) {
        number[d] = index % w->axes[d].count;
        start[d] = window_start_of(&w->axes[d], number[d]);
        index /= w->axes[d].count;
    }
}

/* Returns how many voxels of the patch along `d` are in the volume; the rest is padding. */
static int64_t inside(const window *w, int d, int64_t start)
{
    return TERN__MIN(w->axes[d].patch, w->axes[d].size - start);
}

/* Padding has the mean's value, which is 0 after normalisation. */
static void cut_patch(const window *w, int64_t index, float *x)
{
    int64_t number[3], start[3];
    const int64_t *patch = w->opts.patch, *shape = w->volume->shape;
    start_of_patch(w, index, number, start);
    memset(x, 0, (size_t)(shape[0] * patch[0] * patch[1] * patch[2]) * sizeof(float));
    for (int64_t c = 0; c < shape[0]; c++)
        for (int64_t z = 0; z < inside(w, 0, start[0]); z++)
            for (int64_t y = 0; y < inside(w, 1, start[1]); y++) {
                const float *from = w->volume->values +
                                    ((c * shape[1] + start[0] + z) * shape[2] + start[1] + y) * shape[3] +
                                    start[2];
                float *to = x + ((c * patch[0] + z) * patch[1] + y) * patch[2];
                for (int64_t i = 0; i < inside(w, 2, start[2]); i++) to[i] = (from[i] - w->mean) / w->std;
            }
}

static void add_patch(window *w, int64_t index, const float *said)
{
    int64_t number[3], start[3];
    const int64_t *patch = w->opts.patch, *shape = w->volume->shape;
    const axis *a = w->axes;
    start_of_patch(w, index, number, start);
    for (int64_t c = 0; c < w->classes; c++)
        for (int64_t z = 0; z < inside(w, 0, start[0]); z++)
            for (int64_t y = 0; y < inside(w, 1, start[1]); y++) {
                const float *from = said + ((c * patch[0] + z) * patch[1] + y) * patch[2];
                double *to =
                    w->sums + ((c * shape[1] + start[0] + z) * shape[2] + start[1] + y) * shape[3] + start[2];
                double weight =
                    a[0].weights[number[0] * patch[0] + z] * a[1].weights[number[1] * patch[1] + y];
                const double *weights = a[2].weights + number[2] * patch[2];
                for (int64_t i = 0; i < inside(w, 2, start[2]); i++)
                    to[i] += weight * weights[i] * (double)from[i];
            }
}

/* Turns one patch's logits into probabilities, in place. */
static void to_probabilities(const window *w, float *said)
{
    int64_t voxels = w->opts.patch[0] * w->opts.patch[1] * w->opts.patch[2];
    for (int64_t v = 0; v < voxels; v++) {
        float *p = said + v, most = p[0], sum = 0;
        if (w->classes == 1) {
            p[0] = 1 / (1 + expf(-p[0]));
            continue;
        }
        for (int64_t c = 1; c < w->classes; c++) most = TERN__MAX(most, p[c * voxels]);
        for (int64_t c = 0; c < w->classes; c++) sum += p[c * voxels] = expf(p[c * voxels] - most);
        for (int64_t c = 0; c < w->classes; c++) p[c * voxels] /= sum;
    }
}

/* ---- the network ---- */

static int check_said(const window *w, const tern_tensor *said, int64_t count, tern_error *err)
{
    const int64_t *p = w->opts.patch, *s = tern_tensor_shape(said);
    if (tern_tensor_ndim(said) == 5 && s[0] == count && s[1] == w->classes && s[2] == p[0] && s[3] == p[1] &&
        s[4] == p[2])
        return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_SHAPE,
                           "the network returned %d dimensions, expected (%lld, %lld, %lld, %lld, %lld)",
                           tern_tensor_ndim(said), (long long)count, (long long)w->classes, (long long)p[0],
                           (long long)p[1], (long long)p[2]);
}

static int read_said(window *w, int64_t count, tern_error *err)
{
    const int64_t *p = w->opts.patch;
    int64_t shape[5] = {count, w->volume->shape[0], p[0], p[1], p[2]};
    tern_tensor *x = tern_tensor_from(w->scope, w->batch, TERN_F32, 5, shape);
    tern_tensor *said = tern_cast(w->scope, tern_forward(w->net, w->scope, x), TERN_F32);
    if (!said) return TERN_E_INVALID; /* the scope has the error */
    int status = check_said(w, said, count, err);
    size_t bytes = (size_t)(count * w->classes * p[0] * p[1] * p[2]) * sizeof(float);
    return status ? status : tern_tensor_read(said, w->logits, bytes, err);
}

/* Predicts patches [first, first + count). */
static int predict(window *w, int64_t first, int64_t count, tern_error *err)
{
    int64_t voxels = w->opts.patch[0] * w->opts.patch[1] * w->opts.patch[2];
    for (int64_t i = 0; i < count; i++) cut_patch(w, first + i, w->batch + i * w->volume->shape[0] * voxels);
    int status = read_said(w, count, err);
    int ended = tern_scope_end(w->scope, err);
    if (status || ended) return status ? status : ended;
    for (int64_t i = 0; i < count; i++) {
        float *said = w->logits + i * w->classes * voxels;
        if (w->opts.output != TERN_WINDOW_RAW) to_probabilities(w, said);
        add_patch(w, first + i, said);
    }
    return TERN_OK;
}

static int predict_all(window *w, tern_error *err)
{
    bool was_training = w->net->training, had_grad = tern_grad_enabled_set(w->scope, false);
    int status = TERN_OK;
    tern_eval(w->net);
    for (int64_t first = 0; !status && first < w->count; first += w->opts.batch)
        status = predict(w, first, TERN__MIN(w->opts.batch, w->count - first), err);
    tern_grad_enabled_set(w->scope, had_grad);
    if (was_training) tern_train(w->net);
    return status;
}

/* ---- the result ---- */

static float class_of(const window *w, int64_t voxel, int64_t voxels)
{
    if (w->classes == 1) return w->sums[voxel] > 0.5;
    int64_t best = 0;
    for (int64_t c = 1; c < w->classes; c++)
        if (w->sums[c * voxels + voxel] > w->sums[best * voxels + voxel]) best = c;
    return (float)best;
}

static tern_volume *result_of(const window *w, tern_error *err)
{
    const int64_t *s = w->volume->shape, voxels = s[1] * s[2] * s[3];
    bool as_classes = w->opts.output == TERN_WINDOW_CLASSES;
    tern_volume *result = tern_volume_new((int64_t[]){as_classes ? 1 : w->classes, s[1], s[2], s[3]}, err);
    if (!result) return NULL;
    memcpy(result->spacing, w->volume->spacing, sizeof(result->spacing));
    memcpy(result->affine, w->volume->affine, sizeof(result->affine));
    memcpy(result->header, w->volume->header, sizeof(result->header));
    for (int64_t i = 0; as_classes && i < voxels; i++) result->values[i] = class_of(w, i, voxels);
    for (int64_t i = 0; !as_classes && i < w->classes * voxels; i++) result->values[i] = (float)w->sums[i];
    return result;
}

/* ---- all of it ---- */

static int window_check_opts(const tern_window_opts *o, int classes, tern_error *err)
{
    for (int d = 0; d < 3; d++)
        if (o->patch[d] < 1)
            return tern__error_set(err, FUNC, TERN_E_RANGE, "patch[%d] is %lld, expected at least 1", d,
                                   (long long)o->patch[d]);
    if (!(o->overlap >= 0 && o->overlap < 1) || !(o->std >= 0))
        return tern__error_set(err, FUNC, TERN_E_RANGE,
                               "overlap is %g and std %g, expected [0, 1) and at least 0", o->overlap,
                               (double)o->std);
    if (o->batch < 1 || classes < 1)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "batch is %lld and classes %d, expected at least 1",
                               (long long)o->batch, classes);
    if (o->blend > TERN_BLEND_CONSTANT || o->output > TERN_WINDOW_RAW)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "blend is %d and output %d", (int)o->blend,
                               (int)o->output);
    return TERN_OK;
}

static int open_buffers(window *w, tern_error *err)
{
    const int64_t *p = w->opts.patch, *s = w->volume->shape;
    int64_t patch = p[0] * p[1] * p[2];
    w->batch = tern__alloc((size_t)(w->opts.batch * s[0] * patch) * sizeof(float), FUNC, err);
    if (!w->batch) return TERN_E_MEMORY;
    w->logits = tern__alloc((size_t)(w->opts.batch * w->classes * patch) * sizeof(float), FUNC, err);
    if (!w->logits) return TERN_E_MEMORY;
    w->sums = tern__alloc((size_t)(w->classes * s[1] * s[2] * s[3]) * sizeof(double), FUNC, err);
    return w->sums ? TERN_OK : TERN_E_MEMORY;
}

static int open_window(window *w, tern_error *err)
{
    w->mean = w->opts.mean;
    w->std = w->opts.std;
    if (!(w->std > 0)) tern__volume_statistics(w->volume, &w->mean, &w->std);
    w->count = 1;
    for (int d = 0; d < 3; d++) {
        if (open_axis(w, d, err)) return TERN_E_MEMORY;
        w->count *= w->axes[d].count;
    }
    return open_buffers(w, err);
}

tern_volume *tern_sliding_window(tern_module *net, tern_scope *scope, const tern_volume *volume, int classes,
                                 const tern_window_opts *user, tern_error *err)
{
    tern_window_opts opts = tern_window_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err) ||
        window_check_opts(&opts, classes, err) || tern__need(net, "net", FUNC, err) ||
        tern__need(scope, "scope", FUNC, err) || tern__need(volume, "volume", FUNC, err))
        return NULL;
    window w = {.net = net, .scope = scope, .volume = volume, .opts = opts, .classes = classes};
    tern_volume *result = NULL;
    if (!open_window(&w, err) && !predict_all(&w, err)) result = result_of(&w, err);
    for (int d = 0; d < 3; d++) tern__free(w.axes[d].weights);
    tern__free(w.batch);
    tern__free(w.logits);
    tern__free(w.sums);
    return result;
}
