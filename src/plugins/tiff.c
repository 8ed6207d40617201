/* tiff.c - the TIFF plug-in, with libtiff. Pages of plain 8-bit, 16-bit and f32 samples, grey or RGB, in
 * strips or tiles, are read as they are. libtiff converts other pages of at most 8 bits per sample (palettes,
 * bilevel, YCbCr ..) to RGBA. Images are turned upright by their Orientation tag, as in Pillow. */
#include <tern/backend/image.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tiffio.h>
#include <unistd.h>

#define AHEAD 8192

typedef struct decoder {
    TIFF *tiff;
    int fd;
    size_t size, at;
    bool lost; /* the file could not be read */
    uint8_t ahead[AHEAD];
    size_t ahead_at, ahead_bytes; /* which bytes of the file `ahead` has */
    uint16_t samples, bits, format, photometric, planar, orientation, compression;
    size_t height, width;          /* as stored                                                     */
    ptrdiff_t origin, down, right; /* where the first stored pixel goes in the image, and the steps
                                      to the next stored row and column, in pixels                  */
    bool plain;                    /* samples are copied, not converted by libtiff                  */
    size_t most;                   /* bytes per allocation, at most                                 */
    char *why;
    size_t why_size;
} decoder;

/* ---- the file ---- */

/* Records why reading the file failed, whatever libtiff reports. Returns false. */
static bool lose(decoder *d, bool ended)
{
    d->lost = true;
    if (ended)
        snprintf(d->why, d->why_size, "it became shorter while it was read, expected %zu bytes", d->size);
    else
        snprintf(d->why, d->why_size, "cannot read the file: %m");
    return false;
}

static bool read_at(decoder *d, size_t at, void *to, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = pread(d->fd, (char *)to + got, bytes - got, (off_t)(at + got));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return lose(d, n == 0);
        got += (size_t)n;
    }
    return true;
}

/* Reads a block and serves small reads from it: strips may have one row, and fields have a few bytes. */
static bool read_ahead(decoder *d, void *to, size_t bytes)
{
    size_t into = d->at - d->ahead_at; /* wraps to a large value if `at` is before the block */
    if (into > d->ahead_bytes || d->ahead_bytes - into < bytes) {
        size_t some = d->size - d->at < AHEAD ? d->size - d->at : AHEAD;
        d->ahead_bytes = 0;
        if (!read_at(d, d->at, d->ahead, some)) return false;
        d->ahead_at = d->at;
        d->ahead_bytes = some;
        into = 0;
    }
    memcpy(to, d->ahead + into, bytes);
    return true;
}

/* Returns 0 bytes after a failure, not -1: libtiff 4.5 uses -1 as a length and writes before its buffer. */
static tmsize_t file_read(thandle_t handle, void *to, tmsize_t bytes)
{
    decoder *d = handle;
    size_t left = d->at < d->size ? d->size - d->at : 0;
    size_t taken = (size_t)bytes < left ? (size_t)bytes : left;
    if (!taken || !(taken < AHEAD ? read_ahead(d, to, taken) : read_at(d, d->at, to, taken))) return 0;
    d->at += taken;
    return (tmsize_t)taken;
}

static tmsize_t file_write(thandle_t handle, void *from, tmsize_t bytes)
{
    (void)handle;
    (void)from;
    (void)bytes;
    return -1;
}

static toff_t file_seek(thandle_t handle, toff_t to, int whence)
{
    decoder *d = handle;
    d->at = whence == SEEK_SET ? to : to + (whence == SEEK_CUR ? d->at : d->size);
    return d->at;
}

static int file_close(thandle_t handle)
{
    (void)handle;
    return 0;
}

static toff_t file_size(thandle_t handle)
{
    return ((decoder *)handle)->size;
}

/* Keeps the first error, which says most. */
static int message_note(TIFF *tiff, void *data, const char *module, const char *format, va_list args)
{
    (void)tiff;
    (void)module;
    decoder *d = data;
    if (d->why && !*d->why) vsnprintf(d->why, d->why_size, format, args);
    return 1;
}

static int ignore(TIFF *tiff, void *data, const char *module, const char *format, va_list args)
{
    (void)tiff;
    (void)data;
    (void)module;
    (void)format;
    (void)args;
    return 1;
}

