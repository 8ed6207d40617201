/* tissues.h - maps the regions of the macaque atlas inia19 to tissues.
 *
 * The atlas (T. Rohlfing et al. 2012, "The INIA19 template and NeuroMaps atlas for primate brain image
 * parcellation and spatial normalization", Front. Neuroinform. 6:27, CC-BY) labels 502 regions in each half
 * of the brain; this table groups them by their names. */
#ifndef TERN_EXAMPLES_TISSUES_H
#define TERN_EXAMPLES_TISSUES_H

enum { BACKGROUND, CORTEX, WHITE_MATTER, SUBCORTICAL, CEREBELLUM, CSF, TISSUES };

/* Returns the tissue of a label of inia19-NeuroMaps; BACKGROUND if the atlas does not have the label. */
int tissue_of(int region);

#endif
