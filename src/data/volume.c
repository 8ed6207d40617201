/* volume.c - volumes in memory, and which file format a name means. */
#include "data/files.h"
#include "data/volume.h"

#include "tensor/tensor.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

/* ---- in memory ---- */

tern_volume *tern_volume_new(const int64_t shape[4], tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    int64_t bytes = sizeof(float);
    for (int d = 0; d < 4; d++)
        if (shape[d] < 1 || __builtin_mul_overflow(bytes, shape[d], &bytes)) {
            tern__error_set(err, __func__, TERN_E_SHAPE, "no volume has shape (%lld, %lld, %lld, %lld)",
                            (long long)shape[0], (long long)shape[1], (long long)shape[2],
                            (long long)shape[3]);
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
                                   "%s from %lld on, %lld long: the volume has %lld", names[d],
                                   (long long)start[d], (long long)shape[d], (long long)volume->shape[d + 1]);
    return TERN_OK;
}

/* Where voxel `start` is becomes where voxel 0 is. */
static void move_origin(tern_volume *volume, const int64_t start[3])
{
    for (int r = 0; r < 3; r++)
        for (int d = 0; d < 3; d++) volume->affine[r][3] += volume->affine[r][2 - d] * (double)start[d];
}

tern_volume *tern_volume_crop(const tern_volume *volume, const int64_t start[3], const int64_t shape[3],
                              tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!volume) tern__error_set(err, __func__, TERN_E_INVALID, "the volume is NULL");
    if (!volume || check_box(volume, start, shape, err)) return NULL;
    const int64_t *from = volume->shape;
    tern_volume *box = tern_volume_new((int64_t[]){from[0], shape[0], shape[1], shape[2]}, err);
    if (!box) return NULL;
    memcpy(box->spacing, volume->spacing, sizeof(box->spacing));
    memcpy(box->affine, volume->affine, sizeof(box->affine));
    memcpy(box->header, volume->header, sizeof(box->header));
    move_origin(box, start);
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
    if (!(*std > 0)) *std = 1; /* all voxels are alike: zeros */
}

/* ---- files ---- */

static bool is_nifti(const char *path)
{
    return tern__ends_with(path, ".nii") || tern__ends_with(path, ".nii.gz");
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static tern_volume *of_tensor(const char *path, tern_tensor *tensor, tern_error *err)
{
    int ndim = tern_tensor_ndim(tensor);
    const int64_t *shape = tern_tensor_shape(tensor);
    if (ndim != 3 && ndim != 4) {
        tern__error_set(err, TERN__VOLUME_LOAD, TERN_E_SHAPE,
                        "%s has %d dimensions, expected (D, H, W) or (C, D, H, W)", path, ndim);
        return NULL;
    }
    int64_t full[4] = {1};
    memcpy(full + 4 - ndim, shape, (size_t)ndim * sizeof(int64_t));
    tern_volume *volume = tern_volume_new(full, err);
    for (int64_t i = 0; volume && i < tern__volume_count(volume); i++)
        volume->values[i] = (float)tern__view_get(&tensor->view, i);
    return volume;
}

static tern_volume *load_npy(const char *path, tern_error *err)
{
    tern_tensor *tensor = tern_npy_load(path, err);
    tern_volume *volume = tensor ? of_tensor(path, tensor, err) : NULL;
    tern_tensor_free(tensor);
    return volume;
}

tern_volume *tern_volume_load(const char *path, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (is_nifti(path)) return tern__nifti_load(path, err);
    if (tern__ends_with(path, ".npy")) return load_npy(path, err);
    if (tern__ends_with(path, ".tif") || tern__ends_with(path, ".tiff")) return tern__pages_load(path, err);
    if (is_folder(path)) return tern__folder_load(path, err);
    tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                    "%s: expected .nii, .nii.gz, .npy, .tif or a folder of slices", path);
    return NULL;
}

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

static int save_npy(const char *path, const tern_volume *volume, tern_dtype dtype, tern_error *err)
{
    int first = volume->shape[0] == 1; /* one channel: (D, H, W) */
    tern_error own = {0};
    if (!err) err = &own;
    tern_tensor *tensor = tern__tensor_new(dtype, 4 - first, volume->shape + first, err);
    if (tensor && !tern__volume_convert(path, volume->values, 0, tern__volume_count(volume), dtype,
                                        tern_tensor_data(tensor), err))
        tern_npy_save(path, tensor, err);
    tern_tensor_free(tensor);
    return err->code;
}

int tern_volume_save(const char *path, const tern_volume *volume, tern_dtype dtype, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (dtype != TERN_F32 && dtype != TERN_I32 && dtype != TERN_U8)
        return tern__error_set(err, __func__, TERN_E_DTYPE, "%s: expected f32, i32 or u8, got %s", path,
                               tern_dtype_name(dtype));
    if (is_nifti(path)) return tern__nifti_save(path, volume, dtype, err);
    if (tern__ends_with(path, ".npy")) return save_npy(path, volume, dtype, err);
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED, "%s: expected .nii, .nii.gz or .npy", path);
}
