/* orthogonal.c - a matrix with orthonormal columns, uniform over all such: Q of a normal matrix's QR
 * decomposition, each column with the sign of R's diagonal (Mezzadri 2007). A matrix with fewer rows than
 * columns is decomposed transposed.
 *
 * LAPACK stores matrices column by column. So a wide tensor is its own transpose there, and a tall one is
 * transposed on the way in and out. The workspace has the size that LAPACK asks for: with a smaller one the
 * blocks would be smaller, and the bits not PyTorch's. */
#include "base/lapack.h"
#include "nn/init.h"

#include <limits.h>

typedef struct decomposition {
    tern__lapack lapack;
    int rows, columns; /* rows >= columns */
    float *matrix;     /* column by column; owns all of the following */
    float *tau, *sign; /* [columns] */
    float *work;       /* [room] */
    int room;
} decomposition;

static void factor(const decomposition *d, float *work, int room)
{
    int info;
    d->lapack.sgeqrf(&d->rows, &d->columns, d->matrix, &d->rows, d->tau, work, &room, &info);
}

static void form(const decomposition *d, float *work, int room)
{
    int info;
    d->lapack.sorgqr(&d->rows, &d->columns, &d->columns, d->matrix, &d->rows, d->tau, work, &room, &info);
}

static int best_room(const decomposition *d)
{
    float to_factor = 0, to_form = 0;
    factor(d, &to_factor, -1);
    form(d, &to_form, -1);
    return (int)TERN__MAX(TERN__MAX(to_factor, to_form), (float)d->columns);
}

static int orthogonal_prepare(decomposition *d, const tern__view *flat, const char *func, tern_error *err)
{
    int64_t rows = TERN__MAX(flat->shape[0], flat->shape[1]),
            columns = TERN__MIN(flat->shape[0], flat->shape[1]);
    if (rows > INT_MAX)
        return tern__error_set(err, func, TERN_E_RANGE, "%lld rows or columns, LAPACK takes at most %d",
                               (long long)rows, INT_MAX);
    int status = tern__lapack_open(&d->lapack, func, err);
    if (status) return status;
    d->rows = (int)rows;
    d->columns = (int)columns;
    d->room = best_room(d);
    size_t floats = (size_t)(rows * columns + 2 * columns + d->room);
    d->matrix = tern__alloc(floats * sizeof(float), func, err);
    if (!d->matrix) return TERN_E_MEMORY;
    d->tau = d->matrix + rows * columns;
    d->sign = d->tau + columns;
    d->work = d->sign + columns;
    return TERN_OK;
}

static void decompose(const decomposition *d)
{
    factor(d, d->work, d->room);
    for (int64_t j = 0; j < d->columns; j++) {
        float diagonal = d->matrix[j * d->rows + j];
        d->sign[j] = (float)((diagonal > 0) - (diagonal < 0));
    }
    form(d, d->work, d->room);
}

static void orthogonal_scale(const decomposition *d, float gain)
{
    for (int64_t j = 0; j < d->columns; j++)
        for (int64_t i = 0; i < d->rows; i++) d->matrix[j * d->rows + i] *= d->sign[j] * gain;
}

/* Views the tensor as a matrix: first dimension by the rest. */
static tern__view flatten(const tern_tensor *tensor)
{
    int64_t first = tensor->view.shape[0], count = tern_tensor_count(tensor);
    tern__view flat = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){first, count / first});
    flat.data = tensor->view.data;
    return flat;
}

int tern_init_orthogonal(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err)
{
    int status = tern__init_check(tensor, 2, TERN_NDIM_MAX, __func__, err);
    if (status || tern_tensor_count(tensor) == 0) return status;
    tern__view flat = flatten(tensor), matrix = flat;
    decomposition d = {0};
    status = orthogonal_prepare(&d, &flat, __func__, err);
    if (!status) status = tern__init_normal(tensor, 0, 1, rng, __func__, err);
    if (!status) {
        matrix.data = d.matrix;
        if (flat.shape[0] >= flat.shape[1]) {
            matrix.stride[0] = 1;
            matrix.stride[1] = d.rows;
        }
        status = tern__view_copy(&matrix, &flat, err);
    }
    if (!status) {
        decompose(&d);
        orthogonal_scale(&d, (float)gain);
        status = tern__view_copy(&flat, &matrix, err);
    }
    tern__free(d.matrix);
    return status;
}
