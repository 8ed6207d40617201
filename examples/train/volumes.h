/* volumes.h - the datasets of train_unet3d: volumes and their labels, for training and for testing. */
#ifndef TERN_EXAMPLES_VOLUMES_H
#define TERN_EXAMPLES_VOLUMES_H

#include <tern.h>

#define VOLUMES_MAX 32

typedef struct volume_set {
    tern_volume *images[VOLUMES_MAX], *labels[VOLUMES_MAX];
    int count;
} volume_set;

typedef struct volumes {
    const char *name;          /* for the banner                                      */
    int classes;               /* 1: labels are 0 and 1; more: 0 .. classes - 1       */
    const tern_legend *legend; /* name and colour of each label                       */
    volume_set train, test;
} volumes;

/* Generates grains: `count` volumes of `shape` (depth, height, width) for training and one for testing, each
 * from its own seed. */
void volumes_grains(volumes *v, int count, const int64_t shape[3], uint64_t seed, tern_error *err);
/* Load from Debian's mricron-data: the head ch2 with its brain as label, and the macaque brain inia19 with
 * its tissues. Each is a single brain, so training and test data are only separated in space: the
 * left half (low x) is for training and the right half for testing. The halves are nearly mirror images of
 * each other. */
void volumes_brain(volumes *v, tern_error *err);
void volumes_macaque(volumes *v, tern_error *err);
/* Loads DIR/train/images, DIR/train/labels, DIR/val/images and DIR/val/labels: any files that
 * tern_volume_load reads; an image and its label have the same name. Labels are 0 to classes - 1, or 0 and 1
 * if `classes` is 1. */
void volumes_folder(volumes *v, const char *dir, int classes, tern_error *err);
/* Returns the number of labels: 2 for a net of one class. */
int volumes_labels(const volumes *v);
void volumes_free(volumes *v);

#endif
