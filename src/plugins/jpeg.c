/* jpeg.c - the JPEG plug-in, with libjpeg-turbo. On an error libjpeg jumps (longjmp) to the start of the
 * plug-in's function. So everything to be freed is in the decoder, and no local variable has to survive the
 * jump. */
#include <tern/backend/image.h>

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include <jerror.h>

typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf out;
    char *why;
    size_t why_size;
} decoder;

static void jpeg_fail(j_common_ptr jpeg)
{
    decoder *d = jpeg->client_data;
    char text[JMSG_LENGTH_MAX];
    d->errors.format_message(jpeg, text);
    if (d->why) snprintf(d->why, d->why_size, "%s", text);
    longjmp(d->out, 1);
}

/* Where data is missing or corrupt, libjpeg warns and fills the rest with grey. Here that is an error. Extra
 * bytes or an odd header are not. */
static void warn(j_common_ptr jpeg, int level)
{
    static const int losses[] = {JWRN_JPEG_EOF, JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_ARITH_BAD_CODE,
                                 JWRN_MUST_RESYNC};
    for (size_t i = 0; level < 0 && i < sizeof(losses) / sizeof(*losses); i++)
        if (jpeg->err->msg_code == losses[i]) jpeg_fail(jpeg);
}

/* Some encoders number their restart markers wrongly. All data is there, so any restart marker is taken for
 * the next one. Where a part is really lost, data runs out before the last row, of which libjpeg warns.
 * Without this libjpeg would leave out parts between markers that differ by one or two. */
static boolean restart_marker_accept(j_decompress_ptr jpeg, int wanted)
{
    bool is_restart = jpeg->unread_marker >= JPEG_RST0 && jpeg->unread_marker <= JPEG_RST0 + 7;
    if (!is_restart) return jpeg_resync_to_restart(jpeg, wanted);
    jpeg->unread_marker = 0;
    return TRUE;
}

static void jpeg_decoder_free(void *data)
{
    decoder *d = data;
    jpeg_destroy_decompress(&d->jpeg);
    free(d);
}

static int create(decoder *d)
{
    if (setjmp(d->out)) return TERN_E_MEMORY;
    jpeg_create_decompress(&d->jpeg);
    return 0;
}

static void *jpeg_decoder_new(void)
{
    decoder *d = calloc(1, sizeof(*d));
    if (!d) return NULL;
    d->jpeg.err = jpeg_std_error(&d->errors);
    d->jpeg.client_data = d;
    d->errors.error_exit = jpeg_fail;
    d->errors.emit_message = warn;
    if (!create(d)) return d;
    jpeg_decoder_free(d);
    return NULL;
}

/* ---- the header ---- */

/* libjpeg cannot convert CMYK to RGB. */
static bool is_cmyk(const decoder *d)
{
    return d->jpeg.jpeg_color_space == JCS_CMYK || d->jpeg.jpeg_color_space == JCS_YCCK;
}

static J_COLOR_SPACE space_of(const decoder *d, int wanted)
{
    if (is_cmyk(d)) return JCS_CMYK;
    bool is_grey = wanted ? wanted == 1 : d->jpeg.num_components == 1;
    return is_grey ? JCS_GRAYSCALE : JCS_RGB;
}

static bool is_large_enough(const decoder *d, unsigned part, const int64_t *least)
{
    return (d->jpeg.image_height + part - 1) / part >= least[0] &&
           (d->jpeg.image_width + part - 1) / part >= least[1];
}

static unsigned part_of(const decoder *d, const int64_t *least)
{
    unsigned part = 1;
    while (least[0] > 0 && least[1] > 0 && part < 8 && is_large_enough(d, 2 * part, least)) part *= 2;
    return part;
}

/* Refuses what libjpeg would refuse only when it decodes. */
static int check_components(const decoder *d)
{
    const struct jpeg_decompress_struct *j = &d->jpeg;
    if (j->jpeg_color_space == JCS_UNKNOWN) {
        snprintf(d->why, d->why_size, "it has %d components, expected 1 (grey), 3 (colours) or 4 (inks)",
                 j->num_components);
        return TERN_E_UNSUPPORTED;
    }
    int needed = j->out_color_space == JCS_GRAYSCALE ? 1 : j->num_components;
    for (int i = 0; i < needed; i++) {
        const jpeg_component_info *c = &j->comp_info[i];
        if (j->max_h_samp_factor % c->h_samp_factor == 0 && j->max_v_samp_factor % c->v_samp_factor == 0)
            continue;
        snprintf(d->why, d->why_size, "component %d has %d x %d samples where another has %d x %d", i,
                 c->h_samp_factor, c->v_samp_factor, j->max_h_samp_factor, j->max_v_samp_factor);
        return TERN_E_UNSUPPORTED;
    }
    return 0;
}

