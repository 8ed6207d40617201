/* bars.c - a bar chart with horizontal bars. */
#include "figure.h"

#include <math.h>
#include <stdio.h>

#define TOP     56
#define BAR     24
#define PITCH   36 /* from one bar to the next */
#define BOTTOM  22
#define MARGIN  28
#define NUMBER  96 /* room for the number after the longest bar */
#define BETWEEN 12

double tern__bars_height(const tern_bars *bars)
{
    return TOP + bars->count * PITCH + BOTTOM;
}

static double name_width(cairo_t *cr, const tern_bars *bars)
{
    double width = 0;
    for (int i = 0; i < bars->count; i++) {
        cairo_text_extents_t size;
        cairo_text_extents(cr, bars->bars[i].name, &size);
        width = fmax(width, size.x_advance);
    }
    return width;
}

static double longest(const tern_bars *bars)
{
    double most = 0;
    for (int i = 0; i < bars->count; i++) most = fmax(most, fmax(bars->bars[i].value, bars->bars[i].high));
    return most > 0 ? most : 1;
}

/* Draws a line from `from` to `to`, with short end marks: the range of the measured values. */
static void draw_spread(cairo_t *cr, double from, double to, double y)
{
    cairo_set_source_rgb(cr, 0.15, 0.15, 0.15);
    cairo_set_line_width(cr, 1.5);
    for (int end = 0; end < 2; end++) {
        cairo_move_to(cr, end ? to : from, y - 4);
        cairo_line_to(cr, end ? to : from, y + 4);
    }
    cairo_move_to(cr, from, y);
    cairo_line_to(cr, to, y);
    cairo_stroke(cr);
}

static void draw_bar(cairo_t *cr, const tern_bar *bar, double left, double scale, double y)
{
    char text[32];
    cairo_text_extents_t size;
    double end = left + fmax(bar->value, bar->high) * scale;
    cairo_set_source_rgb(cr, 0.15, 0.15, 0.15);
    cairo_text_extents(cr, bar->name, &size);
    cairo_move_to(cr, left - BETWEEN - size.x_advance, y + BAR / 2.0 + 5);
    cairo_show_text(cr, bar->name);
    tern__canvas_colour(cr, bar->colour, 0.85);
    cairo_rectangle(cr, left, y, bar->value * scale, BAR);
    cairo_fill(cr);
    if (bar->high > bar->low)
        draw_spread(cr, left + bar->low * scale, left + bar->high * scale, y + BAR / 2.0);
    snprintf(text, sizeof(text), bar->value >= 100 ? "%.0f" : "%.3g", bar->value);
    cairo_set_source_rgb(cr, 0.15, 0.15, 0.15);
    cairo_move_to(cr, end + BETWEEN, y + BAR / 2.0 + 5);
    cairo_show_text(cr, text);
}

void tern__bars_draw(cairo_t *cr, const tern_bars *bars)
{
    cairo_set_font_size(cr, 15);
    cairo_set_source_rgb(cr, 0.15, 0.15, 0.15);
    tern__canvas_text(cr, bars->title, TERN__CHART_WIDTH / 2.0, 30);
    cairo_set_font_size(cr, 14);
    double left = MARGIN + name_width(cr, bars) + BETWEEN;
    double scale = (TERN__CHART_WIDTH - MARGIN - NUMBER - left) / longest(bars);
    for (int i = 0; i < bars->count; i++) draw_bar(cr, &bars->bars[i], left, scale, TOP + i * PITCH);
}
