/* report.h - what a person sees: a progress bar and figures.
 *
 * Threads: a progress bar belongs to one thread at a time. */
#ifndef TERN_REPORT_H
#define TERN_REPORT_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- progress bar: rate, time left and one value; only rank 0 shows it, and only on a terminal ---- */

typedef struct tern_progress tern_progress;

/* For `steps` steps on every rank of `group` (NULL: alone), on stderr. Yours: tern_progress_free, which
 * erases the bar. */
TERN_API tern_progress *tern_progress_new(const char *title, int64_t steps, const tern_group *group,
                                          tern_error *err);
TERN_API void tern_progress_free(tern_progress *bar);

/* One step is done: `samples` of this rank (every rank is taken to have done as many); `value` is shown under
 * `name`, say "loss" and tern_ddp_loss_mean. Redraws at most ten times a second. */
TERN_API void tern_progress_update(tern_progress *bar, int64_t samples, const char *name, double value);

/* Samples a second over all ranks, and seconds, since the bar was made. */
TERN_API double tern_progress_rate(const tern_progress *bar);
TERN_API double tern_progress_seconds(const tern_progress *bar);

/* ---- figures (plug-in; cairo) ---- */

/* One picture of a grid: `pixels` are rows * columns grey values, 0 black. */
typedef struct tern_picture {
    const uint8_t *pixels;
    int rows, columns;
    const char *caption; /* below the picture */
    bool marked;         /* caption in red    */
} tern_picture;

/* Writes `count` pictures, `across` to a row, as a PNG. E_UNSUPPORTED if the plug-in is not installed (the
 * text says what is missing), E_IO if the file cannot be written. */
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

#ifdef __cplusplus
}
#endif
#endif
