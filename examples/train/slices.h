/* slices.h - shows slices of volumes: image, label and prediction side by side. */
#ifndef TERN_EXAMPLES_SLICES_H
#define TERN_EXAMPLES_SLICES_H

#include "gallery.h"
#include "volumes.h"

/* Adds three images of a slice of `rows` x `columns`: its grey levels, stretched from black to white, its
 * labels and its predictions. */
void slices_add(gallery *g, const volumes *v, const float *image, const uint8_t *truth, const uint8_t *guess,
                int rows, int columns, const char *of);

/* Adds two slices across the shortest side of a volume: in each half, the slice with the most labelled
 * voxels. They are oriented as in viewers. */
void slices_of(gallery *g, const volumes *v, const tern_volume *image, const uint8_t *truth,
               const uint8_t *guess);

#endif
