/* png.c - the PNG plug-in, with libpng. On an error libpng jumps (longjmp) to the start of the plug-in's
 * function. So everything to be freed is in the codec, and no local variable has to survive the jump. */
#include <tern/backend/image.h>

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct codec {
    jmp_buf out;
    png_structp png;
    png_infop info;
    const uint8_t *from; /* decoding: the next byte to read */
    uint8_t *to;         /* encoding: where to write next   */
    size_t left;
    int passes;
    char *why;
    size_t why_size;
} codec;

static void png_fail(png_structp png, png_const_charp text)
{
    codec *c = png_get_error_ptr(png);
    snprintf(c->why, c->why_size, "%s", text);
    longjmp(c->out, 1);
}

static void ignore(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

/* ---- decoding ---- */

static void *png_decoder_new(void)
{
    return calloc(1, sizeof(codec));
}

static void png_finish(codec *c)
{
    if (c->png) png_destroy_read_struct(&c->png, &c->info, NULL);
}

static void png_decoder_free(void *decoder)
{
    png_finish(decoder);
    free(decoder);
}

static void png_take(png_structp png, png_bytep to, size_t bytes)
{
    codec *c = png_get_io_ptr(png);
    if (bytes > c->left) png_error(png, "the file is truncated");
    memcpy(to, c->from, bytes);
    c->from += bytes;
    c->left -= bytes;
}

static int open_reader(codec *c, const tern_image_request *request)
{
    png_finish(c);
    c->from = request->bytes;
    c->left = request->size;
    c->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, c, png_fail, ignore);
    if (c->png) c->info = png_create_info_struct(c->png);
    return c->info ? 0 : TERN_E_MEMORY;
}

/* Makes libpng return 1 or 3 channels, of bytes or of native 16-bit samples. */
static void set_form(codec *c, bool indices)
{
    int type = png_get_color_type(c->png, c->info), bits = png_get_bit_depth(c->png, c->info);
    if (type == PNG_COLOR_TYPE_PALETTE && !indices) png_set_palette_to_rgb(c->png);
    if (type == PNG_COLOR_TYPE_GRAY && bits < 8 && !indices) png_set_expand_gray_1_2_4_to_8(c->png);
    if (bits < 8) png_set_packing(c->png);
    if (bits == 16) png_set_swap(c->png);
    png_set_strip_alpha(c->png);
    c->passes = png_set_interlace_handling(c->png);
    png_read_update_info(c->png, c->info);
}

/* Returns the bytes of all rows before they are packed. */
static uint64_t plain_bytes(const codec *c)
{
    uint64_t width = png_get_image_width(c->png, c->info), height = png_get_image_height(c->png, c->info);
    uint64_t bits = (uint64_t)png_get_channels(c->png, c->info) * png_get_bit_depth(c->png, c->info),
             total = 0;
    if (png_get_interlace_type(c->png, c->info) == PNG_INTERLACE_NONE)
        return ((width * bits + 7) / 8 + 1) * height;
    for (int pass = 0; pass < PNG_INTERLACE_ADAM7_PASSES; pass++) {
        uint64_t columns = PNG_PASS_COLS(width, pass);
        if (columns) total += ((columns * bits + 7) / 8 + 1) * PNG_PASS_ROWS(height, pass);
    }
    return total;
}

/* Returns the bytes in the file's IDAT chunks. */
static uint64_t packed_bytes(const tern_image_request *request)
{
    enum { SIGNATURE = 8, AROUND = 12 /* length, type, checksum */ };
    uint64_t total = 0;
    for (size_t at = SIGNATURE, bytes; request->size - at >= AROUND; at += AROUND + bytes) {
        const uint8_t *chunk = request->bytes + at;
        size_t left = request->size - at - AROUND, claimed = png_get_uint_32(chunk);
        bytes = claimed < left ? claimed : left;
        if (!memcmp(chunk + 4, "IDAT", 4)) total += bytes;
    }
    return total;
}

/* Checks that the file can hold the rows, so that a damaged header allocates nothing. */
static int check_png_size(const codec *c, const tern_image_request *request)
{
    enum { RATIO_MOST = 1032 /* deflate expands a byte to at most this many */ };
    uint64_t packed = packed_bytes(request);
    if (plain_bytes(c) / RATIO_MOST <= packed) return 0;
    snprintf(c->why, c->why_size, "its header claims %u x %u pixels, for which %llu bytes are too few",
             (unsigned)png_get_image_height(c->png, c->info), (unsigned)png_get_image_width(c->png, c->info),
             (unsigned long long)packed);
    return TERN_E_FORMAT;
}

