/* init.c - torch.nn.init: constants, random values, and random values scaled by fan. The arithmetic is in
 * PyTorch's order and in double, as in Python; only the random values are float. */
#include "nn/init.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- shared ---- */

int tern__init_check(const tern_tensor *tensor, int low, int high, const char *func, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    if (tern__is_set(err)) return err->code;
    int status = tern__tensor_check(tensor, func, err);
    if (status) return status;
    const tern__view *view = &tensor->view;
    if (view->dtype != TERN_F32)
        return tern__error_set(err, func, TERN_E_DTYPE, "tensor %s is %s, expected f32",
                               tern__shape_text(view, shape), tern_dtype_name(view->dtype));
    if (!tern__view_is_contiguous(view))
        return tern__error_set(err, func, TERN_E_INVALID, "tensor %s is not row-major without gaps",
                               tern__shape_text(view, shape));
    if (view->ndim < low || view->ndim > high)
        return tern__error_set(err, func, TERN_E_SHAPE, "expected %d to %d dimensions, got %s", low, high,
                               tern__shape_text(view, shape));
    return TERN_OK;
}

int tern__init_open(tern__host *host, tern_tensor *tensor, tern_error *err)
{
    if (tensor->view.packs) tensor->view.packs->version++;
    return tern__host_open(host, &tensor->view, err);
}

static int check_rng(const tern_rng *rng, const char *func, tern_error *err)
{
    return rng ? TERN_OK : tern__error_set(err, func, TERN_E_INVALID, "the rng is NULL");
}

/* The comparison also refuses NaN. */
int tern__init_uniform(tern_tensor *tensor, double from, double to, tern_rng *rng, const char *func,
                       tern_error *err)
{
    if (check_rng(rng, func, err)) return TERN_E_INVALID;
    if (!(from >= -FLT_MAX && from <= to && to <= FLT_MAX && to - from <= FLT_MAX))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "uniform from %g to %g: expected from <= to, and both and their difference "
                               "within f32",
                               from, to);
    tern__host host;
    int status = tern__init_open(&host, tensor, err);
    if (status) return status;
    tern_rng_uniform(rng, host.view.data, (size_t)tern_tensor_count(tensor), from, to);
    return tern__host_close(&host, true, err);
}

int tern__init_normal(tern_tensor *tensor, double mean, double std, tern_rng *rng, const char *func,
                      tern_error *err)
{
    if (check_rng(rng, func, err)) return TERN_E_INVALID;
    if (!(std >= 0)) return tern__error_set(err, func, TERN_E_RANGE, "std is %g, expected at least 0", std);
    tern__host host;
    int status = tern__init_open(&host, tensor, err);
    if (status) return status;
    tern_rng_normal(rng, host.view.data, (size_t)tern_tensor_count(tensor), mean, std);
    return tern__host_close(&host, true, err);
}

/* ---- constants ---- */

/* Opens the tensor on the host and fills it with zeros. */
static int init_clear(tern__host *host, tern_tensor *tensor, tern_error *err)
{
    int status = tern__init_open(host, tensor, err);
    if (!status) memset(host->view.data, 0, tern__view_bytes(&tensor->view));
    return status;
}

int tern_init_constant(tern_tensor *tensor, double value, tern_error *err)
{
    int status = tern__init_check(tensor, 0, TERN_NDIM_MAX, __func__, err);
    if (status) return status;
    tern__host host;
    status = tern__init_open(&host, tensor, err);
    if (status) return status;
    float *values = host.view.data;
    int64_t count = tern_tensor_count(tensor);
    for (int64_t i = 0; i < count; i++) values[i] = (float)value;
    return tern__host_close(&host, true, err);
}

int tern_init_eye(tern_tensor *tensor, tern_error *err)
{
    int status = tern__init_check(tensor, 2, 2, __func__, err);
    if (status) return status;
    const int64_t *shape = tensor->view.shape;
    tern__host host;
    status = init_clear(&host, tensor, err);
    if (status) return status;
    float *values = host.view.data;
    for (int64_t i = 0; i < TERN__MIN(shape[0], shape[1]); i++) values[i * shape[1] + i] = 1.0f;
    return tern__host_close(&host, true, err);
}

