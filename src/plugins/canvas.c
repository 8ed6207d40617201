/* canvas.c - draws with cairo what all figures need: a white canvas, text, colours and images. */
#include "figure.h"

#include <math.h>
#include <stdio.h>

#define FONT 12.0

cairo_t *tern__canvas_new(double width, double height)
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

static cairo_status_t canvas_write(void *to, const unsigned char *bytes, unsigned count)
{
    const tern_figure_out *out = to;
    return out->write(out->to, bytes, count) ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

int tern__canvas_save(cairo_t *cr, const tern_figure_out *out, char *why, size_t why_size)
{
    cairo_status_t status = cairo_status(cr);
    if (status == CAIRO_STATUS_SUCCESS)
        status =
            cairo_surface_write_to_png_stream(cairo_get_target(cr), canvas_write, (void *)(uintptr_t)out);
    cairo_destroy(cr);
    if (status == CAIRO_STATUS_SUCCESS) return 0;
    snprintf(why, why_size, "%s", cairo_status_to_string(status));
    return -1;
}

void tern__canvas_text(cairo_t *cr, const char *text, double centre, double baseline)
{
    cairo_text_extents_t extents;
    cairo_text_extents(cr, text, &extents);
    cairo_move_to(cr, centre - extents.x_advance / 2, baseline);
    cairo_show_text(cr, text);
}

void tern__canvas_grey(cairo_t *cr, double level)
{
    cairo_set_source_rgb(cr, level, level, level);
}

/* Colours of which the first ones can be told apart by people who cannot see red or green, too (Okabe and Ito
 * 2008). */
void tern__canvas_colour(cairo_t *cr, int i, double alpha)
{
    static const double colours[TERN__COLOURS][3] = {
        {0.84, 0.37, 0.00}, {0.00, 0.45, 0.70}, {0.00, 0.62, 0.45}, {0.80, 0.47, 0.65}, {0.35, 0.35, 0.35},
        {0.90, 0.62, 0.00}, {0.34, 0.71, 0.91}, {0.45, 0.20, 0.55}, {0.62, 0.60, 0.10}, {0.55, 0.34, 0.29}};
    const double *c = colours[i % TERN__COLOURS];
    cairo_set_source_rgba(cr, c[0], c[1], c[2], alpha);
}

static uint32_t pixel(const tern_picture *image, int i)
{
    if (image->channels != 3) return image->pixels[i] * 0x010101u;
    const uint8_t *rgb = image->pixels + 3 * i;
    return (uint32_t)rgb[0] << 16 | (uint32_t)rgb[1] << 8 | rgb[2];
}

static cairo_surface_t *surface_of(const tern_picture *image)
{
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, image->columns, image->rows);
    unsigned char *data = cairo_image_surface_get_data(surface);
    if (!data) return surface;
    int stride = cairo_image_surface_get_stride(surface);
    cairo_surface_flush(surface);
    for (int y = 0; y < image->rows; y++) {
        uint32_t *row = (uint32_t *)(void *)(data + y * stride);
        for (int x = 0; x < image->columns; x++) row[x] = pixel(image, y * image->columns + x);
    }
    cairo_surface_mark_dirty(surface);
    return surface;
}

void tern__canvas_image(cairo_t *cr, const tern_picture *image, double zoom, double x, double y, double width)
{
    cairo_surface_t *surface = surface_of(image);
    cairo_save(cr);
    cairo_translate(cr, x + floor((width - image->columns * zoom) / 2), y);
    cairo_scale(cr, zoom, zoom);
    cairo_set_source_surface(cr, surface, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(cr), zoom < 1 ? CAIRO_FILTER_GOOD : CAIRO_FILTER_NEAREST);
    cairo_paint(cr);
    cairo_restore(cr);
    cairo_surface_destroy(surface);
    cairo_set_source_rgb(cr, image->marked ? 0.8 : 0.15, image->marked ? 0.1 : 0.15,
                         image->marked ? 0.1 : 0.15);
    tern__canvas_text(cr, image->caption, x + width / 2, y + image->rows * zoom + TERN__CAPTION - 4);
}
