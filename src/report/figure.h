/* figure.h - the figure plug-in, loaded when first used. */
#ifndef TERN_SRC_REPORT_FIGURE_H
#define TERN_SRC_REPORT_FIGURE_H

#include "base/file.h"
#include "base/plugin.h"

#include <tern/backend/figure.h>

/* Returns NULL with *err set to E_UNSUPPORTED if the plug-in is not installed or has another ABI. */
const tern_figure_backend *tern__figure_open(const char *func, tern_error *err);

/* A PNG that is being written. */
typedef struct tern__figure_file {
    tern__output file;
    tern_error *err;
    tern_figure_out out; /* passed to the plug-in, writes to `file` */
    int failed;          /* the plug-in's status     */
    char why[256];
} tern__figure_file;

int tern__figure_create(tern__figure_file *figure, const char *path, const char *func, tern_error *err);
/* Moves the file to its name if all went well; otherwise the old file stays. */
int tern__figure_close(tern__figure_file *figure);

/* Refuses a chart that cannot be drawn. */
int tern__chart_check(const char *func, const tern_chart *chart, tern_error *err);

#endif