static int png_begin(void *decoder, const tern_image_request *request, tern_image *image, char *why,
                     size_t why_size)
{
    codec *c = decoder;
    c->why = why;
    c->why_size = why_size;
    if (setjmp(c->out)) return TERN_E_FORMAT;
    int status = open_reader(c, request);
    if (status) return status;
    png_set_user_limits(c->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_read_fn(c->png, c, png_take);
    png_read_info(c->png, c->info);
    image->height = png_get_image_height(c->png, c->info);
    image->width = png_get_image_width(c->png, c->info);
    if (image->height > request->opts.pixels_most / image->width)
        return 0; /* too large: the caller refuses it */
    status = check_png_size(c, request);
    if (status) return status;
    set_form(c, request->opts.indices);
    image->channels = png_get_channels(c->png, c->info);
    image->sample = png_get_bit_depth(c->png, c->info) == 16 ? TERN_IMAGE_U16 : TERN_IMAGE_U8;
    image->pages = 1;
    return 0;
}

/* Reads all rows: an interlaced image is complete only after the last pass, and any other can be decoded only
 * from the first row on. */
static int read_png(void *decoder, int64_t top, int64_t rows, const tern_image *image, char *why,
                    size_t why_size)
{
    (void)top;
    (void)rows;
    codec *c = decoder;
    c->why = why;
    c->why_size = why_size;
    if (setjmp(c->out)) return TERN_E_FORMAT;
    size_t row = png_get_rowbytes(c->png, c->info);
    for (int pass = 0; pass < c->passes; pass++)
        for (int64_t y = 0; y < image->height; y++)
            png_read_row(c->png, (png_bytep)image->data + (size_t)y * row, NULL);
    png_read_end(c->png, NULL);
    png_finish(c);
    return 0;
}

/* ---- encoding ---- */

static void png_put(png_structp png, png_bytep from, size_t bytes)
{
    codec *c = png_get_io_ptr(png);
    if (bytes > c->left) png_error(png, "the output buffer is too small");
    memcpy(c->to, from, bytes);
    c->to += bytes;
    c->left -= bytes;
}

static void flush(png_structp png)
{
    (void)png;
}

static size_t row_bytes(const tern_image *image)
{
    return (size_t)image->width * (size_t)image->channels * (image->sample == TERN_IMAGE_U16 ? 2 : 1);
}

/* Returns zlib's bound for any window, plus a chunk's header and end for every 8 KiB, plus what precedes the
 * pixels. */
static size_t encode_most(const tern_image *image)
{
    size_t plain = (row_bytes(image) + 1) * (size_t)image->height;
    size_t packed = plain + ((plain + 7) >> 3) + ((plain + 63) >> 6) + 11;
    return packed + 12 * (packed / 8192 + 1) + 2048;
}

static void put_head(codec *c, const tern_image *image, const tern_image_save_opts *opts)
{
    static const int types[5] = {[1] = PNG_COLOR_TYPE_GRAY, [3] = PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
    png_color colours[256];
    for (int i = 0; opts->palette && i < opts->colours; i++) {
        const uint8_t *from = opts->palette + 3 * i;
        colours[i] = (png_color){from[0], from[1], from[2]};
    }
    png_set_IHDR(c->png, c->info, (png_uint_32)image->width, (png_uint_32)image->height,
                 image->sample == TERN_IMAGE_U16 ? 16 : 8,
                 opts->palette ? PNG_COLOR_TYPE_PALETTE : types[image->channels], PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (opts->palette) png_set_PLTE(c->png, c->info, colours, opts->colours);
    png_write_info(c->png, c->info);
    if (image->sample == TERN_IMAGE_U16) png_set_swap(c->png);
}

static int write_image(codec *c, const tern_image *image, const tern_image_save_opts *opts)
{
    if (setjmp(c->out)) return TERN_E_INVALID;
    c->png = png_create_write_struct(PNG_LIBPNG_VER_STRING, c, png_fail, ignore);
    if (c->png) c->info = png_create_info_struct(c->png);
    if (!c->info) return TERN_E_MEMORY;
    png_set_write_fn(c->png, c, png_put, flush);
    put_head(c, image, opts);
    for (int64_t y = 0; y < image->height; y++)
        png_write_row(c->png, (png_const_bytep)image->data + (size_t)y * row_bytes(image));
    png_write_end(c->png, NULL);
    return 0;
}

static int encode(const tern_image *image, const tern_image_save_opts *opts, void *out, size_t *bytes,
                  char *why, size_t why_size)
{
    codec c = {.to = out, .left = *bytes, .why = why, .why_size = why_size};
    int status = write_image(&c, image, opts);
    if (c.png) png_destroy_write_struct(&c.png, &c.info);
    *bytes -= c.left;
    return status;
}

TERN_API extern const tern_image_codec tern_image_plugin;
const tern_image_codec tern_image_plugin = {.abi = TERN_IMAGE_ABI,
                                            .size = sizeof(tern_image_codec),
                                            .name = "libpng",
                                            .decoder_new = png_decoder_new,
                                            .decoder_free = png_decoder_free,
                                            .begin = png_begin,
                                            .read = read_png,
                                            .encode_most = encode_most,
                                            .encode = encode};
