/* slices.h - volumes as pictures: image, label and prediction beside each other. */
#ifndef TERN_EXAMPLES_SLICES_H
#define TERN_EXAMPLES_SLICES_H

#include "gallery.h"
#include "volumes.h"

/* Adds one slice of `rows` x `columns`: three pictures, grey levels from low to high, labels, predictions. */
void slices_add(gallery *g, const volumes *v, const float *image, const uint8_t *truth, const uint8_t *guess,
                int rows, int columns, const char *of);

/* Adds two slices across the shortest side of a volume, of either half the one with the most in it, as
 * viewers show them. */
void slices_of(gallery *g, const volumes *v, const tern_volume *image, const uint8_t *truth,
               const uint8_t *guess);

#endif
