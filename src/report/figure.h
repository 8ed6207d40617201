/* figure.h - the figure plug-in, loaded when first used. */
#ifndef TERN_SRC_REPORT_FIGURE_H
#define TERN_SRC_REPORT_FIGURE_H

#include "base/plugin.h"

#include <tern/backend/figure.h>

/* NULL with *err set, E_UNSUPPORTED, if it is not installed or is too old or too new. */
const tern_figure_backend *tern__figure_open(const char *func, tern_error *err);

/* What tern_chart_save refuses. */
int tern__chart_check(const char *func, const tern_chart *chart, tern_error *err);

#endif