/* Checks that the file can hold the first scan, so that a damaged header allocates nothing. A Huffman code
 * takes at least a bit, and a block at least a code; only later scans of a progressive file have codes for
 * many blocks. Arithmetic coding has no such limit. */
static int check_jpeg_size(const decoder *d)
{
    const struct jpeg_decompress_struct *j = &d->jpeg;
    uint64_t blocks = 0;
    for (int i = 0; i < j->comps_in_scan; i++)
        blocks += (uint64_t)j->cur_comp_info[i]->width_in_blocks * j->cur_comp_info[i]->height_in_blocks;
    if (j->arith_code || j->Ss > 0 || blocks / 8 <= j->src->bytes_in_buffer) return 0;
    snprintf(d->why, d->why_size, "its header claims %u x %u pixels, for which %zu bytes are too few",
             j->image_height, j->image_width, j->src->bytes_in_buffer);
    return TERN_E_FORMAT;
}

static int jpeg_begin(void *data, const tern_image_request *request, tern_image *image, char *why,
                      size_t why_size)
{
    decoder *d = data;
    d->why = why;
    d->why_size = why_size;
    jpeg_abort_decompress(&d->jpeg);
    if (setjmp(d->out)) return TERN_E_FORMAT;
    jpeg_mem_src(&d->jpeg, request->bytes, request->size);
    d->jpeg.src->resync_to_restart = restart_marker_accept;
    jpeg_read_header(&d->jpeg, TRUE);
    d->jpeg.out_color_space = space_of(d, request->opts.channels);
    d->jpeg.scale_num = 1;
    d->jpeg.scale_denom = part_of(d, request->opts.least);
    jpeg_calc_output_dimensions(&d->jpeg);
    image->height = d->jpeg.output_height;
    image->width = d->jpeg.output_width;
    image->channels = d->jpeg.out_color_space == JCS_GRAYSCALE ? 1 : 3;
    image->sample = TERN_IMAGE_U8;
    image->pages = 1;
    if (image->height > request->opts.pixels_most / image->width)
        return 0; /* too large: the caller refuses it */
    int status = check_components(d);
    return status ? status : check_jpeg_size(d);
}

/* ---- pixels ---- */

/* Returns x / 255, rounded. */
static int over_255(int x)
{
    x += 128;
    return (x + (x >> 8)) >> 8;
}

/* Assumes that inks are stored inverted, as Adobe's programs do; Pillow assumes it, too. */
static void rgb_of_cmyk(const uint8_t *from, uint8_t *to, int64_t width)
{
    for (int64_t x = 0; x < width; x++)
        for (int c = 0; c < 3; c++) to[3 * x + c] = (uint8_t)over_255(from[4 * x + c] * from[4 * x + 3]);
}

static void read_rows(decoder *d, const tern_image *image, int64_t end)
{
    size_t row = (size_t)image->width * (size_t)image->channels;
    JSAMPARRAY inks = is_cmyk(d) ? d->jpeg.mem->alloc_sarray((j_common_ptr)&d->jpeg, JPOOL_IMAGE,
                                                             (JDIMENSION)image->width * 4, 1)
                                 : NULL;
    while ((int64_t)d->jpeg.output_scanline < end) {
        JSAMPROW to = (uint8_t *)image->data + d->jpeg.output_scanline * row;
        jpeg_read_scanlines(&d->jpeg, inks ? inks : &to, 1);
        if (inks) rgb_of_cmyk(*inks, to, image->width);
    }
}

static int read_jpeg(void *data, int64_t top, int64_t rows, const tern_image *image, char *why,
                     size_t why_size)
{
    decoder *d = data;
    d->why = why;
    d->why_size = why_size;
    if (setjmp(d->out)) return TERN_E_FORMAT;
    jpeg_start_decompress(&d->jpeg);
    if (top > 0) jpeg_skip_scanlines(&d->jpeg, (JDIMENSION)top);
    read_rows(d, image, top + rows);
    if (top + rows < image->height) jpeg_skip_scanlines(&d->jpeg, (JDIMENSION)(image->height - top - rows));
    jpeg_finish_decompress(&d->jpeg);
    return 0;
}

TERN_API extern const tern_image_codec tern_image_plugin;
const tern_image_codec tern_image_plugin = {.abi = TERN_IMAGE_ABI,
                                            .size = sizeof(tern_image_codec),
                                            .name = "libjpeg-turbo",
                                            .decoder_new = jpeg_decoder_new,
                                            .decoder_free = jpeg_decoder_free,
                                            .begin = jpeg_begin,
                                            .read = read_jpeg};