static void tiff_finish(decoder *d)
{
    if (d->tiff) TIFFClose(d->tiff);
    d->tiff = NULL;
}

static void *tiff_decoder_new(void)
{
    return calloc(1, sizeof(decoder));
}

static void tiff_decoder_free(void *data)
{
    tiff_finish(data);
    free(data);
}

static int open_file(decoder *d, const tern_image_request *request)
{
    tiff_finish(d);
    d->fd = request->fd;
    d->size = request->size;
    d->at = d->ahead_bytes = 0;
    d->lost = false;
    d->most = (size_t)request->opts.pixels_most * 16;
    TIFFOpenOptions *options = TIFFOpenOptionsAlloc();
    if (!options) return TERN_E_MEMORY;
    TIFFOpenOptionsSetErrorHandlerExtR(options, message_note, d);
    TIFFOpenOptionsSetWarningHandlerExtR(options, ignore, NULL);
    TIFFOpenOptionsSetMaxSingleMemAlloc(options, (tmsize_t)d->most);
    d->tiff = TIFFClientOpenExt("picture", "rm", d, file_read, file_write, file_seek, file_close, file_size,
                                NULL, NULL, options);
    TIFFOpenOptionsFree(options);
    return d->tiff ? 0 : TERN_E_FORMAT;
}

/* ---- the page ---- */

static int go_to_page(decoder *d, int64_t page, int64_t pages)
{
    if (page < 0 || page >= pages) {
        snprintf(d->why, d->why_size, "page is %lld, expected [0, %lld)", (long long)page, (long long)pages);
        return TERN_E_RANGE;
    }
    return TIFFSetDirectory(d->tiff, (tdir_t)page) ? 0 : TERN_E_FORMAT;
}

static bool has_plain_samples(const decoder *d)
{
    if (d->format == SAMPLEFORMAT_IEEEFP) return d->bits == 32;
    return d->format == SAMPLEFORMAT_UINT && (d->bits == 8 || d->bits == 16);
}

static int channels_of(const decoder *d)
{
    bool is_grey = d->photometric == PHOTOMETRIC_MINISBLACK || d->photometric == PHOTOMETRIC_MINISWHITE;
    return is_grey || (d->plain && d->photometric == PHOTOMETRIC_PALETTE) ? 1 : 3;
}

/* Orientations 2, 3, 6 and 7 start at the right, 3, 4, 7 and 8 at the bottom; from 5 on a stored row is a
 * column of the image. */
static void tiff_place(decoder *d, tern_image *image)
{
    bool at_right = d->orientation & 2, at_bottom = (d->orientation - 1) & 2;
    bool is_turned = d->orientation >= ORIENTATION_LEFTTOP;
    image->height = (int64_t)(is_turned ? d->width : d->height);
    image->width = (int64_t)(is_turned ? d->height : d->width);
    ptrdiff_t across = at_right ? -1 : 1, along = at_bottom ? -image->width : image->width;
    d->origin = (at_right ? image->width - 1 : 0) + (at_bottom ? (image->height - 1) * image->width : 0);
    d->down = is_turned ? across : along;
    d->right = is_turned ? along : across;
}

/* Returns the name in TIFF 6.0. */
static const char *photometric_name(int photometric)
{
    static const char *const names[] = {"MINISWHITE", "MINISBLACK", "RGB",    "PALETTE", "MASK",
                                        "SEPARATED",  "YCBCR",      "(none)", "CIELAB"};
    size_t count = sizeof(names) / sizeof(*names);
    return photometric >= 0 && (size_t)photometric < count ? names[photometric] : "unknown";
}

