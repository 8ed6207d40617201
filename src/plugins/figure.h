/* figure.h - shared declarations of the figure plug-in. */
#ifndef TERN_SRC_PLUGINS_FIGURE_H
#define TERN_SRC_PLUGINS_FIGURE_H

#include <tern/backend/figure.h>

#include <cairo.h>

/* ---- canvas.c ---- */

#define TERN__CAPTION 18 /* pixels below an image for its caption */

/* Makes a white canvas of that many pixels and selects the font. */
cairo_t *tern__canvas_new(double width, double height);
/* Writes the canvas as a PNG and frees it. Returns 0, or -1 with the reason in `why`. */
int tern__canvas_save(cairo_t *cr, const tern_figure_out *out, char *why, size_t why_size);
/* Draws `text` centred on the x coordinate `centre`. */
void tern__canvas_text(cairo_t *cr, const char *text, double centre, double baseline);
/* Selects a grey: 0 is black. */
void tern__canvas_grey(cairo_t *cr, double level);
#define TERN__COLOURS 10 /* of the palette */
/* Selects colour i of the palette, which begins again after the last. */
void tern__canvas_colour(cairo_t *cr, int i, double alpha);
/* Draws an image, `zoom` times as large, centred in a cell that starts at (x, y) and is `width` wide, and its
 * caption below it. */
void tern__canvas_image(cairo_t *cr, const tern_picture *image, double zoom, double x, double y,
                        double width);

/* ---- the parts of a figure ---- */

#define TERN__CHART_WIDTH  820
#define TERN__CHART_HEIGHT 500
/* Draws a chart of that size at the origin. */
void tern__chart_draw(cairo_t *cr, const tern_chart *chart);

/* As large as a chart. */
void tern__confusion_draw(cairo_t *cr, const tern_confusion_chart *chart);

/* Bars are as wide as a chart. */
double tern__bars_height(const tern_bars *bars);
void tern__bars_draw(cairo_t *cr, const tern_bars *bars);

/* ---- whole files ---- */

int tern__figure_save(const tern_figure_out *out, const tern_figure *figure, char *why, size_t why_size);
int tern__chart_save(const tern_figure_out *out, const tern_chart *chart, char *why, size_t why_size);

#endif
