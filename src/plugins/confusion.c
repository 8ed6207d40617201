/* confusion.c - draws a confusion matrix: a row for each class, a cell for each class it was taken for. */
#include "figure.h"

#include <math.h>
#include <stdio.h>

#define WIDTH  TERN__CHART_WIDTH
#define HEIGHT TERN__CHART_HEIGHT
#define LEFT   150
#define RIGHT  28
#define TOP    52
#define BOTTOM 92
#define FONT   13
#define SLANT  (-M_PI / 6) /* of names that are wider than their column */

static double text_width(cairo_t *cr, const char *text)
{
    cairo_text_extents_t size;
    cairo_text_extents(cr, text, &size);
    return size.x_advance;
}

/* Draws a text that ends at (x, y). */
static void draw_text_to(cairo_t *cr, const char *text, double x, double y)
{
    cairo_move_to(cr, x - text_width(cr, text), y);
    cairo_show_text(cr, text);
}

static int64_t row_sum(const tern_confusion_chart *c, int row)
{
    int64_t sum = 0;
    for (int k = 0; k < c->classes; k++) sum += c->counts[row * c->classes + k];
    return sum;
}

/* The darker, the larger its share of the row; a class without samples has a white row. */
static void draw_cell(cairo_t *cr, const tern_confusion_chart *c, int row, int column, double width,
                      double height)
{
    char text[16];
    int64_t count = c->counts[row * c->classes + column];
    double share = count ? (double)count / (double)row_sum(c, row) : 0;
    double x = LEFT + column * width, y = TOP + row * height;
    cairo_rectangle(cr, x, y, width, height);
    cairo_set_source_rgb(cr, 1 - share, 1 - 0.55 * share, 1 - 0.30 * share);
    cairo_fill_preserve(cr);
    cairo_set_line_width(cr, 1);
    tern__canvas_grey(cr, 0.85);
    cairo_stroke(cr);
    if (!count) return;
    snprintf(text, sizeof(text), "%.*f", share < 0.0995, 100 * share);
    tern__canvas_grey(cr, share > 0.55 ? 1 : 0.15);
    tern__canvas_text(cr, text, x + width / 2, y + height / 2 + 5);
}

static void draw_names(cairo_t *cr, const tern_confusion_chart *c, double width, double height)
{
    bool fit = true;
    for (int i = 0; i < c->classes; i++) fit = fit && text_width(cr, c->names[i]) < width - 6;
    tern__canvas_grey(cr, 0.15);
    for (int i = 0; i < c->classes; i++) {
        draw_text_to(cr, c->names[i], LEFT - 8, TOP + (i + 0.5) * height + 5);
        double x = LEFT + (i + 0.5) * width, y = HEIGHT - BOTTOM + 18;
        if (fit) {
            tern__canvas_text(cr, c->names[i], x, y);
            continue;
        }
        cairo_save(cr);
        cairo_translate(cr, x + 6, y - 2);
        cairo_rotate(cr, SLANT);
        draw_text_to(cr, c->names[i], 0, 0);
        cairo_restore(cr);
    }
}

static void draw_titles(cairo_t *cr, const tern_confusion_chart *c)
{
    tern__canvas_text(cr, "predicted", (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12);
    cairo_save(cr);
    cairo_translate(cr, 24, (TOP + HEIGHT - BOTTOM) / 2.0);
    cairo_rotate(cr, -M_PI / 2);
    tern__canvas_text(cr, "true; % of the row", 0, 0);
    cairo_restore(cr);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_BOLD);
    cairo_set_font_size(cr, 15);
    tern__canvas_text(cr, c->title, WIDTH / 2.0, 30);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, FONT);
}

void tern__confusion_draw(cairo_t *cr, const tern_confusion_chart *c)
{
    double width = (double)(WIDTH - LEFT - RIGHT) / c->classes,
           height = (double)(HEIGHT - TOP - BOTTOM) / c->classes;
    cairo_set_font_size(cr, FONT);
    for (int row = 0; row < c->classes; row++)
        for (int column = 0; column < c->classes; column++) draw_cell(cr, c, row, column, width, height);
    draw_names(cr, c, width, height);
    draw_titles(cr, c);
}
