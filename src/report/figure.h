/* figure.h - the figure plug-in, loaded when first used. */
#ifndef TERN_SRC_REPORT_FIGURE_H
#define TERN_SRC_REPORT_FIGURE_H

#include "base/file.h"
#include "base/plugin.h"

#include <tern/backend/figure.h>

/* NULL with *err set, E_UNSUPPORTED, if it is not installed or is too old or too new. */
const tern_figure_backend *tern__figure_open(const char *func, tern_error *err);

/* The PNG's file while it is drawn. */
typedef struct tern__figure_file {
    tern__output file;
    tern_error *err;
    tern_figure_out out; /* into it, for the plug-in */
    int failed;          /* what the plug-in returns */
    char why[256];
} tern__figure_file;

int tern__figure_create(tern__figure_file *figure, const char *path, const char *func, tern_error *err);
/* The file takes its name if all went well; else the old one stays. */
int tern__figure_close(tern__figure_file *figure);

/* What tern_chart_save refuses. */
int tern__chart_check(const char *func, const tern_chart *chart, tern_error *err);

#endif
