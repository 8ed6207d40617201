/* slices.c - loads volumes stored as images: a folder with one file per slice, or the pages of a TIFF. */
#include <tern/image.h>

#include "data/files.h"
#include "data/volume/volume.h"

#include <stdlib.h>
#include <string.h>

#define LOAD TERN__VOLUME_LOAD

/* ---- files ---- */

static bool is_slice(const char *name)
{
    static const char *const ends[] = {".png", ".tif", ".tiff", ".jpg", ".jpeg"};
    for (size_t i = 0; i < TERN__COUNT(ends); i++)
        if (tern__ends_with(name, ends[i]) && strlen(name) > strlen(ends[i])) return true;
    return false;
}

/* Sorts slice2 before slice10. */
static int by_number(const void *a, const void *b)
{
    return strverscmp(((const tern__file *)a)->path, ((const tern__file *)b)->path);
}

static int list_slices(const char *folder, tern__files *slices, tern_error *err)
{
    int status = tern__files_list(slices, folder, is_slice, LOAD, err);
    if (!status && slices->count == 0)
        status =
            tern__error_set(err, LOAD, TERN_E_IO, "%s: no slice (.png, .tif, .jpg) in this folder", folder);
    if (!status) qsort(slices->file, (size_t)slices->count, sizeof(*slices->file), by_number);
    return status;
}

/* ---- pixels ---- */

static void copy_slice(const tern_image *image, float *to)
{
    int64_t count = image->height * image->width;
    for (int64_t i = 0; i < count; i++)
        to[i] = image->sample == TERN_IMAGE_U8    ? (float)((const uint8_t *)image->data)[i]
                : image->sample == TERN_IMAGE_U16 ? (float)((const uint16_t *)image->data)[i]
                                                  : ((const float *)image->data)[i];
}

/* Copies a slice into the volume. The first slice sets the size and allocates the volume. */
static int add_slice(tern_volume **volume, const tern_image *image, const char *path, int64_t z,
                     int64_t depth, tern_error *err)
{
    if (!*volume) *volume = tern_volume_new((int64_t[]){1, depth, image->height, image->width}, err);
    if (!*volume) return TERN_E_MEMORY;
    const int64_t *s = (*volume)->shape;
    if (image->height != s[2] || image->width != s[3])
        return tern__error_set(
            err, LOAD, TERN_E_SHAPE, "%s is %lld x %lld, expected %lld x %lld like the first slice", path,
            (long long)image->width, (long long)image->height, (long long)s[3], (long long)s[2]);
    copy_slice(image, (*volume)->values + z * s[2] * s[3]);
    return TERN_OK;
}

/* Returns the volume, or frees it after an error. */
static tern_volume *slices_finish(tern_volume *volume, tern_image *image, int status)
{
    tern_image_free(image);
    if (!status) return volume;
    tern_volume_free(volume);
    return NULL;
}

static tern_image_opts grey(void)
{
    tern_image_opts opts = tern_image_defaults();
    opts.channels = 1;
    return opts;
}

tern_volume *tern__pages_load(const char *path, tern_error *err)
{
    tern_image_opts opts = grey();
    tern_image image = {0};
    tern_volume *volume = NULL;
    int status = tern_image_probe(path, &opts, &image, err);
    int64_t pages = image.pages;
    for (; !status && opts.page < pages; opts.page++) {
        status = tern_image_load(path, &opts, &image, err);
        if (!status) status = add_slice(&volume, &image, path, opts.page, pages, err);
    }
    return slices_finish(volume, &image, status);
}

tern_volume *tern__folder_load(const char *folder, tern_error *err)
{
    tern__files slices = {0};
    tern_image_opts opts = grey();
    tern_image image = {0};
    tern_volume *volume = NULL;
    int status = list_slices(folder, &slices, err);
    for (int64_t i = 0; !status && i < slices.count; i++) {
        const char *path = slices.file[i].path;
        status = tern_image_load(path, &opts, &image, err);
        if (!status) status = add_slice(&volume, &image, path, i, slices.count, err);
    }
    tern__files_free(&slices);
    return slices_finish(volume, &image, status);
}
