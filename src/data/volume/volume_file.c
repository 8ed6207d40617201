/* volume_file.c - loads and saves volumes; the file's name decides the format. */
#include "data/files.h"
#include "data/volume/volume.h"

#include "tensor/tensor.h"

#include <string.h>
#include <sys/stat.h>

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
    if (tern__is_set(err) || tern__need(path, "path", __func__, err)) return NULL;
    if (is_nifti(path)) return tern__nifti_load(path, err);
    if (tern__ends_with(path, ".npy")) return load_npy(path, err);
    if (tern__ends_with(path, ".tif") || tern__ends_with(path, ".tiff")) return tern__pages_load(path, err);
    if (is_folder(path)) return tern__folder_load(path, err);
    tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                    "%s: expected .nii, .nii.gz, .npy, .tif or a folder of slices", path);
    return NULL;
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
    if (tern__need(path, "path", __func__, err) || tern__need(volume, "volume", __func__, err))
        return TERN_E_INVALID;
    if (dtype != TERN_F32 && dtype != TERN_I32 && dtype != TERN_U8)
        return tern__error_set(err, __func__, TERN_E_DTYPE, "%s: expected f32, i32 or u8, got %s", path,
                               tern_dtype_name(dtype));
    if (is_nifti(path)) return tern__nifti_save(path, volume, dtype, err);
    if (tern__ends_with(path, ".npy")) return save_npy(path, volume, dtype, err);
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED, "%s: expected .nii, .nii.gz or .npy", path);
}
