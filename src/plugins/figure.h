/* figure.h - what the figures of the plug-in share. */
#ifndef TERN_SRC_PLUGINS_FIGURE_H
#define TERN_SRC_PLUGINS_FIGURE_H

#include <tern/backend/figure.h>

#include <cairo.h>

/* A white page of so many pixels, with the font selected. */
cairo_t *tern__page_new(double width, double height);
/* Writes the page as a PNG and frees it: 0, or -1 with a reason. */
int tern__page_save(cairo_t *cr, const tern_figure_out *out, char *why, size_t why_size);
/* `text` with its middle at `centre`. */
void tern__draw_text(cairo_t *cr, const char *text, double centre, double baseline);

/* The i-th of a few colours. */
void tern__colour(cairo_t *cr, int i, double alpha);

#define TERN__CHART_WIDTH  820
#define TERN__CHART_HEIGHT 500
/* A chart of that size at the origin. */
void tern__chart_draw(cairo_t *cr, const tern_chart *chart);

/* As wide as a chart. */
double tern__bars_height(const tern_bars *bars);
void tern__bars_draw(cairo_t *cr, const tern_bars *bars);

/* A picture `zoom` times as large, in the middle of a cell that begins at (x, y) and is `width` wide, and
 * below it its caption. */
void tern__picture_draw(cairo_t *cr, const tern_picture *picture, double zoom, double x, double y,
                        double width);

int tern__figure_save(const tern_figure_out *out, const tern_figure *figure, char *why, size_t why_size);
int tern__chart_save(const tern_figure_out *out, const tern_chart *chart, char *why, size_t why_size);

#endif