/* Returns the offset of a kernel's centre from its first element, in elements. */
static int64_t init_centre(const tern__view *view)
{
    int64_t at = 0;
    for (int d = 2; d < view->ndim; d++) at += view->shape[d] / 2 * view->stride[d];
    return at;
}

static int check_dirac(const tern_tensor *tensor, int64_t groups, const char *func, tern_error *err)
{
    int status = tern__init_check(tensor, 3, 5, func, err);
    if (status) return status;
    char shape[TERN__SHAPE_TEXT];
    const tern__view *view = &tensor->view;
    if (groups < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "groups is %lld, expected at least 1",
                               (long long)groups);
    bool has_centre = tern__view_count(view) || !view->shape[0] || !view->shape[1];
    if (view->shape[0] % groups || !has_centre)
        return tern__error_set(err, func, TERN_E_SHAPE,
                               "expected a first dimension divisible by %lld groups and a kernel of at least "
                               "one element, got %s",
                               (long long)groups, tern__shape_text(view, shape));
    return TERN_OK;
}

int tern_init_dirac(tern_tensor *tensor, int64_t groups, tern_error *err)
{
    int status = check_dirac(tensor, groups, __func__, err);
    if (status) return status;
    const tern__view *view = &tensor->view;
    int64_t out = view->shape[0] / groups, ones = TERN__MIN(out, view->shape[1]);
    tern__host host;
    status = init_clear(&host, tensor, err);
    if (status) return status;
    float *values = host.view.data;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < ones; i++)
            values[(g * out + i) * view->stride[0] + i * view->stride[1] + init_centre(view)] = 1.0f;
    return tern__host_close(&host, true, err);
}

/* ---- random values ---- */

int tern_init_uniform(tern_tensor *tensor, double from, double to, tern_rng *rng, tern_error *err)
{
    int status = tern__init_check(tensor, 0, TERN_NDIM_MAX, __func__, err);
    return status ? status : tern__init_uniform(tensor, from, to, rng, __func__, err);
}

int tern_init_normal(tern_tensor *tensor, double mean, double std, tern_rng *rng, tern_error *err)
{
    int status = tern__init_check(tensor, 0, TERN_NDIM_MAX, __func__, err);
    return status ? status : tern__init_normal(tensor, mean, std, rng, __func__, err);
}

/* Sets `zeros` elements of each column to 0: the first rows of a permutation drawn for the column. */
static int init_forget(tern_tensor *tensor, int64_t zeros, int64_t *order, tern_rng *rng, tern_error *err)
{
    tern__host host;
    const int64_t *shape = tensor->view.shape;
    int status = tern__init_open(&host, tensor, err);
    if (status) return status;
    float *values = host.view.data;
    for (int64_t column = 0; column < shape[1]; column++) {
        tern_rng_permutation(rng, order, shape[0]);
        for (int64_t i = 0; i < zeros; i++) values[order[i] * shape[1] + column] = 0.0f;
    }
    return tern__host_close(&host, true, err);
}

int tern_init_sparse(tern_tensor *tensor, double sparsity, double std, tern_rng *rng, tern_error *err)
{
    int status = tern__init_check(tensor, 2, 2, __func__, err);
    if (status) return status;
    if (!(sparsity >= 0 && sparsity <= 1))
        return tern__error_set(err, __func__, TERN_E_RANGE, "sparsity is %g, expected [0, 1]", sparsity);
    const int64_t *shape = tensor->view.shape;
    int64_t *order = tern__alloc((size_t)shape[0] * sizeof(*order), __func__, err);
    if (!order) return TERN_E_MEMORY;
    status = tern__init_normal(tensor, 0, std, rng, __func__, err);
    if (!status) status = init_forget(tensor, (int64_t)ceil(sparsity * (double)shape[0]), order, rng, err);
    tern__free(order);
    return status;
}

/* ---- random values scaled by fan ---- */

/* Returns fan in, the number of inputs that an output sums up, or fan out, the number of outputs of an input.
 */
static double fan_of(const tern__view *view, tern_fan fan)
{
    double count = (double)view->shape[fan == TERN_FAN_IN ? 1 : 0];
    for (int d = 2; d < view->ndim; d++) count *= (double)view->shape[d];
    return count;
}

