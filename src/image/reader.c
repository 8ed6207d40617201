/* reader.c - reads an image file: finds the decoder by the first bytes, decodes, and converts to the number
 * of channels asked for. */
#include "image/reader.h"

#include "base/file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* ---- the file ---- */

static void close_file(tern__image_reader *reader)
{
    if (reader->is_open) close(reader->fd);
    reader->is_open = false;
}

static int reader_open_file(tern__image_reader *reader, const char *path, const char *func, tern_error *err)
{
    struct stat about;
    close_file(reader);
    reader->fd = tern__file_open(path, O_RDONLY, 0, &about, func, err);
    if (reader->fd < 0) return TERN_E_IO;
    reader->is_open = true;
    reader->size = (size_t)about.st_size;
    return TERN_OK;
}

static int find_plugin(tern__image_reader *reader, const char *path, const char *func, tern_error *err)
{
    static const struct {
        const char *magic;
        size_t size;
        tern__plugin plugin;
    } kinds[] = {{"\xff\xd8\xff", 3, TERN__PLUGIN_JPEG}, {"\x89PNG", 4, TERN__PLUGIN_PNG},
                 {"II*\0", 4, TERN__PLUGIN_TIFF},        {"MM\0*", 4, TERN__PLUGIN_TIFF},
                 {"II+\0", 4, TERN__PLUGIN_TIFF},        {"MM\0+", 4, TERN__PLUGIN_TIFF}};
    char first[4] = "";
    size_t count = TERN__MIN(reader->size, sizeof(first));
    int status = tern__file_read(reader->fd, path, 0, first, count, func, err);
    if (status) return status;
    for (size_t i = 0; i < TERN__COUNT(kinds); i++)
        if (count >= kinds[i].size && !memcmp(first, kinds[i].magic, kinds[i].size)) {
            reader->plugin = kinds[i].plugin;
            return TERN_OK;
        }
    return tern__error_set(err, func, TERN_E_FORMAT, "%s is %s: expected a JPEG, PNG or TIFF", path,
                           count ? "not an image" : "empty");
}

static int make_file_room(tern__image_reader *reader, const char *func, tern_error *err)
{
    if (reader->room >= reader->size) return TERN_OK;
    tern__free(reader->bytes);
    reader->room = reader->size + reader->size / 2;
    reader->bytes = tern__alloc(reader->room, func, err);
    if (reader->bytes) return TERN_OK;
    reader->room = 0;
    return TERN_E_MEMORY;
}

static int reader_read_file(tern__image_reader *reader, const char *path, const char *func, tern_error *err)
{
    int status = make_file_room(reader, func, err);
    return status ? status : tern__file_read(reader->fd, path, 0, reader->bytes, reader->size, func, err);
}

/* ---- the decoder ---- */

static int reader_fail(int status, const char *path, const char *why, const char *func, tern_error *err)
{
    return tern__error_set(err, func, status, "%s: %s", path, *why ? why : "the file is damaged");
}

static int check_form(const char *path, const tern_image_opts *opts, const tern_image *image,
                      const char *func, tern_error *err)
{
    if (image->height > opts->pixels_most / image->width)
        return tern__error_set(err, func, TERN_E_RANGE,
                               "%s has %lld x %lld pixels according to its header, expected at most %lld",
                               path, (long long)image->height, (long long)image->width,
                               (long long)opts->pixels_most);
    if (opts->indices && image->channels != 1)
        return tern__error_set(err, func, TERN_E_FORMAT, "%s is a colour image, expected a map of labels",
                               path);
    return TERN_OK;
}

/* Reads the whole file, unless the plug-in reads it itself: a TIFF may have gigabytes, of which one page is
 * wanted. */
static int reader_begin(tern__image_reader *reader, const char *path, const tern_image_opts *opts,
                        tern_image *image, const char *func, tern_error *err)
{
    char why[TERN_ERROR_TEXT] = "";
    int status = find_plugin(reader, path, func, err);
    if (status) return status;
    const tern_image_codec *codec = tern__plugin_get(reader->plugin, path, func, err);
    if (!codec) return TERN_E_UNSUPPORTED;
    if (!codec->reads) status = reader_read_file(reader, path, func, err);
    if (status) return status;
    void **decoder = &reader->decoders[reader->plugin];
    if (!*decoder) *decoder = codec->decoder_new();
    if (!*decoder) return tern__error_set(err, func, TERN_E_MEMORY, "%s: no memory to decode it", path);
    tern_image_request request = {codec->reads ? NULL : reader->bytes, reader->size, reader->fd, *opts};
    status = codec->begin(*decoder, &request, image, why, sizeof(why));
    return status ? reader_fail(status, path, why, func, err) : check_form(path, opts, image, func, err);
}

int tern__image_begin(tern__image_reader *reader, const char *path, const tern_image_opts *opts,
                      tern_image *image, const char *func, tern_error *err)
{
    int status = reader_open_file(reader, path, func, err);
    if (!status) status = reader_begin(reader, path, opts, image, func, err);
    if (status) close_file(reader);
    return status;
}