static int read_fields(decoder *d, tern_image *image, bool indices)
{
    uint32_t height = 0, width = 0;
    char text[1024];
    TIFFGetField(d->tiff, TIFFTAG_IMAGELENGTH, &height);
    TIFFGetField(d->tiff, TIFFTAG_IMAGEWIDTH, &width);
    TIFFGetFieldDefaulted(d->tiff, TIFFTAG_SAMPLESPERPIXEL, &d->samples);
    TIFFGetFieldDefaulted(d->tiff, TIFFTAG_BITSPERSAMPLE, &d->bits);
    TIFFGetFieldDefaulted(d->tiff, TIFFTAG_SAMPLEFORMAT, &d->format);
    TIFFGetFieldDefaulted(d->tiff, TIFFTAG_PLANARCONFIG, &d->planar);
    TIFFGetFieldDefaulted(d->tiff, TIFFTAG_ORIENTATION, &d->orientation);
    TIFFGetFieldDefaulted(d->tiff, TIFFTAG_COMPRESSION, &d->compression);
    if (!height || !width || !TIFFGetField(d->tiff, TIFFTAG_PHOTOMETRIC, &d->photometric))
        return TERN_E_FORMAT;
    d->plain = has_plain_samples(d) && (d->photometric == PHOTOMETRIC_MINISBLACK ||
                                        (d->photometric == PHOTOMETRIC_RGB && d->samples >= 3) ||
                                        (d->photometric == PHOTOMETRIC_PALETTE && d->bits == 8 && indices));
    d->height = height;
    d->width = width;
    tiff_place(d, image);
    image->channels = channels_of(d);
    image->sample =
        !d->plain || d->bits == 8 ? TERN_IMAGE_U8 : (d->bits == 16 ? TERN_IMAGE_U16 : TERN_IMAGE_F32);
    if (d->plain && !TIFFIsCODECConfigured(d->compression)) {
        snprintf(d->why, d->why_size, "libtiff has no decoder for its compression %d", d->compression);
        return TERN_E_UNSUPPORTED;
    }
    if (d->plain || (d->format == SAMPLEFORMAT_UINT && d->bits <= 8 && TIFFRGBAImageOK(d->tiff, text)))
        return 0;
    snprintf(d->why, d->why_size,
             "%d-bit samples of format %d, photometric %d (%s): expected 8 or 16 bits or f32, in grey "
             "(MINISBLACK) or colours (RGB)",
             d->bits, d->format, d->photometric, photometric_name(d->photometric));
    return TERN_E_UNSUPPORTED;
}

static int begin_page(decoder *d, const tern_image_request *request, tern_image *image)
{
    int status = open_file(d, request);
    if (status) return status;
    image->pages = TIFFNumberOfDirectories(d->tiff);
    status = go_to_page(d, request->opts.page, image->pages);
    return status ? status : read_fields(d, image, request->opts.indices);
}

static int tiff_begin(void *data, const tern_image_request *request, tern_image *image, char *why,
                      size_t why_size)
{
    decoder *d = data;
    d->why = why;
    d->why_size = why_size;
    int status = begin_page(d, request, image);
    return d->lost ? TERN_E_IO : status;
}

/* ---- plain samples ---- */

/* Copies `count` pixels of `take` samples. Pixels are `step` samples apart in `from` and `stride` samples in
 * `to`. */
static void pixels_copy(const decoder *d, const uint8_t *from, size_t step, uint8_t *to, ptrdiff_t stride,
                        size_t take, size_t count)
{
    size_t bytes = d->bits / 8;
    if (step == take && stride == (ptrdiff_t)take)
        memcpy(to, from, count * take * bytes);
    else
        for (size_t i = 0; i < count; i++)
            memcpy(to + (ptrdiff_t)(i * bytes) * stride, from + i * step * bytes, take * bytes);
}

/* Returns where the stored pixel (y, x) goes in the image. */
static uint8_t *pixel(const decoder *d, const tern_image *image, size_t y, size_t x)
{
    ptrdiff_t at = d->origin + (ptrdiff_t)y * d->down + (ptrdiff_t)x * d->right;
    return (uint8_t *)image->data + at * image->channels * (d->plain ? d->bits / 8 : 1);
}

/* Copies a rectangle of the page from a buffer with rows of `width` pixels. `plane` is -1 if a pixel's
 * samples are contiguous. */
static void tiff_put(const decoder *d, const tern_image *image, const uint8_t *from, size_t width, size_t x,
                     size_t y, size_t rows, int plane)
{
    size_t channels = (size_t)image->channels, bytes = d->bits / 8;
    size_t step = plane < 0 ? d->samples : 1, take = plane < 0 ? channels : 1;
    size_t columns = width < d->width - x ? width : d->width - x;
    for (size_t i = 0; i < rows && y + i < d->height; i++) {
        uint8_t *to = pixel(d, image, y + i, x) + (plane < 0 ? 0 : (size_t)plane) * bytes;
        pixels_copy(d, from + i * width * step * bytes, step, to, d->right * image->channels, take, columns);
    }
}

