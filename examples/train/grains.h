/* grains.h - generates micrographs, so that no download is needed: a polycrystal as a stack of noisy grey
 * slices, and the labels of its grain boundaries. */
#ifndef TERN_EXAMPLES_GRAINS_H
#define TERN_EXAMPLES_GRAINS_H

#include <tern.h>

/* Fills an image with grey levels in [0, 255] and, if it is not NULL, a label of the same size with 1 at
 * boundaries (three voxels thick) and 0 inside grains. The same seed and shape give the same bits on every
 * machine, since all arithmetic is on integers. A volume of 74 x 320 x 320 takes about half a second. Returns
 * 0, or a negative status with *err filled. */
int grains_make(tern_volume *image, tern_volume *label, uint64_t seed, tern_error *err);

#endif
