/* figure.c - the figure plug-in: its entry point, and grids of captioned images. */
#include "figure.h"

#define ZOOM  3 /* screen pixels per image pixel */
#define GAP   14
#define TITLE 34

/* Returns the width of the widest image or caption. */
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

static double measure(const tern_picture *pictures, int count)
{
    cairo_t *cr = tern__canvas_new(1, 1);
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
    double width = GAP + across * (cell + GAP), height = TITLE + down * (tall + TERN__CAPTION + GAP);
    cairo_t *cr = tern__canvas_new(width, height);
    cairo_set_source_rgb(cr, 0.15, 0.15, 0.15);
    tern__canvas_text(cr, title, width / 2, TITLE - 14);
    for (int i = 0; i < count; i++)
        tern__canvas_image(cr, &pictures[i], ZOOM, GAP + i % across * (cell + GAP),
                           TITLE + i / across * (tall + TERN__CAPTION + GAP), cell);
    return tern__canvas_save(cr, out, why, why_size);
}

TERN_API extern const tern_figure_backend tern_figure_plugin;
const tern_figure_backend tern_figure_plugin = {.abi = TERN_FIGURE_ABI,
                                                .size = sizeof(tern_figure_backend),
                                                .name = "cairo",
                                                .grid_save = grid_save,
                                                .chart_save = tern__chart_save,
                                                .figure_save = tern__figure_save};