void tern__image_reader_free(tern__image_reader *reader)
{
    for (tern__plugin i = 0; i < TERN__PLUGIN_COUNT; i++) {
        if (!reader->decoders[i]) continue;
        const tern_image_codec *codec = tern__plugin_get(i, NULL, __func__, NULL);
        codec->decoder_free(reader->decoders[i]);
    }
    close_file(reader);
    tern__free(reader->bytes);
    *reader = (tern__image_reader){0};
}

/* ---- pixels ---- */

static size_t reader_sample_bytes(const tern_image *image)
{
    static const size_t bytes[] = {[TERN_IMAGE_U8] = 1, [TERN_IMAGE_U16] = 2, [TERN_IMAGE_F32] = 4};
    return bytes[image->sample];
}

/* Allocates a few bytes more than the pixels, since tern__resize_u8 reads pixels as words. The pixels are not
 * filled: a damaged file then takes only as much memory as it has pixels. */
static int reader_make_room(const char *path, int channels, tern_image *image, const char *func,
                            tern_error *err)
{
    enum { SPARE = 8 };
    size_t bytes;
    if (__builtin_mul_overflow((size_t)image->height * (size_t)image->width,
                               (size_t)channels * reader_sample_bytes(image), &bytes) ||
        __builtin_add_overflow(bytes, SPARE, &bytes))
        return tern__error_set(err, func, TERN_E_RANGE, "%s: %lld x %lld pixels", path,
                               (long long)image->height, (long long)image->width);
    if (image->data && image->bytes >= bytes) return TERN_OK;
    tern__free(image->data);
    image->data = tern__alloc_raw(bytes, TERN__LINE);
    image->bytes = image->data ? bytes : 0;
    if (!image->data) return tern__error_set(err, func, TERN_E_MEMORY, "%s: no memory for its pixels", path);
    memset((char *)image->data + bytes - SPARE, 0, SPARE);
    return TERN_OK;
}

/* Rec. 601 luma in fixed point with 16 fraction bits: the weights of Pillow's convert("L"). */
#define DEFINE_FORM(type, grey)                                                                              \
    static void to_grey_##type(type *data, size_t count)                                                     \
    {                                                                                                        \
        for (size_t i = 0; i < count; i++) {                                                                 \
            const type *p = data + 3 * i;                                                                    \
            data[i] = (type)(grey);                                                                          \
        }                                                                                                    \
    }                                                                                                        \
    static void to_rgb_##type(type *data, size_t count)                                                      \
    {                                                                                                        \
        for (size_t i = count; i-- > 0;) data[3 * i] = data[3 * i + 1] = data[3 * i + 2] = data[i];          \
    }

#define LUMA ((p[0] * UINT64_C(19595) + p[1] * UINT64_C(38470) + p[2] * UINT64_C(7471) + 0x8000) >> 16)
DEFINE_FORM(uint8_t, LUMA)
DEFINE_FORM(uint16_t, LUMA)
DEFINE_FORM(float, p[0] * 0.299f + p[1] * 0.587f + p[2] * 0.114f)

static void to_grey(tern_image *image, size_t count)
{
    if (image->sample == TERN_IMAGE_U8) to_grey_uint8_t(image->data, count);
    if (image->sample == TERN_IMAGE_U16) to_grey_uint16_t(image->data, count);
    if (image->sample == TERN_IMAGE_F32) to_grey_float(image->data, count);
}

static void to_rgb(tern_image *image, size_t count)
{
    if (image->sample == TERN_IMAGE_U8) to_rgb_uint8_t(image->data, count);
    if (image->sample == TERN_IMAGE_U16) to_rgb_uint16_t(image->data, count);
    if (image->sample == TERN_IMAGE_F32) to_rgb_float(image->data, count);
}

static int decode(tern__image_reader *reader, const char *path, int64_t top, int64_t rows,
                  const tern_image *image, const char *func, tern_error *err)
{
    char why[TERN_ERROR_TEXT] = "";
    const tern_image_codec *codec = tern__plugin_get(reader->plugin, path, func, err);
    int status = codec->read(reader->decoders[reader->plugin], top, rows, image, why, sizeof(why));
    return status ? reader_fail(status, path, why, func, err) : TERN_OK;
}

int tern__image_read(tern__image_reader *reader, const char *path, const tern_image_opts *opts, int64_t top,
                     int64_t rows, tern_image *image, const char *func, tern_error *err)
{
    int wanted = opts->channels ? opts->channels : image->channels;
    int status = reader_make_room(path, TERN__MAX(wanted, image->channels), image, func, err);
    if (!status) status = decode(reader, path, top, rows, image, func, err);
    close_file(reader);
    if (status) return status;
    size_t count = (size_t)image->height * (size_t)image->width;
    if (wanted < image->channels) to_grey(image, count);
    if (wanted > image->channels) to_rgb(image, count);
    image->channels = wanted;
    return TERN_OK;
}
