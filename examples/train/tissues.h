/* tissues.h - which tissue each region of the macaque atlas inia19 is.
 *
 * The atlas (T. Rohlfing et al. 2012, "The INIA19 template and NeuroMaps atlas for primate brain image
 * parcellation and spatial normalization", Front. Neuroinform. 6:27, CC-BY) labels 502 regions of each half
 * of the brain; here they are put together by their names. */
#ifndef TERN_EXAMPLES_TISSUES_H
#define TERN_EXAMPLES_TISSUES_H

enum { BACKGROUND, CORTEX, WHITE_MATTER, SUBCORTICAL, CEREBELLUM, CSF, TISSUES };

/* Of a label of inia19-NeuroMaps; background for one that the atlas does not have. */
int tissue_of(int region);

#endif
