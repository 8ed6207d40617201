/* volumes.h - what train_unet3d learns from: volumes and their labels, apart for training and for testing. */
#ifndef TERN_EXAMPLES_VOLUMES_H
#define TERN_EXAMPLES_VOLUMES_H

#include <tern.h>

#define VOLUMES_MAX 32

typedef struct volume_set {
    tern_volume *images[VOLUMES_MAX], *labels[VOLUMES_MAX];
    int count;
} volume_set;

typedef struct volumes {
    const char *name;            /* for the banner                                      */
    int classes;                 /* 1: labels are 0 and 1; more: 0 .. classes - 1       */
    const char *const *names;    /* of the classes                                      */
    const uint8_t (*colours)[3]; /* of labels 0 ..                                      */
    volume_set train, test;
} volumes;

/* Grains: `count` volumes of `shape` (depth, height, width) for training and one for testing, from seeds of
 * their own. */
void volumes_grains(volumes *v, int count, const int64_t shape[3], uint64_t seed, tern_error *err);
/* Debian's mricron-data: the head ch2 with its brain, and the macaque's brain inia19 with its tissues
 * (tissues.h). Each is one brain, so training and test are apart in space only: the half of low x, its left,
 * for training, the right half for testing, and the two are nearly mirror images of each other. */
void volumes_brain(volumes *v, tern_error *err);
void volumes_macaque(volumes *v, tern_error *err);
/* DIR/train/images, DIR/train/labels, DIR/val/images and DIR/val/labels, in each the same names: whatever
 * tern_volume_load reads. Labels are 0 to classes - 1. */
void volumes_folder(volumes *v, const char *dir, int classes, tern_error *err);
/* The number of labels; a net of one class tells two apart. */
int volumes_labels(const volumes *v);
void volumes_free(volumes *v);

#endif
