/* board_image.c - images: draws a tensor of images side by side into one image of bytes, and encodes that as
 * PNG. */
#include "report/board.h"

#include "base/opts.h"
#include "image/reader.h"

#include <math.h>
#include <string.h>

#define FUNC        "tern_board_image"
#define PIXELS_MOST ((int64_t)1 << 28)

tern_board_image_opts tern_board_image_defaults(void)
{
    return (tern_board_image_opts){.size = sizeof(tern_board_image_opts), .threshold = NAN, .across = 8};
}

/* ---- the tensor's pixels ---- */

enum { BATCH, CHANNEL, HEIGHT, WIDTH, DIMS };
static const char letters[] = "NCHW";

/* The pixels of a plain view; a dimension that the view does not have has size 1. */
typedef struct batch {
    tern__view pixel; /* a 0-d view that is moved from element to element */
    char *data;       /* the first element */
    int64_t size[DIMS], stride[DIMS];
} batch;

static const char *format_of(const tern_board_image_opts *opts, int ndim)
{
    static const char *const usual[TERN_NDIM_MAX + 1] = {[2] = "HW", "CHW", "NCHW", "NCDHW"};
    return opts->format ? opts->format : usual[ndim];
}

/* Each letter is one of NCDHW and occurs once; H and W are required. */
static bool is_format(const char *format)
{
    for (const char *c = format; *c; c++)
        if (!strchr("NCDHW", *c) || strchr(c + 1, *c)) return false;
    return strchr(format, 'H') && strchr(format, 'W');
}

static int check_format(const tern__view *view, const char *format, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    if (format && !is_format(format))
        return tern__error_set(err, FUNC, TERN_E_INVALID,
                               "format \"%s\": expected H, W and optionally N, C, D, each once", format);
    if (format && (int)strlen(format) == view->ndim) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_SHAPE, "the image has shape %s, expected %s",
                           tern__shape_text(view, shape), format ? format : "HW, CHW, NCHW or NCDHW");
}

static int find_pixels(batch *b, const tern__view *view, const char *format, int64_t slice, tern_error *err)
{
    *b = (batch){.pixel = {.dtype = view->dtype}, .data = view->data, .size = {1, 1, 1, 1}};
    for (int d = 0; d < view->ndim; d++) {
        const char *letter = strchr(letters, format[d]);
        if (letter) {
            b->size[letter - letters] = view->shape[d];
            b->stride[letter - letters] = view->stride[d];
        } else if (slice < 0 || slice >= view->shape[d])
            return tern__error_set(err, FUNC, TERN_E_RANGE, "slice is %lld, expected [0, %lld)",
                                   (long long)slice, (long long)view->shape[d]);
        else
            b->data += slice * view->stride[d] * (int64_t)tern_dtype_bytes(view->dtype);
    }
    return TERN_OK;
}

static int board_image_check_sizes(const batch *b, const tern__view *view, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    int64_t channels = b->size[CHANNEL];
    if (channels != 1 && channels != 3 && channels != 4)
        return tern__error_set(err, FUNC, TERN_E_SHAPE,
                               "the image has shape %s, expected 1, 3 or 4 channels, got %lld",
                               tern__shape_text(view, shape), (long long)channels);
    if (!tern__view_count(view))
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "an image of shape %s has no pixels",
                               tern__shape_text(view, shape));
    return TERN_OK;
}

/* ---- drawing ---- */

/* All images in one, `across` to a row. */
typedef struct sheet {
    int width, height, channels;
    int64_t across;
    uint8_t *pixels;
} sheet;

/* Computes in f32, as PyTorch does. */
static uint8_t board_image_byte_of(double value, tern_dtype dtype, double threshold)
{
    if (!isnan(threshold)) return value > threshold ? 255 : 0;
    if (dtype == TERN_U8) return (uint8_t)value;
    float scaled = (float)value * 255.0f;
    return !(scaled > 0) ? 0 : scaled < 255 ? (uint8_t)scaled : 255;
}

static void draw_image(const sheet *p, batch *b, int64_t n, double threshold)
{
    int64_t bytes = (int64_t)tern_dtype_bytes(b->pixel.dtype);
    int64_t top = n / p->across * b->size[HEIGHT], left = n % p->across * b->size[WIDTH];
    for (int64_t h = 0; h < b->size[HEIGHT]; h++)
        for (int64_t w = 0; w < b->size[WIDTH]; w++) {
            uint8_t *to = p->pixels + ((top + h) * p->width + left + w) * p->channels;
            for (int c = 0; c < p->channels; c++) {
                b->pixel.data = b->data + bytes * (n * b->stride[BATCH] + c * b->stride[CHANNEL] +
                                                   h * b->stride[HEIGHT] + w * b->stride[WIDTH]);
                to[c] = board_image_byte_of(tern__view_get(&b->pixel, 0), b->pixel.dtype, threshold);
            }
        }
}

