/* chart.c - curves over common axes. Ticks are at round numbers, and the axes end at ticks. */
#include "figure.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#define WIDTH  TERN__CHART_WIDTH
#define HEIGHT TERN__CHART_HEIGHT
#define LEFT   78
#define RIGHT  28
#define TOP    74
#define BOTTOM 62
#define TICKS  6  /* per axis, roughly */
#define LINE   20 /* height of a line of the legend */
#define DOTS   60 /* curves of at most so many points have a dot at each */

typedef struct axis {
    double low, high, step; /* values; the ends are multiples of step */
    double from, to;        /* pixels                                 */
} axis;

static double chart_place(const axis *a, double value)
{
    return a->from + (value - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* Returns the round number (1, 2 or 5 times a power of ten) closest to a TICKS-th of the range. */
static double round_step(double range)
{
    double power = pow(10, floor(log10(range / TICKS))), rest = range / TICKS / power;
    return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

/* If all values are whole numbers, such as epochs, the ticks are whole, too. */
static axis axis_of(double low, double high, bool whole, double from, double to)
{
    double step = round_step(high > low ? high - low : fmax(1, fabs(low)));
    if (whole) step = fmax(step, 1);
    axis a = {floor(low / step) * step, ceil(high / step) * step, step, from, to};
    if (a.low == a.high) a.low -= step, a.high += step;
    return a;
}

static void extend(const double *values, int count, double *low, double *high)
{
    for (int i = 0; values && i < count; i++) {
        *low = fmin(*low, values[i]);
        *high = fmax(*high, values[i]);
    }
}

static bool all_whole(const tern_chart *chart)
{
    for (int i = 0; i < chart->count; i++)
        for (int k = 0; k < chart->curves[i].count; k++)
            if (chart->curves[i].x[k] != floor(chart->curves[i].x[k])) return false;
    return true;
}

static void find_axes(const tern_chart *chart, double top, axis *x, axis *y)
{
    double x_low = DBL_MAX, x_high = -DBL_MAX, y_low = DBL_MAX, y_high = -DBL_MAX;
    for (int i = 0; i < chart->count; i++) {
        const tern_curve *c = &chart->curves[i];
        extend(c->x, c->count, &x_low, &x_high);
        extend(c->y, c->count, &y_low, &y_high);
        extend(c->low, c->count, &y_low, &y_high);
        extend(c->high, c->count, &y_low, &y_high);
    }
    *x = axis_of(x_low, x_high, all_whole(chart), LEFT, WIDTH - RIGHT);
    *y = axis_of(y_low, y_high, false, HEIGHT - BOTTOM, top);
}

/* ---- axes ---- */

static void draw_line(cairo_t *cr, double x0, double y0, double x1, double y1)
{
    cairo_move_to(cr, floor(x0) + 0.5, floor(y0) + 0.5);
    cairo_line_to(cr, floor(x1) + 0.5, floor(y1) + 0.5);
    cairo_stroke(cr);
}

static int tick_count(const axis *a)
{
    return (int)lround((a->high - a->low) / a->step);
}

/* Writes as many decimals as the step has. */
static void tick_text(const axis *a, int i, char *text, size_t size)
{
    int decimals = (int)fmax(0, ceil(-log10(a->step) - 1e-9));
    snprintf(text, size, "%.*f", decimals, a->low + i * a->step);
}

static void draw_axes(cairo_t *cr, const axis *x, const axis *y)
{
    char text[32];
    cairo_text_extents_t size;
    cairo_set_line_width(cr, 1);
    for (int i = 0; i <= tick_count(y); i++) {
        double at = chart_place(y, y->low + i * y->step);
        tern__canvas_grey(cr, i ? 0.88 : 0.35);
        draw_line(cr, x->from, at, x->to, at);
        tick_text(y, i, text, sizeof(text));
        cairo_text_extents(cr, text, &size);
        tern__canvas_grey(cr, 0.3);
        cairo_move_to(cr, x->from - 10 - size.x_advance, at + 4);
        cairo_show_text(cr, text);
    }
    for (int i = 0; i <= tick_count(x); i++) {
        double at = chart_place(x, x->low + i * x->step);
        tern__canvas_grey(cr, 0.35);
        draw_line(cr, at, y->from, at, y->from + 5);
        tick_text(x, i, text, sizeof(text));
        tern__canvas_grey(cr, 0.3);
        tern__canvas_text(cr, text, at, y->from + 20);
    }
}

static void draw_labels(cairo_t *cr, const tern_chart *chart)
{
    tern__canvas_grey(cr, 0.15);
    tern__canvas_text(cr, chart->x_label, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16);
    cairo_save(cr);
    cairo_translate(cr, 24, (TOP + HEIGHT - BOTTOM) / 2.0);
    cairo_rotate(cr, -M_PI / 2);
    tern__canvas_text(cr, chart->y_label, 0, 0);
    cairo_restore(cr);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_BOLD);
    cairo_set_font_size(cr, 15);
    tern__canvas_text(cr, chart->title, WIDTH / 2.0, 30);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, 13);
}

/* ---- curves ---- */

static void draw_band(cairo_t *cr, const tern_curve *c, const axis *x, const axis *y)
{
    cairo_new_path(cr); /* drawing text leaves a current point */
    for (int i = 0; i < c->count; i++) cairo_line_to(cr, chart_place(x, c->x[i]), chart_place(y, c->low[i]));
    for (int i = c->count - 1; i >= 0; i--)
        cairo_line_to(cr, chart_place(x, c->x[i]), chart_place(y, c->high[i]));
    cairo_close_path(cr);
    cairo_fill(cr);
}

/* Selects the colour of curve i, and dashes where the palette has begun again. */
static void set_line(cairo_t *cr, int i, double width)
{
    static const double dashes[] = {7, 4};
    tern__canvas_colour(cr, i, 1);
    cairo_set_line_width(cr, width);
    cairo_set_dash(cr, dashes, i < TERN__COLOURS ? 0 : 2, 0);
}

static void draw_curve(cairo_t *cr, const tern_curve *c, const axis *x, const axis *y)
{
    cairo_set_line_join(cr, CAIRO_LINE_JOIN_ROUND);
    cairo_new_path(cr);
    for (int i = 0; i < c->count; i++) cairo_line_to(cr, chart_place(x, c->x[i]), chart_place(y, c->y[i]));
    cairo_stroke(cr);
    for (int i = 0; c->count <= DOTS && i < c->count; i++) {
        cairo_arc(cr, chart_place(x, c->x[i]), chart_place(y, c->y[i]), 3, 0, 2 * M_PI);
        cairo_fill(cr);
    }
}

/* Lays the curves' names out below the title, side by side, in as many lines as they need; draws them unless
 * `cr` is only to measure. Returns the number of lines. */
static int lay_out_legend(cairo_t *cr, const tern_chart *chart, bool draws)
{
    cairo_text_extents_t size;
    double at = LEFT + 2;
    int lines = 1;
    for (int i = 0; i < chart->count; i++) {
        cairo_text_extents(cr, chart->curves[i].name, &size);
        if (at > LEFT + 2 && at + 29 + size.x_advance > WIDTH - RIGHT) at = LEFT + 2, lines++;
        double y = TOP + LINE * (lines - 2);
        if (draws) {
            set_line(cr, i, 3);
            draw_line(cr, at, y, at + 22, y);
            tern__canvas_grey(cr, 0.15);
            cairo_move_to(cr, at + 29, y + 5);
            cairo_show_text(cr, chart->curves[i].name);
        }
        at += 29 + size.x_advance + 26;
    }
    return lines;
}

void tern__chart_draw(cairo_t *cr, const tern_chart *chart)
{
    axis x, y;
    cairo_set_font_size(cr, 13);
    find_axes(chart, TOP + LINE * (lay_out_legend(cr, chart, false) - 1), &x, &y);
    draw_axes(cr, &x, &y);
    draw_labels(cr, chart);
    for (int i = 0; i < chart->count; i++) {
        tern__canvas_colour(cr, i, 0.16);
        if (chart->curves[i].low) draw_band(cr, &chart->curves[i], &x, &y);
    }
    for (int i = 0; i < chart->count; i++) {
        set_line(cr, i, 2.2);
        draw_curve(cr, &chart->curves[i], &x, &y);
    }
    lay_out_legend(cr, chart, true);
    cairo_set_dash(cr, NULL, 0, 0);
}

int tern__chart_save(const tern_figure_out *out, const tern_chart *chart, char *why, size_t why_size)
{
    cairo_t *cr = tern__canvas_new(WIDTH, HEIGHT);
    tern__chart_draw(cr, chart);
    return tern__canvas_save(cr, out, why, why_size);
}
