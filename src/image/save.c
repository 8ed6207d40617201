/* save.c - saves an image as PNG. */
#include "base/file.h"
#include "base/opts.h"
#include "image/reader.h"

static const char FUNC[] = "tern_image_save";

tern_image_save_opts tern_image_save_defaults(void)
{
    return (tern_image_save_opts){.size = sizeof(tern_image_save_opts)};
}

static int save_check_image(const char *path, const tern_image *image, tern_error *err)
{
    if (tern__need(path, "path", FUNC, err) || tern__need(image, "image", FUNC, err) ||
        tern__need(image->data, "image's data", FUNC, err))
        return TERN_E_INVALID;
    bool u8 = image->sample == TERN_IMAGE_U8, u16 = image->sample == TERN_IMAGE_U16;
    bool known = image->channels == 1 || image->channels == 3 || (u8 && image->channels == 4);
    if (image->height < 1 || image->width < 1 || image->height > INT32_MAX || image->width > INT32_MAX)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "%s: cannot save %lld x %lld pixels", path,
                               (long long)image->height, (long long)image->width);
    if ((!u8 && !u16) || !known)
        return tern__error_set(err, FUNC, TERN_E_INVALID,
                               "%s: expected u8 or u16 samples of 1 or 3 channels, or u8 of 4; got %s of %d",
                               path,
                               u8    ? "u8"
                               : u16 ? "u16"
                                     : "f32",
                               image->channels);
    return TERN_OK;
}

static int check_palette(const char *path, const tern_image *image, const tern_image_save_opts *opts,
                         tern_error *err)
{
    if (!opts->palette) return TERN_OK;
    if (image->channels != 1 || image->sample != TERN_IMAGE_U8)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "%s: a palette is for u8 indices of one channel",
                               path);
    if (opts->colours < 1 || opts->colours > 256)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "%s: the palette has %d colours, expected [1, 256]",
                               path, opts->colours);
    const uint8_t *index = image->data;
    for (int64_t i = 0; i < image->height * image->width; i++)
        if (index[i] >= opts->colours)
            return tern__error_set(
                err, FUNC, TERN_E_RANGE, "%s: index %d at (%lld, %lld), but the palette has %d colours", path,
                index[i], (long long)(i / image->width), (long long)(i % image->width), opts->colours);
    return TERN_OK;
}

static int save_write_file(const char *path, const void *data, size_t bytes, tern_error *err)
{
    tern__output out;
    int status = tern__output_open(&out, path, FUNC, err);
    if (status) return status;
    status = tern__output_write(&out, data, bytes, err);
    return tern__output_close(&out, status, false, err);
}

static int save_encode(const char *path, const tern_image *image, const tern_image_save_opts *opts,
                       tern_error *err)
{
    char why[TERN_ERROR_TEXT] = "";
    const tern_image_codec *png = tern__plugin_get(TERN__PLUGIN_PNG, path, FUNC, err);
    if (!png) return TERN_E_UNSUPPORTED;
    size_t bytes = png->encode_most(image);
    void *out = tern__alloc(bytes, FUNC, err);
    if (!out) return TERN_E_MEMORY;
    int status = png->encode(image, opts, out, &bytes, why, sizeof(why));
    status = status ? tern__error_set(err, FUNC, status, "%s: %s", path, why)
                    : save_write_file(path, out, bytes, err);
    tern__free(out);
    return status;
}

int tern_image_save(const char *path, const tern_image *image, const tern_image_save_opts *user,
                    tern_error *err)
{
    tern_image_save_opts opts = tern_image_save_defaults();
    if (tern__is_set(err)) return err->code;
    int status = tern__opts_read(&opts, sizeof(opts), user, FUNC, err);
    if (!status) status = save_check_image(path, image, err);
    if (!status) status = check_palette(path, image, &opts, err);
    return status ? status : save_encode(path, image, &opts, err);
}
