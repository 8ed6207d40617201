/* figure.h - draws the results of a training on one page: the gallery, and below it the curves of the losses
 * and of the other main numbers. */
#ifndef TERN_EXAMPLES_FIGURE_H
#define TERN_EXAMPLES_FIGURE_H

#include "gallery.h"
#include "history.h"

/* Writes a PNG. After a single epoch there are no curves, only images. Errors: as tern_figure_save. */
int figure_save(const char *path, const char *title, const history *h, const gallery *g, tern_error *err);

#endif
