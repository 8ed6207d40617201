/* gallery.h - what the final figure and TensorBoard show of the last evaluation: example images, the legend
 * of their colours, and a confusion matrix. */
#ifndef TERN_EXAMPLES_GALLERY_H
#define TERN_EXAMPLES_GALLERY_H

#include <tern.h>

#define GALLERY_MAX 64

typedef struct gallery {
    tern_picture pictures[GALLERY_MAX];
    char captions[GALLERY_MAX][64];
    int count, across; /* images per row: 3 for input, label and prediction */
    const tern_legend *legend;
    int legend_count;
    const char *names[TERN_CONFUSION_CHART_MAX]; /* of the classes of the confusion matrix .. */
    int64_t counts[TERN_CONFUSION_CHART_MAX * TERN_CONFUSION_CHART_MAX];
    int classes; /* .. and their number; 0: there is none */
} gallery;

/* Adds an image; `marked` prints the caption in red. Returns its rows * columns * channels pixels (1 channel:
 * grey, 3: RGB) for the caller to fill; NULL if memory or the gallery is full. */
uint8_t *gallery_add(gallery *g, int rows, int columns, int channels, bool marked, const char *caption, ...)
    __attribute__((format(printf, 6, 7)));
void gallery_free(gallery *g);
/* Logs all images with their captions as "Evaluation/examples", and saves them as examples.png in the folder.
 * Without the figure plug-in, logs images of equal sizes as a grid without captions. */
void gallery_log(const gallery *g, tern_board *board, const char *dir, int64_t step);

/* Fills pixels (rows, columns, channels) from x (channels, rows, columns) * std + mean, where 0 is black and
 * 1 is white; mean and std may be NULL: 0 and 1. Does nothing if `pixels` is NULL, as does gallery_map. */
void gallery_image(uint8_t *pixels, const float *x, int rows, int columns, int channels, const float *mean,
                   const float *std);
/* Fills pixels (count, 3) with the colour of each label; labels outside [0, classes) stay black. */
void gallery_map(uint8_t *pixels, const uint8_t *labels, int64_t count, const tern_legend *legend,
                 int classes);
/* Keeps the counts, whose classes have the `names`, unless nothing was counted or they are too many to be
 * drawn. */
void gallery_confusion(gallery *g, const tern_confusion *seen, const char *const *names, int64_t classes);

#endif