static int read_rows(decoder *d, const tern_image *image, uint8_t *buffer, int plane)
{
    for (uint32_t y = 0; y < d->height; y++) {
        if (TIFFReadScanline(d->tiff, buffer, y, plane < 0 ? 0 : (uint16_t)plane) < 0) return TERN_E_FORMAT;
        tiff_put(d, image, buffer, d->width, 0, y, 1, plane);
    }
    return 0;
}

static int read_tiles(decoder *d, const tern_image *image, uint8_t *buffer, int plane)
{
    uint32_t rows = 0, width = 0;
    TIFFGetField(d->tiff, TIFFTAG_TILELENGTH, &rows);
    TIFFGetField(d->tiff, TIFFTAG_TILEWIDTH, &width);
    for (size_t y = 0; y < d->height; y += rows)
        for (size_t x = 0; x < d->width; x += width) {
            if (TIFFReadTile(d->tiff, buffer, (uint32_t)x, (uint32_t)y, 0, plane < 0 ? 0 : (uint16_t)plane) <
                0)
                return TERN_E_FORMAT;
            tiff_put(d, image, buffer, width, x, y, rows, plane);
        }
    return 0;
}

static int read_plane(decoder *d, const tern_image *image, uint8_t *buffer, int plane)
{
    return TIFFIsTiled(d->tiff) ? read_tiles(d, image, buffer, plane) : read_rows(d, image, buffer, plane);
}

static int read_plain(decoder *d, const tern_image *image)
{
    tmsize_t bytes = TIFFIsTiled(d->tiff) ? TIFFTileSize(d->tiff) : TIFFScanlineSize(d->tiff);
    if (bytes <= 0 || (size_t)bytes > d->most) return TERN_E_FORMAT;
    uint8_t *buffer = malloc((size_t)bytes);
    if (!buffer) return TERN_E_MEMORY;
    int status = 0;
    if (d->planar == PLANARCONFIG_CONTIG || d->samples == 1)
        status = read_plane(d, image, buffer, -1);
    else
        for (int c = 0; c < image->channels && !status; c++) status = read_plane(d, image, buffer, c);
    free(buffer);
    return status;
}

/* ---- other samples, as RGBA ---- */

/* libtiff can mirror but not rotate, so this asks for pixels as they are stored, and places them itself. */
static int read_rgba(decoder *d, const tern_image *image)
{
    uint32_t *pixels = malloc(d->height * d->width * sizeof(*pixels)), *next = pixels;
    if (!pixels) return TERN_E_MEMORY;
    int is_read = TIFFReadRGBAImageOriented(d->tiff, (uint32_t)d->width, (uint32_t)d->height, pixels,
                                            d->orientation, 1);
    for (size_t y = 0; is_read && y < d->height; y++)
        for (size_t x = 0; x < d->width; x++, next++) {
            uint8_t *to = pixel(d, image, y, x);
            for (int c = 0; c < image->channels; c++) to[c] = (uint8_t)(*next >> (8 * c));
        }
    free(pixels);
    return is_read ? 0 : TERN_E_FORMAT;
}

static int read_page(void *data, int64_t top, int64_t rows, const tern_image *image, char *why,
                     size_t why_size)
{
    (void)top;
    (void)rows;
    decoder *d = data;
    d->why = why;
    d->why_size = why_size;
    int status = d->plain ? read_plain(d, image) : read_rgba(d, image);
    tiff_finish(d);
    return d->lost ? TERN_E_IO : status;
}

TERN_API extern const tern_image_codec tern_image_plugin;
const tern_image_codec tern_image_plugin = {.abi = TERN_IMAGE_ABI,
                                            .size = sizeof(tern_image_codec),
                                            .name = "libtiff",
                                            .reads = true,
                                            .decoder_new = tiff_decoder_new,
                                            .decoder_free = tiff_decoder_free,
                                            .begin = tiff_begin,
                                            .read = read_page};
