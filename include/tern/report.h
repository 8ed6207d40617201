/* report.h - what a person sees: a progress bar and figures.
 *
 * Threads: a progress bar belongs to one thread at a time. */
#ifndef TERN_REPORT_H
#define TERN_REPORT_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- progress: what tqdm shows ----
 *
 * On a terminal one line that is redrawn, with the share done, what is done of how much, the time it took,
 * the time left, the rate, and values of one's own:
 *
 *     epoch 3:  45%|#########           | 27008/60000 [00:10<00:12, 2712.51img/s, loss=0.412, lr=0.1]
 *
 * Elsewhere, in a file or a job's log, the same without the bar, now and then, as lines of their own. It goes
 * to stderr. Only rank 0 of the group shows it. The numbers are those of all ranks together: each is taken to
 * have as much to do, and to have done as much, as this one. Every function takes NULL and does nothing. ----
 */

typedef struct tern_progress tern_progress;

typedef struct tern_progress_opts {
    size_t size;
    const char *unit;        /* of what is counted: "img", " batches"; default "it"                      */
    bool unit_scale;         /* 27.0k for 27008; default false                                           */
    int64_t initial;         /* done before, by the run that is taken up again; default 0                */
    bool leave;              /* what it showed last stays; false: it is erased; default true             */
    tern_progress *parent;   /* an outer bar, below which this one stands; default NULL                  */
    double smoothing;        /* of rate and time left: 0 the mean since the start, 1 the last interval's
                              * alone; default 0.3                                                       */
    double interval_seconds; /* between two drawings on a terminal; default 0.1                          */
    double line_seconds;     /* between two lines elsewhere; default 10; 0: no lines                     */
} tern_progress_opts;
TERN_API tern_progress_opts tern_progress_defaults(void);

/* For `total` units on this rank, or 0 if nobody knows how many; `group` may be NULL: alone. Borrows the
 * parent: free the inner bar first. Yours: tern_progress_free. E_RANGE: a negative number, a smoothing above
 * 1; E_MEMORY. */
TERN_API tern_progress *tern_progress_new(const char *title, int64_t total, const tern_group *group,
                                          const tern_progress_opts *opts, tern_error *err);
TERN_API void tern_progress_free(tern_progress *bar);

/* This rank has done `count` units more: the samples of its batch, say. */
TERN_API void tern_progress_update(tern_progress *bar, int64_t count);
/* Shows `value` under `name` from the next drawing on: "loss" and tern_ddp_loss_mean. Names stand in the
 * order in which they came first; there is room for eight of 15 characters. tqdm.set_postfix. */
TERN_API void tern_progress_postfix(tern_progress *bar, const char *name, double value);
/* A line of text on stdout, above the bars; by the rank that shows the bar only. tqdm.write. */
TERN_API void tern_progress_print(tern_progress *bar, const char *text);

/* Units a second over all ranks, without the initial ones, and seconds, since the bar was made. */
TERN_API double tern_progress_rate(const tern_progress *bar);
TERN_API double tern_progress_seconds(const tern_progress *bar);

/* ---- figures (plug-in; cairo) ---- */

/* One picture of a grid: `pixels` are rows * columns grey values, 0 black, or as many times red, green, blue.
 */
typedef struct tern_picture {
    const uint8_t *pixels;
    int rows, columns;
    const char *caption; /* below the picture */
    bool marked;         /* caption in red    */
    int channels;        /* 0 or 1: grey; 3: colours */
} tern_picture;

/* Writes `count` pictures, `across` to a row, as a PNG, which takes its name when it is whole. E_UNSUPPORTED
 * if the plug-in is not installed (the text says what is missing), E_IO if the file cannot be written: the
 * old one is still there. */
TERN_API int tern_picture_grid_save(const char *path, const char *title, const tern_picture *pictures,
                                    int count, int across, tern_error *err);

/* A line through the points (x[i], y[i]), and where `low` and `high` are given a band between them. */
typedef struct tern_curve {
    const char *name; /* in the legend */
    const double *x, *y;
    const double *low, *high; /* both or none */
    int count;                /* at least 2   */
} tern_curve;

typedef struct tern_chart {
    const char *title, *x_label, *y_label;
    const tern_curve *curves;
    int count;
} tern_chart;

/* Writes the curves over common axes as a PNG. Errors: as tern_picture_grid_save; E_INVALID (something is
 * NULL), E_RANGE (no curve, too few points, or one that is not finite). */
TERN_API int tern_chart_save(const char *path, const tern_chart *chart, tern_error *err);

/* Bars side by side to compare numbers from 0 on, each with its name and number, and from `low` to `high` a
 * line of what was between. */
typedef struct tern_bar {
    const char *name;
    double value, low, high;
    int colour; /* bars of one number have one colour */
} tern_bar;

typedef struct tern_bars {
    const char *title;
    const tern_bar *bars;
    int count;
} tern_bars;

/* A page: pictures `across` to a row, and below them bars, and then charts, two to a row. What has a count of
 * 0 is left out, but not all. */
typedef struct tern_figure {
    const char *title;
    const tern_picture *pictures;
    int picture_count, across;
    const tern_bars *bars;
    int bars_count;
    const tern_chart *charts;
    int chart_count;
} tern_figure;

/* Writes the page as a PNG. Errors: as tern_chart_save, of each chart too; E_RANGE also: nothing to draw,
 * bars that are negative or not finite, none of 1 or 3 channels, a picture without pixels. */
TERN_API int tern_figure_save(const char *path, const tern_figure *figure, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
