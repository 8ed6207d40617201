/* nifti.c - loads and saves NIfTI-1 files: the plug-in parses the header, this file reads and writes the
 * voxels. */
#include <tern/backend/nifti.h>

#include "base/plugin.h"
#include "data/gzip_file.h"
#include "data/volume/volume.h"

#include <string.h>

#define LOAD TERN__VOLUME_LOAD
#define SAVE TERN__VOLUME_SAVE

enum {
    CHUNK = 1 << 14 /* voxels */,
    VOXEL_MOST = 8 /* bytes */,
    U8_CODE = 2,
    I32_CODE = 8,
    F32_CODE = 16,
    DIM_MOST = INT16_MAX,
    OFFSET = 352
};

/* ---- reading ---- */

static int nifti_parse(const tern_nifti_backend *plugin, const tern__gzip_file *file, const uint8_t *header,
                       tern_nifti_info *info, tern_error *err)
{
    char why[TERN_ERROR_TEXT] = "";
    tern_nifti_status status = plugin->parse(header, info, why, sizeof(why));
    if (!status) return TERN_OK;
    int code = status == TERN_NIFTI_OTHER ? TERN_E_UNSUPPORTED : TERN_E_FORMAT;
    return tern__error_set(err, LOAD, code, "%s: %s", file->path, why);
}

/* Checks that the file can hold all voxels, so that a damaged header allocates nothing. */
static int nifti_check_size(const tern__gzip_file *file, const tern_nifti_info *info, tern_error *err)
{
    int64_t bytes = info->bytes;
    for (int d = 0; d < 4; d++)
        if (__builtin_mul_overflow(bytes, info->shape[d], &bytes) || bytes > file->most - info->offset)
            return tern__error_set(
                err, LOAD, TERN_E_IO,
                "%s is truncated: its header claims %lld x %lld x %lld x %lld voxels of %d bytes", file->path,
                (long long)info->shape[3], (long long)info->shape[2], (long long)info->shape[1],
                (long long)info->shape[0], info->bytes);
    return TERN_OK;
}

static int read_values(const tern_nifti_backend *plugin, const tern__gzip_file *file,
                       const tern_nifti_info *info, tern_volume *volume, tern_error *err)
{
    _Alignas(VOXEL_MOST) uint8_t voxels[CHUNK * VOXEL_MOST];
    int64_t count = tern__volume_count(volume), extra;
    for (int64_t done = 0; done < count;) {
        size_t some = (size_t)TERN__MIN(count - done, (int64_t)CHUNK);
        int status = tern__gzip_read(file, voxels, some * (size_t)info->bytes, err);
        if (status) return status;
        plugin->values(info, voxels, some, volume->values + done);
        done += (int64_t)some;
    }
    return tern__gzip_end(file, &extra, err); /* other programs store data after the voxels */
}

static tern_volume *read_volume(const tern_nifti_backend *plugin, const tern__gzip_file *file,
                                tern_error *err)
{
    uint8_t header[TERN_NIFTI_HEADER];
    tern_nifti_info info;
    if (tern__gzip_read(file, header, sizeof(header), err) || nifti_parse(plugin, file, header, &info, err) ||
        nifti_check_size(file, &info, err) ||
        tern__gzip_read(file, NULL, (size_t)info.offset - sizeof(header), err))
        return NULL;
    tern_volume *volume = tern_volume_new(info.shape, err);
    if (!volume) return NULL;
    memcpy(volume->spacing, info.spacing, sizeof(volume->spacing));
    memcpy(volume->affine, info.affine, sizeof(volume->affine));
    memcpy(volume->header, header, sizeof(header));
    if (!read_values(plugin, file, &info, volume, err)) return volume;
    tern_volume_free(volume);
    return NULL;
}

tern_volume *tern__nifti_load(const char *path, tern_error *err)
{
    tern__gzip_file file;
    const tern_nifti_backend *plugin = tern__plugin_get(TERN__PLUGIN_NIFTI, path, LOAD, err);
    if (!plugin || tern__gzip_open(&file, path, LOAD, err)) return NULL;
    tern_volume *volume = read_volume(plugin, &file, err);
    tern__gzip_close(&file);
    return volume;
}

/* ---- writing ---- */

static int nifti_describe(const char *path, const tern_volume *volume, tern_dtype dtype,
                          tern_nifti_info *info, tern_error *err)
{
    static const int codes[TERN_DTYPE_COUNT] = {
        [TERN_U8] = U8_CODE, [TERN_I32] = I32_CODE, [TERN_F32] = F32_CODE};
    for (int d = 0; d < 4; d++)
        if (volume->shape[d] > DIM_MOST)
            return tern__error_set(err, SAVE, TERN_E_UNSUPPORTED,
                                   "%s: a dimension is %lld, NIfTI-1 allows at most %d", path,
                                   (long long)volume->shape[d], DIM_MOST);
    *info = (tern_nifti_info){.datatype = codes[dtype]};
    memcpy(info->shape, volume->shape, sizeof(info->shape));
    memcpy(info->spacing, volume->spacing, sizeof(info->spacing));
    memcpy(info->affine, volume->affine, sizeof(info->affine));
    return TERN_OK;
}

static int write_values(const tern__gzip_file *file, const tern_volume *volume, tern_dtype dtype,
                        tern_error *err)
{
    _Alignas(VOXEL_MOST) uint8_t voxels[CHUNK * sizeof(float)];
    int64_t count = tern__volume_count(volume);
    for (int64_t done = 0; done < count;) {
        int64_t some = TERN__MIN(count - done, (int64_t)CHUNK);
        int status = tern__volume_convert(file->path, volume->values + done, done, some, dtype, voxels, err);
        if (!status) status = tern__gzip_write(file, voxels, (size_t)some * tern_dtype_bytes(dtype), err);
        if (status) return status;
        done += some;
    }
    return TERN_OK;
}

int tern__nifti_save(const char *path, const tern_volume *volume, tern_dtype dtype, tern_error *err)
{
    tern__gzip_file file;
    tern_nifti_info info;
    uint8_t start[OFFSET] = {0}; /* the header, and four zeros: no extensions */
    static const uint8_t none[TERN_NIFTI_HEADER];
    const tern_nifti_backend *plugin = tern__plugin_get(TERN__PLUGIN_NIFTI, path, SAVE, err);
    if (!plugin) return TERN_E_UNSUPPORTED;
    int status = nifti_describe(path, volume, dtype, &info, err);
    if (!status) status = tern__gzip_create(&file, path, SAVE, err);
    if (status) return status;
    bool is_own = memcmp(volume->header, none, sizeof(none)) != 0;
    plugin->make(is_own ? volume->header : NULL, &info, start);
    status = tern__gzip_write(&file, start, sizeof(start), err);
    if (!status) status = write_values(&file, volume, dtype, err);
    return tern__gzip_finish(&file, status, err);
}
