/* figure.c - selects the curves of a history and draws the final page. */
#include "figure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CLASSES_DRAWN 12 /* curves of more classes cannot be told apart */

enum { LOSSES, EVALUATION, CLASSES, CHARTS };
static const char *const titles[] = {"Loss", "Evaluation", "Classes"};

typedef struct curves {
    tern_curve items[HISTORY_NAMES];
    int count;
} curves;

/* Sets *first to the first row that has a number: epochs before --start-epoch have none. Returns false if
 * there is none, or a gap after it. */
static bool find_span(const double *values, int64_t rows, int64_t *first)
{
    *first = 0;
    while (*first < rows && !isfinite(values[*first])) ++*first;
    for (int64_t row = *first; row < rows; row++)
        if (!isfinite(values[row])) return false;
    return rows > *first;
}

static int chart_of(const history *h, const char *name)
{
    return !strncmp(name, "loss/", 5) ? LOSSES : history_is_of_class(h, name) ? CLASSES : EVALUATION;
}

static void find_curves(const history *h, curves found[CHARTS])
{
    for (int i = 0; i < h->count; i++) {
        const char *name = h->series[i].name;
        curves *c = &found[chart_of(h, name)];
        int64_t first;
        if (c == &found[CLASSES] && history_classes(h) > CLASSES_DRAWN) continue;
        if (!find_span(h->series[i].values, h->rows, &first)) continue;
        c->items[c->count++] = (tern_curve){.name = history_short_name(name),
                                            .x = h->epochs + first,
                                            .y = h->series[i].values + first,
                                            .count = (int)(h->rows - first)};
    }
}

int figure_save(const char *path, const char *title, const history *h, const gallery *g, tern_error *err)
{
    curves found[CHARTS] = {0};
    tern_chart charts[CHARTS];
    const tern_confusion_chart confusion = {"Confusion matrix", g->names, g->counts, g->classes};
    tern_figure figure = {.title = title,
                          .pictures = g->pictures,
                          .picture_count = g->count,
                          .across = g->across,
                          .legend = g->legend,
                          .legend_count = g->legend_count,
                          .charts = charts,
                          .confusion = g->classes ? &confusion : NULL};
    char group[48] = ""; /* "iou" */
    if (h->class_group)
        snprintf(group, sizeof(group), "%.*s", (int)strcspn(h->class_group, "/"), h->class_group);
    find_curves(h, found);
    for (int i = 0; i < CHARTS; i++) {
        const char *label = i == LOSSES ? "loss" : i == CLASSES ? group : "";
        if (found[i].count)
            charts[figure.chart_count++] =
                (tern_chart){titles[i], "epoch", label, found[i].items, found[i].count};
    }
    return tern_figure_save(path, &figure, err);
}
