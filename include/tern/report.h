/* report.h - what a person sees of a run: a progress bar, and figures as PNG files.
 *
 * Threads: a progress bar, with its outer and inner bars, belongs to one thread at a time. Figures may be
 * drawn on any thread, several at a time, each to a file of its own. */
#ifndef TERN_REPORT_H
#define TERN_REPORT_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- progress: a bar as tqdm's ----
 *
 * On a terminal the bar is one line that is redrawn. It shows the share that is done, the amount done and the
 * total, the time so far, the time left, the rate (tqdm turns one below 1 into seconds per unit), and values
 * of your own:
 *
 *     epoch 3:  45%|#########           | 27008/60000 [00:10<00:12, 2712.51img/s, loss=0.412, lr=0.1]
 *
 * In a file or a job's log it prints the same without the bar, from time to time, as separate lines. Output
 * goes to stderr, and only from rank 0 of the group. The numbers are those of all ranks together; each rank
 * is assumed to have as much to do, and to have done as much, as this one. Every function accepts NULL and
 * then does nothing. */

typedef struct tern_progress tern_progress;

typedef struct tern_progress_opts {
    size_t size;
    const char *unit;        /* what is counted: "img", " batches"; default "it"                         */
    bool unit_scale;         /* print 27.0k for 27008; default false                                     */
    int64_t initial;         /* units done before, by the run that is resumed; default 0                 */
    bool leave;              /* keep the last state on the screen; false: erase it; default true         */
    tern_progress *parent;   /* an outer bar; this one is shown below it; default NULL                   */
    double smoothing;        /* of the rate and the time left: 0 uses the mean since the start, 1 the last
                              * interval only; default 0.3                                               */
    double interval_seconds; /* between two redraws on a terminal; default 0.1                           */
    double line_seconds;     /* between two lines elsewhere; default 10; 0: no lines                     */
} tern_progress_opts;
/* Returns the default options. */
TERN_API tern_progress_opts tern_progress_defaults(void);

/* Makes a bar for `total` units of work on this rank, or 0 if the number is unknown; `group` may be NULL for
 * a single process. Borrows the parent: free the inner bar first. Yours: tern_progress_free. NULL on error:
 * E_RANGE (a negative number, a smoothing above 1), E_MEMORY. */
TERN_API tern_progress *tern_progress_new(const char *title, int64_t total, const tern_group *group,
                                          const tern_progress_opts *opts, tern_error *err);
TERN_API void tern_progress_free(tern_progress *bar);

/* Adds `count` units to what this rank has done, such as the samples of its batch. */
TERN_API void tern_progress_update(tern_progress *bar, int64_t count);
/* Shows `value` under `name` from the next drawing on, such as "loss" and tern_ddp_loss_mean. Names are shown
 * in the order in which they were first used; there is room for eight, of 15 characters each. A value whose
 * name ends in " %" is a percentage: "data %" is shown as "data 16.4 %". tqdm.set_postfix. */
TERN_API void tern_progress_postfix(tern_progress *bar, const char *name, double value);
/* Prints a line of text on stdout, above the bars; only the rank that shows the bar does so. tqdm.write. */
TERN_API void tern_progress_print(tern_progress *bar, const char *text);

/* Return the units per second of all ranks since the bar was made, without the initial ones, and the
 * seconds. */
TERN_API double tern_progress_rate(const tern_progress *bar);
TERN_API double tern_progress_seconds(const tern_progress *bar);

/* ---- figures (plug-in; cairo) ---- */

/* One image of a grid: rows * columns grey pixels, 0 is black, or as many red, green, blue triples. */
typedef struct tern_picture {
    const uint8_t *pixels;
    int rows, columns, channels; /* 0 or 1 channel: grey; 3: colour */
    const char *caption;         /* below the image                 */
    bool marked;                 /* caption in red                  */
} tern_picture;

/* Writes `count` images as a PNG, with `across` images in a row. The file gets its name when it is complete.
 * Errors: E_UNSUPPORTED (the plug-in is not installed; the text says what is missing), E_RANGE (no image),
 * E_IO (the file cannot be written; an old one is still there). */
TERN_API int tern_picture_grid_save(const char *path, const char *title, const tern_picture *pictures,
                                    int count, int across, tern_error *err);

/* A line through the points (x[i], y[i]); with `low` and `high`, also a band between them. */
typedef struct tern_curve {
    const char *name; /* in the legend */
    const double *x, *y;
    const double *low, *high; /* both or neither */
    int count;                /* at least 1; a single point is a dot */
} tern_curve;

/* Curves over common axes. */
typedef struct tern_chart {
    const char *title, *x_label, *y_label;
    const tern_curve *curves;
    int count;
} tern_chart;

/* Writes a chart as a PNG. Errors: those of tern_picture_grid_save; E_INVALID (NULL), E_RANGE (no curve, no
 * point, or a point that is not finite). */
TERN_API int tern_chart_save(const char *path, const tern_chart *chart, tern_error *err);

/* One bar of a bar chart, from 0 to `value`, with its name and number; and a line from `low` to `high`, the
 * range of what was measured. */
typedef struct tern_bar {
    const char *name;
    double value, low, high;
    int colour; /* bars with the same number have the same colour */
} tern_bar;

/* Bars side by side, to compare numbers. */
typedef struct tern_bars {
    const char *title;
    const tern_bar *bars;
    int count;
} tern_bars;

/* The colour of a class in the images, for the legend below them. */
typedef struct tern_legend {
    const char *name;
    uint8_t colour[3]; /* red, green, blue */
} tern_legend;

#define TERN_CONFUSION_CHART_MAX 20

/* A confusion matrix: counts[i * classes + k] samples of class i were taken for class k (the counts of a
 * tern_confusion, or of sklearn.metrics.confusion_matrix). Each cell shows its share of the row. */
typedef struct tern_confusion_chart {
    const char *title;
    const char *const *names; /* of the classes */
    const int64_t *counts;
    int classes; /* 1 to TERN_CONFUSION_CHART_MAX */
} tern_confusion_chart;

/* A page: images, `across` in a row, and their legend; below them bar charts, two in a row; then charts and
 * the confusion matrix, two in a row. Parts with a count of 0, or NULL, are left out; one part must be
 * there. */
typedef struct tern_figure {
    const char *title;
    const tern_picture *pictures;
    int picture_count, across;
    const tern_bars *bars;
    int bars_count;
    const tern_chart *charts;
    int chart_count;
    const tern_legend *legend;
    int legend_count;
    const tern_confusion_chart *confusion;
} tern_figure;

/* Writes the page as a PNG. Errors: those of tern_chart_save, for each chart too; E_RANGE also for nothing to
 * draw, bars or counts that are negative or not finite, images without pixels or with other than 1 or 3
 * channels. */
TERN_API int tern_figure_save(const char *path, const tern_figure *figure, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
