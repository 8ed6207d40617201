/* figure.c - selects the curves of a history and draws the final page. */
#include "figure.h"

#include <math.h>
#include <string.h>

typedef struct curves {
    tern_curve items[HISTORY_NAMES];
    int count;
} curves;

/* Sets *first to the first row that has a number: epochs before --start-epoch have none. Returns false if
 * there is a gap after it or only one number. */
static bool find_span(const double *values, int64_t rows, int64_t *first)
{
    *first = 0;
    while (*first < rows && !isfinite(values[*first])) ++*first;
    for (int64_t row = *first; row < rows; row++)
        if (!isfinite(values[row])) return false;
    return rows - *first > 1;
}

/* Collects the curves of the main numbers: those of losses, or all others. */
static void find_curves(const history *h, bool losses, curves *out)
{
    for (int i = 0; i < h->count; i++) {
        const char *name = h->series[i].name;
        int64_t first;
        if (!history_is_main(h, name) || losses != !strncmp(name, "loss", 4)) continue;
        if (!find_span(h->series[i].values, h->rows, &first)) continue;
        out->items[out->count++] = (tern_curve){.name = history_short_name(name),
                                                .x = h->epochs + first,
                                                .y = h->series[i].values + first,
                                                .count = (int)(h->rows - first)};
    }
}

int figure_save(const char *path, const char *title, const history *h, const gallery *g, tern_error *err)
{
    curves found[2] = {0};
    tern_chart charts[2];
    tern_figure figure = {.title = title,
                          .pictures = g->pictures,
                          .picture_count = g->count,
                          .across = g->across,
                          .charts = charts};
    for (int i = 0; i < 2; i++) {
        find_curves(h, i == 0, &found[i]);
        if (!found[i].count) continue;
        charts[figure.chart_count++] =
            (tern_chart){i ? "Evaluation" : "Loss", "epoch", i ? "" : "loss", found[i].items, found[i].count};
    }
    return tern_figure_save(path, &figure, err);
}
