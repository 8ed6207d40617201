/* volume.h - volumes, and the file formats that they are loaded from and saved to. */
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

/* Volumes stored as images: one file per slice in a folder, or the pages of a TIFF. */
tern_volume *tern__folder_load(const char *folder, tern_error *err);
tern_volume *tern__pages_load(const char *path, tern_error *err);

/* Converts values[0..count) to `dtype` (f32, i32, u8). E_RANGE names `path` and the voxel that does not fit;
 * values[0] is voxel `first`. */
int tern__volume_convert(const char *path, const float *values, int64_t first, int64_t count,
                         tern_dtype dtype, void *out, tern_error *err);

/* Computes mean and standard deviation of all voxels; a deviation of 0 becomes 1. */
void tern__volume_statistics(const tern_volume *volume, float *mean, float *std);

#endif