/* Draws the images side by side; cells without an image stay black. */
static int board_image_draw(tern_board *board, sheet *p, batch *b, const tern_board_image_opts *opts,
                            tern_error *err)
{
    int64_t count = b->size[BATCH], across = TERN__MIN(opts->across, count);
    int64_t down = (count + across - 1) / across, columns, rows, bytes;
    if (__builtin_mul_overflow(across, b->size[WIDTH], &columns) ||
        __builtin_mul_overflow(down, b->size[HEIGHT], &rows) ||
        __builtin_mul_overflow(columns, rows, &bytes) ||
        __builtin_mul_overflow(bytes, b->size[CHANNEL], &bytes) || bytes > PIXELS_MOST)
        return tern__error_set(
            err, FUNC, TERN_E_RANGE, "%lld images of %lld x %lld are more than %lld bytes of pixels",
            (long long)count, (long long)b->size[WIDTH], (long long)b->size[HEIGHT], (long long)PIXELS_MOST);
    *p = (sheet){(int)columns, (int)rows, (int)b->size[CHANNEL], across,
                 tern__board_room(board, TERN__ROOM_PIXELS, (size_t)bytes, FUNC, err)};
    if (!p->pixels) return TERN_E_MEMORY;
    memset(p->pixels, 0, (size_t)bytes);
    for (int64_t n = 0; n < count; n++) draw_image(p, b, n, opts->threshold);
    return TERN_OK;
}

/* ---- PNG ---- */

static int board_image_encode(tern_board *board, const sheet *p, ProtobufCBinaryData *out, tern_error *err)
{
    char why[128] = "";
    const tern_image_save_opts plain = tern_image_save_defaults();
    const tern_image image = {
        .height = p->height, .width = p->width, .channels = p->channels, .pages = 1, .data = p->pixels};
    const tern_image_codec *png = tern__plugin_get(TERN__PLUGIN_PNG, "images", FUNC, err);
    if (!png) return TERN_E_UNSUPPORTED;
    out->len = png->encode_most(&image);
    out->data = tern__board_room(board, TERN__ROOM_PNG, out->len, FUNC, err);
    if (!out->data) return TERN_E_MEMORY;
    if (png->encode(&image, &plain, out->data, &out->len, why, sizeof(why)))
        return tern__error_set(err, FUNC, TERN_E_IO, "an image of %d x %d: %s", p->width, p->height, why);
    return TERN_OK;
}

static int put_sheet(tern_board *board, const char *tag, const sheet *p, int64_t step, tern_error *err)
{
    Tern__Pb__Image image = TERN__PB__IMAGE__INIT;
    Tern__Pb__Value value = TERN__PB__VALUE__INIT;
    if (board_image_encode(board, p, &image.png, err)) return err->code;
    image.width = p->width;
    image.height = p->height;
    image.channels = p->channels;
    value.tag = (char *)tag;
    value.what_case = TERN__PB__VALUE__WHAT_IMAGE;
    value.image = &image;
    return tern__board_put(board, board->runs, &value, step, FUNC, err);
}

static int put_image(tern_board *board, const char *tag, const tern_tensor *tensor, int64_t step,
                     const tern_board_image_opts *opts, tern_error *err)
{
    tern__view view;
    batch b;
    sheet p = {0};
    if (opts->across < 1)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "expected across >= 1, got %d", opts->across);
    if (tern__board_view(board, tensor, false, &view, FUNC, err)) return err->code;
    const char *format = format_of(opts, view.ndim);
    if (check_format(&view, format, err) || find_pixels(&b, &view, format, opts->slice, err) ||
        board_image_check_sizes(&b, &view, err) || board_image_draw(board, &p, &b, opts, err))
        return err->code;
    return put_sheet(board, tag, &p, step, err);
}

int tern_board_image(tern_board *board, const char *tag, const tern_tensor *image, int64_t step,
                     const tern_board_image_opts *opts, tern_error *err)
{
    tern_error why = {0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    tern_board_image_opts own = tern_board_image_defaults();
    if (!tern__opts_read(&own, sizeof(own), opts, __func__, &why) && !tern__tag_check(tag, __func__, &why))
        put_image(board, tag, image, step, &own, &why);
    return tern__board_end(&why, err);
}
