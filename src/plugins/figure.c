/* figure.c - the figure plug-in: pictures and captions drawn with cairo. */
#include "figure.h"

#include <math.h>
#include <stdio.h>

#define ZOOM    3 /* screen pixels a picture pixel */
#define GAP     14
#define CAPTION 18
#define TITLE   34
#define FONT    12.0

static uint32_t pixel(const tern_picture *picture, int i)
{
    if (picture->channels != 3) return picture->pixels[i] * 0x010101u;
    const uint8_t *rgb = picture->pixels + 3 * i;
    return (uint32_t)rgb[0] << 16 | (uint32_t)rgb[1] << 8 | rgb[2];
}

static cairo_surface_t *surface_of(const tern_picture *picture)
{
    cairo_surface_t *surface =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, picture->columns, picture->rows);
    unsigned char *data = cairo_image_surface_get_data(surface);
    if (!data) return surface;
    int stride = cairo_image_surface_get_stride(surface);
    cairo_surface_flush(surface);
    for (int y = 0; y < picture->rows; y++) {
        uint32_t *row = (uint32_t *)(void *)(data + y * stride);
        for (int x = 0; x < picture->columns; x++) row[x] = pixel(picture, y * picture->columns + x);
    }
    cairo_surface_mark_dirty(surface);
    return surface;
}

void tern__draw_text(cairo_t *cr, const char *text, double centre, double baseline)
{
    cairo_text_extents_t extents;
    cairo_text_extents(cr, text, &extents);
    cairo_move_to(cr, centre - extents.x_advance / 2, baseline);
    cairo_show_text(cr, text);
}

void tern__picture_draw(cairo_t *cr, const tern_picture *picture, double zoom, double x, double y,
                        double width)
{
    cairo_surface_t *surface = surface_of(picture);
    cairo_save(cr);
    cairo_translate(cr, x + floor((width - picture->columns * zoom) / 2), y);
    cairo_scale(cr, zoom, zoom);
    cairo_set_source_surface(cr, surface, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(cr), zoom < 1 ? CAIRO_FILTER_GOOD : CAIRO_FILTER_NEAREST);
    cairo_paint(cr);
    cairo_restore(cr);
    cairo_surface_destroy(surface);
    cairo_set_source_rgb(cr, picture->marked ? 0.8 : 0.15, picture->marked ? 0.1 : 0.15,
                         picture->marked ? 0.1 : 0.15);
    tern__draw_text(cr, picture->caption, x + width / 2, y + picture->rows * zoom + CAPTION - 4);
}

/* The widest picture or caption. */
static double cell_width(cairo_t *cr, const tern_picture *pictures, int count)
{
    double width = 0;
    for (int i = 0; i < count; i++) {
        cairo_text_extents_t extents;
        cairo_text_extents(cr, pictures[i].caption, &extents);
        width = extents.x_advance > width ? extents.x_advance : width;
        width = pictures[i].columns * ZOOM > width ? pictures[i].columns * ZOOM : width;
    }
    return width;
}

cairo_t *tern__page_new(double width, double height)
{
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)width, (int)height);
    cairo_t *cr = cairo_create(surface);
    cairo_surface_destroy(surface); /* cr keeps it */
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, FONT);
    return cr;
}

static cairo_status_t write_some(void *to, const unsigned char *bytes, unsigned count)
{
    const tern_figure_out *out = to;
    return out->write(out->to, bytes, count) ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

int tern__page_save(cairo_t *cr, const tern_figure_out *out, char *why, size_t why_size)
{
    cairo_status_t status = cairo_status(cr);
    if (status == CAIRO_STATUS_SUCCESS)
        status = cairo_surface_write_to_png_stream(cairo_get_target(cr), write_some, (void *)(uintptr_t)out);
    cairo_destroy(cr);
    if (status == CAIRO_STATUS_SUCCESS) return 0;
    snprintf(why, why_size, "%s", cairo_status_to_string(status));
    return -1;
}

static double measure(const tern_picture *pictures, int count)
{
    cairo_t *cr = tern__page_new(1, 1);
    double width = cell_width(cr, pictures, count);
    cairo_destroy(cr);
    return width;
}

static int grid_save(const tern_figure_out *out, const char *title, const tern_picture *pictures, int count,
                     int across, char *why, size_t why_size)
{
    double cell = measure(pictures, count), tall = 0;
    for (int i = 0; i < count; i++) tall = pictures[i].rows * ZOOM > tall ? pictures[i].rows * ZOOM : tall;
    int down = (count + across - 1) / across;
    double width = GAP + across * (cell + GAP), height = TITLE + down * (tall + CAPTION + GAP);
    cairo_t *cr = tern__page_new(width, height);
    cairo_set_source_rgb(cr, 0.15, 0.15, 0.15);
    tern__draw_text(cr, title, width / 2, TITLE - 14);
    for (int i = 0; i < count; i++)
        tern__picture_draw(cr, &pictures[i], ZOOM, GAP + i % across * (cell + GAP),
                           TITLE + i / across * (tall + CAPTION + GAP), cell);
    return tern__page_save(cr, out, why, why_size);
}

TERN_API extern const tern_figure_backend tern_figure_plugin;
const tern_figure_backend tern_figure_plugin = {.abi = TERN_FIGURE_ABI,
                                                .size = sizeof(tern_figure_backend),
                                                .name = "cairo",
                                                .grid_save = grid_save,
                                                .chart_save = tern__chart_save,
                                                .figure_save = tern__figure_save};