double tern_init_gain(tern_nonlinearity nonlinearity, double slope)
{
    /* Python's ** calls pow, and one square in a thousand differs from slope * slope in its last bit; a
     * constant exponent would make the compiler write the product. */
    volatile double two = 2;
    switch (nonlinearity) {
    case TERN_GAIN_LINEAR: return 1;
    case TERN_GAIN_TANH: return 5.0 / 3;
    case TERN_GAIN_RELU: return sqrt(2.0);
    case TERN_GAIN_LEAKY_RELU: return sqrt(2.0 / (1 + pow(slope, two)));
    case TERN_GAIN_SELU: return 3.0 / 4;
    }
    return NAN;
}

static int xavier_std(const tern_tensor *tensor, double gain, double *std, const char *func, tern_error *err)
{
    int status = tern__init_check(tensor, 2, TERN_NDIM_MAX, func, err);
    if (status) return status;
    double fans = fan_of(&tensor->view, TERN_FAN_IN) + fan_of(&tensor->view, TERN_FAN_OUT);
    *std = gain * sqrt(2.0 / fans);
    return TERN_OK;
}

int tern_init_xavier_uniform(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err)
{
    double std;
    int status = xavier_std(tensor, gain, &std, __func__, err);
    double bound = status ? 0 : sqrt(3.0) * std;
    return status ? status : tern__init_uniform(tensor, -bound, bound, rng, __func__, err);
}

int tern_init_xavier_normal(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err)
{
    double std;
    int status = xavier_std(tensor, gain, &std, __func__, err);
    return status ? status : tern__init_normal(tensor, 0, std, rng, __func__, err);
}

typedef struct kaiming {
    double slope;
    tern_fan fan;
    tern_nonlinearity nonlinearity;
} kaiming;

/* Computes the standard deviation. Returns 1 if the tensor has no elements, whatever its shape: nothing to
 * do. */
static int kaiming_std(const tern_tensor *tensor, const kaiming *k, double *std, const char *func,
                       tern_error *err)
{
    int status = tern__init_check(tensor, 0, TERN_NDIM_MAX, func, err);
    if (status) return status;
    if (tern_tensor_count(tensor) == 0) return 1;
    status = tern__init_check(tensor, 2, TERN_NDIM_MAX, func, err);
    if (status) return status;
    double gain = tern_init_gain(k->nonlinearity, k->slope);
    if (isnan(gain) || (k->fan != TERN_FAN_IN && k->fan != TERN_FAN_OUT))
        return tern__error_set(err, func, TERN_E_RANGE, "no gain for fan %d, nonlinearity %d, slope %g",
                               (int)k->fan, (int)k->nonlinearity, k->slope);
    *std = gain / sqrt(fan_of(&tensor->view, k->fan));
    return TERN_OK;
}

int tern_init_kaiming_uniform(tern_tensor *tensor, double slope, tern_fan fan, tern_nonlinearity nonlinearity,
                              tern_rng *rng, tern_error *err)
{
    double std = 0;
    int status = kaiming_std(tensor, &(kaiming){slope, fan, nonlinearity}, &std, __func__, err);
    if (status) return TERN__MIN(status, 0);
    double bound = sqrt(3.0) * std;
    return tern__init_uniform(tensor, -bound, bound, rng, __func__, err);
}

int tern_init_kaiming_normal(tern_tensor *tensor, double slope, tern_fan fan, tern_nonlinearity nonlinearity,
                             tern_rng *rng, tern_error *err)
{
    double std = 0;
    int status = kaiming_std(tensor, &(kaiming){slope, fan, nonlinearity}, &std, __func__, err);
    if (status) return TERN__MIN(status, 0);
    return tern__init_normal(tensor, 0, std, rng, __func__, err);
}

int tern__init_default(tern_tensor *weight, tern_tensor *bias, tern_rng *rng, tern_error *err)
{
    if (!rng) return tern__is_set(err) ? err->code : TERN_OK;
    int status = tern_init_kaiming_uniform(weight, sqrt(5.0), TERN_FAN_IN, TERN_GAIN_LEAKY_RELU, rng, err);
    if (status || !bias) return status;
    double bound = 1 / sqrt(fan_of(&weight->view, TERN_FAN_IN));
    return tern_init_uniform(bias, -bound, bound, rng, err);
}
