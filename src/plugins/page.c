/* page.c - images, their legend, bars, charts and a confusion matrix on one page, from top to bottom. Two
 * charts, or two sets of bars, go side by side; the page is then as wide as two charts. */
#include "figure.h"

#include <math.h>

#define TITLE   52
#define GAP     14
#define CAPTION 24
#define TALL    420 /* height of an image, at most */
#define NARROW  180 /* width of a cell, at least: room for a caption */
#define LEGEND  30  /* height of a line of the legend                */
#define SWATCH  14

/* The page has one column if there are no two charts or bars to put side by side, and no long rows of
 * images. */
static double page_width(const tern_figure *f)
{
    int charts = f->chart_count + !!f->confusion;
    bool long_rows = f->picture_count && f->across * (NARROW + GAP) > TERN__CHART_WIDTH;
    bool two = f->bars_count > 1 || charts > 1 || (!f->bars_count && !charts) || long_rows;
    return (two ? 2 : 1) * TERN__CHART_WIDTH;
}

static double share_of_width(const tern_figure *f)
{
    return (page_width(f) - GAP) / f->across - GAP;
}

/* Returns the largest zoom that fits a cell; above 1 it is a whole number. */
static double zoom_of(const tern_figure *f, const tern_picture *p)
{
    double zoom = fmin(share_of_width(f) / p->columns, (double)TALL / p->rows);
    return zoom > 1 ? floor(zoom) : zoom;
}

/* All cells are as wide as the widest image, so that images stay close together. */
static double cell_width(const tern_figure *f)
{
    double width = NARROW;
    for (int i = 0; i < f->picture_count; i++)
        width = fmax(width, f->pictures[i].columns * zoom_of(f, &f->pictures[i]));
    return ceil(fmin(width, share_of_width(f)));
}

/* Returns the left edge of an image; rows are centred on the page. */
static double column_left(const tern_figure *f, int column)
{
    double pitch = cell_width(f) + GAP;
    return floor((page_width(f) - f->across * pitch + GAP) / 2) + column * pitch;
}

static double row_height(const tern_figure *f, int first)
{
    double tall = 0;
    for (int i = first; i < f->picture_count && i < first + f->across; i++)
        tall = fmax(tall, f->pictures[i].rows * zoom_of(f, &f->pictures[i]));
    return ceil(tall) + CAPTION + GAP;
}

static double bars_height(const tern_figure *f, int first)
{
    double height = tern__bars_height(&f->bars[first]);
    return first + 1 < f->bars_count ? fmax(height, tern__bars_height(&f->bars[first + 1])) : height;
}

static double legend_width(cairo_t *cr, const tern_legend *entry)
{
    cairo_text_extents_t size;
    cairo_text_extents(cr, entry->name, &size);
    return SWATCH + 8 + size.x_advance + 28;
}

/* Draws entries of the legend in the middle of a line, as many as there is room for. Returns how many. */
static int draw_legend_line(cairo_t *cr, const tern_figure *f, int first, double y)
{
    double width = 0;
    int count = 0;
    for (; first + count < f->legend_count; count++) {
        double more = legend_width(cr, &f->legend[first + count]);
        if (count && width + more > page_width(f) - 2 * GAP) break;
        width += more;
    }
    double x = floor((page_width(f) - width) / 2);
    for (int i = first; i < first + count; i++) {
        const uint8_t *c = f->legend[i].colour;
        cairo_rectangle(cr, x + 0.5, y + 0.5, SWATCH, SWATCH);
        cairo_set_source_rgb(cr, c[0] / 255.0, c[1] / 255.0, c[2] / 255.0);
        cairo_fill_preserve(cr);
        cairo_set_source_rgb(cr, 0.35, 0.35, 0.35); /* a frame: the colour may be white */
        cairo_set_line_width(cr, 1);
        cairo_stroke(cr);
        cairo_move_to(cr, x + SWATCH + 8, y + SWATCH - 2);
        cairo_show_text(cr, f->legend[i].name);
        x += legend_width(cr, &f->legend[i]);
    }
    return count;
}

static void draw_chart(cairo_t *cr, const tern_figure *f, int i)
{
    i < f->chart_count ? tern__chart_draw(cr, &f->charts[i]) : tern__confusion_draw(cr, f->confusion);
}

/* Draws everything. Returns the height. */
static double lay_out(cairo_t *cr, const tern_figure *f)
{
    int charts = f->chart_count + !!f->confusion;
    double y = TITLE;
    for (int i = 0; i < f->picture_count; i++) {
        if (i && i % f->across == 0) y += row_height(f, i - f->across);
        double x = column_left(f, i % f->across);
        tern__canvas_image(cr, &f->pictures[i], zoom_of(f, &f->pictures[i]), x, y, cell_width(f));
    }
    if (f->picture_count) y += row_height(f, (f->picture_count - 1) / f->across * f->across);
    for (int drawn = 0; drawn < f->legend_count; y += LEGEND) drawn += draw_legend_line(cr, f, drawn, y);
    for (int i = 0; i < f->bars_count + charts; i++) {
        bool bars = i < f->bars_count;
        int k = bars ? i : i - f->bars_count;
        cairo_save(cr);
        cairo_translate(cr, k % 2 * TERN__CHART_WIDTH, y);
        bars ? tern__bars_draw(cr, &f->bars[k]) : draw_chart(cr, f, k);
        cairo_restore(cr);
        bool ends = k % 2 || k + 1 == (bars ? f->bars_count : charts);
        if (ends) y += bars ? bars_height(f, k - k % 2) : TERN__CHART_HEIGHT;
    }
    return y;
}

static void draw_title(cairo_t *cr, const tern_figure *f)
{
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_BOLD);
    cairo_set_font_size(cr, 18);
    cairo_set_source_rgb(cr, 0.15, 0.15, 0.15);
    tern__canvas_text(cr, f->title, page_width(f) / 2, 34);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, 14);
}

int tern__figure_save(const tern_figure_out *out, const tern_figure *figure, char *why, size_t why_size)
{
    cairo_t *measure = tern__canvas_new(1, 1);
    draw_title(measure, figure); /* selects the font, as on the page */
    double height = lay_out(measure, figure) + GAP;
    cairo_destroy(measure);
    cairo_t *cr = tern__canvas_new(page_width(figure), height);
    draw_title(cr, figure);
    lay_out(cr, figure);
    return tern__canvas_save(cr, out, why, why_size);
}
