/* image.c - loads an image, or only its header. */
#include "base/opts.h"
#include "image/reader.h"

tern_image_opts tern_image_defaults(void)
{
    return (tern_image_opts){.size = sizeof(tern_image_opts), .pixels_most = (int64_t)1 << 28};
}

static int image_check_opts(const tern_image_opts *opts, const char *func, tern_error *err)
{
    if (opts->channels != 0 && opts->channels != 1 && opts->channels != 3)
        return tern__error_set(err, func, TERN_E_RANGE, "channels is %d, expected 0, 1 or 3", opts->channels);
    if (opts->pixels_most < 1 || opts->pixels_most > (int64_t)1 << 40)
        return tern__error_set(err, func, TERN_E_RANGE, "pixels_most is %lld, expected [1, 2^40]",
                               (long long)opts->pixels_most);
    if (opts->indices && opts->channels == 3)
        return tern__error_set(err, func, TERN_E_INVALID, "indices have one channel, not 3");
    return TERN_OK;
}

static int image_load(const char *path, const tern_image_opts *user, bool pixels, tern_image *image,
                      const char *func, tern_error *err)
{
    tern_error own = {0};
    tern__image_reader reader = {0};
    tern_image_opts opts = tern_image_defaults();
    if (!err) err = &own;
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, func, err) ||
        image_check_opts(&opts, func, err) || tern__need(path, "path", func, err) ||
        tern__need(image, "image", func, err))
        return err->code;
    if (!tern__image_begin(&reader, path, &opts, image, func, err)) {
        if (pixels)
            tern__image_read(&reader, path, &opts, 0, image->height, image, func, err);
        else if (opts.channels)
            image->channels = opts.channels;
    }
    tern__image_reader_free(&reader);
    return err->code;
}

int tern_image_load(const char *path, const tern_image_opts *opts, tern_image *image, tern_error *err)
{
    return image_load(path, opts, true, image, __func__, err);
}

int tern_image_probe(const char *path, const tern_image_opts *opts, tern_image *image, tern_error *err)
{
    return image_load(path, opts, false, image, __func__, err);
}

void tern_image_free(tern_image *image)
{
    if (!image) return;
    tern__free(image->data);
    *image = (tern_image){0};
}
