/* values.c - widens values to f64 piece by piece to measure and compare them. */
#include "inspect/values.h"

#include "base/half.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE = 4096 }; /* values that are widened at a time */

/* Returns the values in row-major order. *copy, if not NULL, holds them and must be freed. */
static const char *open_values(const tern_tensor *tensor, tern_tensor **copy, tern_error *err)
{
    *copy = NULL;
    if (tern__view_is_contiguous(&tensor->view)) return tensor->view.data;
    *copy = tern_keep(tensor, err);
    return *copy ? (*copy)->view.data : NULL;
}

#define WIDEN(type, expression)                                                                              \
    for (int i = 0; i < count; i++) {                                                                        \
        type v = ((const type *)data)[i];                                                                    \
        out[i] = (double)(expression);                                                                       \
    }                                                                                                        \
    break

static void widen_values(const void *data, tern_dtype dtype, int count, double out[PIECE])
{
    switch (dtype) {
    case TERN_F32: WIDEN(float, v);
    case TERN_F64: WIDEN(double, v);
    case TERN_I64: WIDEN(int64_t, v);
    case TERN_I32: WIDEN(int32_t, v);
    case TERN_U8:
    case TERN_BOOL: WIDEN(uint8_t, v);
    case TERN_BF16: WIDEN(uint16_t, tern__bf16_to_f32(v));
    case TERN_F16: WIDEN(uint16_t, tern__f16_to_f32(v));
    case TERN_I8: WIDEN(int8_t, v);
    case TERN_I16: WIDEN(int16_t, v);
    case TERN_DTYPE_COUNT:
    case TERN_DTYPE_NONE: break;
    }
}

/* ---- one tensor ---- */

/* The mean and the sum of squared deviations of the values so far. */
typedef struct moments {
    int64_t count;
    double mean, squares;
} moments;

/* Merges the moments of two sets (Chan, Golub, LeVeque). */
static void merge_moments(moments *all, const moments *piece)
{
    if (!piece->count) return;
    double both = (double)(all->count + piece->count), delta = piece->mean - all->mean;
    all->mean += delta * (double)piece->count / both;
    all->squares += piece->squares + delta * delta * (double)all->count * (double)piece->count / both;
    all->count += piece->count;
}

static void measure_piece(tern__values *out, moments *all, const double *v, int count)
{
    moments piece = {0};
    double sum = 0;
    for (int i = 0; i < count; i++) {
        if (isnan(v[i])) out->nan++;
        if (isinf(v[i])) out->inf++;
        if (!isfinite(v[i])) continue;
        out->min = fmin(out->min, v[i]); /* fmin ignores a NaN */
        out->max = fmax(out->max, v[i]);
        sum += v[i];
        piece.count++;
    }
    piece.mean = piece.count ? sum / (double)piece.count : 0;
    for (int i = 0; i < count; i++)
        if (isfinite(v[i])) piece.squares += (v[i] - piece.mean) * (v[i] - piece.mean);
    merge_moments(all, &piece);
}

int tern__values_measure(tern__values *out, const tern_tensor *tensor, tern_error *err)
{
    double piece[PIECE];
    moments all = {0};
    tern_tensor *copy;
    const char *data = open_values(tensor, &copy, err);
    if (!data) return TERN_E_MEMORY;
    size_t size = tern_dtype_bytes(tensor->view.dtype);
    *out = (tern__values){.count = tern__view_count(&tensor->view), .min = NAN, .max = NAN};
    for (int64_t at = 0; at < out->count; at += PIECE) {
        int count = (int)TERN__MIN(out->count - at, PIECE);
        widen_values(data + (size_t)at * size, tensor->view.dtype, count, piece);
        measure_piece(out, &all, piece, count);
    }
    out->mean = all.count ? all.mean : NAN;
    out->std = all.count > 1 ? sqrt(all.squares / (double)(all.count - 1)) : NAN;
    out->checksum = XXH3_64bits(data, tern__view_bytes(&tensor->view));
    tern_tensor_free(copy);
    return TERN_OK;
}

/* ---- two tensors ---- */

static void compare_values(tern__distance *out, double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) return;
    double apart = fabs(a - b);
    if (!isfinite(apart)) apart = INFINITY;
    double relative = isfinite(apart) ? apart / fmax(fabs(a), fabs(b)) : INFINITY;
    out->absolute = fmax(out->absolute, apart);
    out->relative = fmax(out->relative, relative);
}

static void compare_pieces(tern__distance *out, const char *a, tern_dtype a_dtype, const char *b,
                           tern_dtype b_dtype, int count)
{
    double x[PIECE], y[PIECE];
    size_t size = tern_dtype_bytes(a_dtype);
    if (a_dtype == b_dtype && memcmp(a, b, (size_t)count * size) == 0) {
        out->equal += count;
        return;
    }
    widen_values(a, a_dtype, count, x);
    widen_values(b, b_dtype, count, y);
    for (int i = 0; i < count; i++) {
        out->equal += a_dtype == b_dtype && memcmp(a + (size_t)i * size, b + (size_t)i * size, size) == 0;
        compare_values(out, x[i], y[i]);
    }
}

int tern__values_compare(tern__distance *out, const tern_tensor *a, const tern_tensor *b, tern_error *err)
{
    tern_tensor *a_copy, *b_copy = NULL;
    const char *x = open_values(a, &a_copy, err), *y = x ? open_values(b, &b_copy, err) : NULL;
    size_t a_size = tern_dtype_bytes(a->view.dtype), b_size = tern_dtype_bytes(b->view.dtype);
    *out = (tern__distance){.count = tern__view_count(&a->view)};
    for (int64_t at = 0; y && at < out->count; at += PIECE)
        compare_pieces(out, x + (size_t)at * a_size, a->view.dtype, y + (size_t)at * b_size, b->view.dtype,
                       (int)TERN__MIN(out->count - at, PIECE));
    tern_tensor_free(a_copy);
    tern_tensor_free(b_copy);
    return y ? TERN_OK : TERN_E_MEMORY;
}

int tern__bytes_compare(tern__distance *out, const tern_tensor *a, const tern_tensor *b, tern_error *err)
{
    tern_tensor *a_copy, *b_copy = NULL;
    const char *x = open_values(a, &a_copy, err), *y = x ? open_values(b, &b_copy, err) : NULL;
    int64_t bytes = tern__view_count(&a->view);
    for (int64_t i = 0; y && i < out->count; i++) {
        int64_t begin = i * bytes / out->count, end = ((i + 1) * bytes + out->count - 1) / out->count;
        out->equal += memcmp(x + begin, y + begin, (size_t)(end - begin)) == 0;
    }
    tern_tensor_free(a_copy);
    tern_tensor_free(b_copy);
    return y ? TERN_OK : TERN_E_MEMORY;
}
