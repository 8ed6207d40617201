/* figure.h - what the figures of the plug-in share. */
#ifndef TERN_SRC_PLUGINS_FIGURE_H
#define TERN_SRC_PLUGINS_FIGURE_H

#include <tern/backend/figure.h>

#include <cairo.h>

/* A white page of so many pixels, with the font selected. */
cairo_t *tern__page_new(double width, double height);
/* Writes the page as a PNG and frees it: 0, or -1 with a reason. */
int tern__page_save(cairo_t *cr, const char *path, char *why, size_t why_size);
/* `text` with its middle at `centre`. */
void tern__draw_text(cairo_t *cr, const char *text, double centre, double baseline);

int tern__chart_save(const char *path, const tern_chart *chart, char *why, size_t why_size);

#endif
