/* figure.h - what a training has come to, on one page: the gallery, and below it the curves of losses and of
 * the other main numbers. */
#ifndef TERN_EXAMPLES_FIGURE_H
#define TERN_EXAMPLES_FIGURE_H

#include "gallery.h"
#include "history.h"

/* Writes a PNG. One epoch makes no curve: then there are only pictures. Errors: as tern_figure_save. */
int figure_save(const char *path, const char *title, const history *h, const gallery *g, tern_error *err);

#endif
