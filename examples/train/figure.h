/* figure.h - draws the results of a training on one page: the gallery's images and legend, and below them the
 * curves of the losses, of the evaluation and of the classes, and the confusion matrix. */
#ifndef TERN_EXAMPLES_FIGURE_H
#define TERN_EXAMPLES_FIGURE_H

#include "gallery.h"
#include "history.h"

/* Writes a PNG. After a single epoch a curve is a dot. Errors: as tern_figure_save. */
int figure_save(const char *path, const char *title, const history *h, const gallery *g, tern_error *err);

#endif
