/* volume.c - volumes in memory. */
#include "data/files.h"
#include "data/volume/volume.h"

#include "tensor/tensor.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

/* ---- in memory ---- */

tern_volume *tern_volume_new(const int64_t shape[4], tern_error *err)
{
    if (tern__is_set(err) || tern__need(shape, "shape", __func__, err)) return NULL;
    int64_t bytes = sizeof(float);
    for (int d = 0; d < 4; d++)
        if (shape[d] < 1 || __builtin_mul_overflow(bytes, shape[d], &bytes)) {
            tern__error_set(err, __func__, TERN_E_SHAPE,
                            "a volume cannot have shape (%lld, %lld, %lld, %lld)", (long long)shape[0],
                            (long long)shape[1], (long long)shape[2], (long long)shape[3]);
            return NULL;
        }
    tern_volume *volume = tern__alloc(sizeof(*volume), __func__, err);
    if (!volume) return NULL;
    *volume = (tern_volume){.spacing = {1, 1, 1}, .affine = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}}};
    memcpy(volume->shape, shape, sizeof(volume->shape));
    volume->values = tern__alloc((size_t)bytes, __func__, err);
    if (volume->values) return volume;
    tern__free(volume);
    return NULL;
}

void tern_volume_free(tern_volume *volume)
{
    if (!volume) return;
    tern__free(volume->values);
    tern__free(volume);
}

static int check_box(const tern_volume *volume, const int64_t start[3], const int64_t shape[3],
                     tern_error *err)
{
    static const char *const names[] = {"depth", "height", "width"};
    for (int d = 0; d < 3; d++)
        if (start[d] < 0 || shape[d] < 1 || shape[d] > volume->shape[d + 1] ||
            start[d] > volume->shape[d + 1] - shape[d])
            return tern__error_set(err, "tern_volume_crop", TERN_E_RANGE,
                                   "%s: a box of %lld from %lld does not fit the volume's %lld", names[d],
                                   (long long)start[d], (long long)shape[d], (long long)volume->shape[d + 1]);
    return TERN_OK;
}

tern_volume *tern_volume_crop(const tern_volume *volume, const int64_t start[3], const int64_t shape[3],
                              tern_error *err)
{
    if (tern__is_set(err) || tern__need(volume, "volume", __func__, err) ||
        tern__need(start, "start", __func__, err) || tern__need(shape, "shape", __func__, err) ||
        check_box(volume, start, shape, err))
        return NULL;
    const int64_t *from = volume->shape;
    tern_volume *box = tern_volume_new((int64_t[]){from[0], shape[0], shape[1], shape[2]}, err);
    if (!box) return NULL;
    memcpy(box->spacing, volume->spacing, sizeof(box->spacing));
    memcpy(box->affine, volume->affine, sizeof(box->affine));
    memcpy(box->header, volume->header, sizeof(box->header));
    /* Moves the affine's origin to voxel `start`. */
    for (int r = 0; r < 3; r++)
        for (int d = 0; d < 3; d++) box->affine[r][3] += box->affine[r][2 - d] * (double)start[d];
    float *to = box->values;
    for (int64_t c = 0; c < from[0]; c++)
        for (int64_t z = start[0]; z < start[0] + shape[0]; z++)
            for (int64_t y = start[1]; y < start[1] + shape[1]; y++, to += shape[2])
                memcpy(to, volume->values + ((c * from[1] + z) * from[2] + y) * from[3] + start[2],
                       (size_t)shape[2] * sizeof(float));
    return box;
}

void tern__volume_statistics(const tern_volume *volume, float *mean, float *std)
{
    int64_t count = tern__volume_count(volume);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)volume->values[i];
    for (int64_t i = 0; i < count; i++) {
        double away = (double)volume->values[i] - sum / (double)count;
        squares += away * away;
    }
    *mean = (float)(sum / (double)count);
    *std = (float)sqrt(squares / (double)count);
    if (!(*std > 0)) *std = 1; /* all voxels are equal: they normalise to zeros */
}

/* ---- voxels of other dtypes ---- */

#define CONVERT(type, low, high)                                                                             \
    for (int64_t i = 0; i < count; i++) {                                                                    \
        if (!(values[i] >= (low) && values[i] <= (high) && values[i] == truncf(values[i])))                  \
            return tern__error_set(err, TERN__VOLUME_SAVE, TERN_E_RANGE,                                     \
                                   "%s: voxel %lld is %g, which %s does not hold", path,                     \
                                   (long long)(first + i), (double)values[i], tern_dtype_name(dtype));       \
        ((type *)out)[i] = (type)values[i];                                                                  \
    }

int tern__volume_convert(const char *path, const float *values, int64_t first, int64_t count,
                         tern_dtype dtype, void *out, tern_error *err)
{
    if (dtype == TERN_F32) memcpy(out, values, (size_t)count * sizeof(float));
    if (dtype == TERN_U8) CONVERT(uint8_t, 0, 255)
    if (dtype == TERN_I32) CONVERT(int32_t, -0x1p31f, 0x1.fffffep30f)
    return TERN_OK;
}
