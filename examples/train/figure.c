/* figure.c - selects the curves of a history and draws the final page. */
#include "figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct curves {
    tern_curve items[HISTORY_NAMES];
    int count;
} curves;

/* Sets *first to the first epoch that has a number: epochs before --start-epoch have none. Returns false if
 * there is a gap after it or only one number. */
static bool find_span(const double *values, int64_t epochs, int64_t *first)
{
    *first = 0;
    while (*first < epochs && !isfinite(values[*first])) ++*first;
    for (int64_t e = *first; e < epochs; e++)
        if (!isfinite(values[e])) return false;
    return epochs - *first > 1;
}

/* Collects the curves of the main numbers: those of losses, or all others. */
static void find_curves(const history *h, const double *epochs, bool losses, curves *out)
{
    for (int i = 0; i < h->count; i++) {
        const char *name = h->series[i].name;
        int64_t first;
        if (!history_is_main(h, name) || losses != !strncmp(name, "loss", 4)) continue;
        if (!find_span(h->series[i].values, h->epochs, &first)) continue;
        out->items[out->count++] = (tern_curve){.name = history_short_name(name),
                                                .x = epochs + first,
                                                .y = h->series[i].values + first,
                                                .count = (int)(h->epochs - first)};
    }
}

int figure_save(const char *path, const char *title, const history *h, const gallery *g, tern_error *err)
{
    double *epochs = calloc((size_t)h->epochs + 1, sizeof(*epochs));
    curves found[2] = {0};
    tern_chart charts[2];
    tern_figure figure = {.title = title,
                          .pictures = g->pictures,
                          .picture_count = g->count,
                          .across = g->across,
                          .charts = charts};
    for (int64_t e = 0; epochs && e < h->epochs; e++) epochs[e] = (double)(e + 1);
    for (int i = 0; i < 2 && epochs; i++) {
        find_curves(h, epochs, i == 0, &found[i]);
        if (!found[i].count) continue;
        charts[figure.chart_count++] =
            (tern_chart){i ? "Evaluation" : "Loss", "epoch", i ? "" : "loss", found[i].items, found[i].count};
    }
    int status = tern_figure_save(path, &figure, err);
    free(epochs);
    return status;
}
