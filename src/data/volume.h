/* volume.h - the files that volumes come from and go to. */
#ifndef TERN_SRC_DATA_VOLUME_H
#define TERN_SRC_DATA_VOLUME_H

#include <tern/volume.h>

#include "base/base.h"

#define TERN__VOLUME_LOAD "tern_volume_load"
#define TERN__VOLUME_SAVE "tern_volume_save"

static inline int64_t tern__volume_count(const tern_volume *volume)
{
    const int64_t *s = volume->shape;
    return s[0] * s[1] * s[2] * s[3];
}

tern_volume *tern__nifti_load(const char *path, tern_error *err);
int tern__nifti_save(const char *path, const tern_volume *volume, tern_dtype dtype, tern_error *err);

/* Pictures: slices in a folder, pages of a TIFF. */
tern_volume *tern__folder_load(const char *folder, tern_error *err);
tern_volume *tern__pages_load(const char *path, tern_error *err);

/* values[0..count) as `dtype` (f32, i32, u8) to `out`; E_RANGE naming `path` and the voxel, counted from
 * `first` on, that does not fit. */
int tern__volume_convert(const char *path, const float *values, int64_t first, int64_t count,
                         tern_dtype dtype, void *out, tern_error *err);

/* Mean and standard deviation of all voxels. */
void tern__volume_statistics(const tern_volume *volume, float *mean, float *std);

#endif
