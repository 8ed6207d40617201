/* image_data.h - datasets of images: a folder for each class, images with label maps (Cityscapes' layout),
 * and CIFAR.
 *
 * Samples are (C, H, W) with values in [0, 1], bytes / 255, as torchvision's ToTensor; normalise and augment
 * them with tern_augment_new. Files are opened when a sample is read, and errors then name the file. All
 * datasets are yours: tern_dataset_free.
 *
 * Threads: as data.h. */
#ifndef TERN_IMAGE_DATA_H
#define TERN_IMAGE_DATA_H

#include <tern/data.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a folder for each class ---- */

typedef struct tern_image_folder_opts {
    size_t size;
    int channels;    /* 3, or 1 for grey; default 3                                                     */
    int64_t crop[2]; /* height, width of the samples; default 224, 224                                  */
    int64_t resize;  /* resize the shorter side to this, then cut the crop from the middle; at least the
                        crop's larger side; default 256                                                 */
    bool random;     /* for training: resize a random part of the image to the crop instead; default false */
    double scale[2]; /* a random part's share of the image's area, from, to; default 0.08, 1            */
    double ratio[2]; /* its width / height, from, to; default 3/4, 4/3                                  */
    uint64_t seed;   /* default 0                                                                       */
    bool draft;      /* decode JPEGs at 1/2, 1/4 or 1/8 of their size, as long as each side has at least
                        twice the crop's pixels. The difference is hard to see, and large photographs are
                        read much faster; default false                                                 */
} tern_image_folder_opts;

TERN_API tern_image_folder_opts tern_image_folder_defaults(void);

/* Opens a folder of images, as torchvision.datasets.ImageFolder(root): the folders in `root` are the classes,
 * sorted by name. The samples are all files below them whose name ends as an image's (.jpg, .jpeg, .png,
 * .tif, .tiff, .bmp, .pgm, .ppm, .webp, in any case), folder by folder, sorted by name; files of the last
 * four kinds give an error when they are read.
 *
 * Images become the crop as with torchvision's Resize and CenterCrop or, if `random`, with its
 * RandomResizedCrop, on Pillow's images, bit for bit (except that the grey of a colour JPEG is its own).
 * Random numbers are those of augment.h: attempt a uses number 64 + 4 a for the area, 65 + 4 a for the
 * logarithm of the ratio, 66 + 4 a for the top, 67 + 4 a for the left.
 *
 * E_IO: a folder cannot be read, there is no class, or a class has no image; E_RANGE: an option. When a
 * sample is read: the errors of tern_image_load, and E_UNSUPPORTED if it does not have 8 bits a channel. */
TERN_API tern_dataset *tern_image_folder_open(const char *root, const tern_image_folder_opts *opts,
                                              tern_error *err);
/* Return the name of a class, and the path of a sample's file; borrowed. `folder` may also be a subset or an
 * augmentation of one. NULL if it is not, or there is no such class or sample. */
TERN_API const char *tern_image_folder_class(const tern_dataset *folder, int label);
TERN_API const char *tern_image_folder_path(const tern_dataset *folder, int64_t index);

/* ---- images with label maps ---- */

typedef struct tern_cityscapes_opts {
    size_t size;
    const uint8_t *train_ids; /* train_ids[id] is the class of label `id` in the maps, 255 to ignore it;
                                 copied. Default NULL: Cityscapes' 34 ids and 19 classes */
    int ids;           /* length of train_ids; a larger id is E_RANGE; default 34                      */
    int classes;       /* train_ids are below it, or 255; default 19                                   */
    int64_t resize[2]; /* height, width to which images (bilinear) and maps (nearest) are resized; default
                          0, 0: not resized, and all images must be as large as the first              */
} tern_cityscapes_opts;

TERN_API tern_cityscapes_opts tern_cityscapes_defaults(void);

/* Opens images with maps in Cityscapes' layout: root/leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png with the map
 * root/gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png, sorted by city and name. Samples are (3, H, W), targets
 * (H, W) of u8 classes. E_IO: a folder cannot be read, there is no image, or an image has no map. When a
 * sample is read: E_SHAPE: image and map, or image and first image, differ in size; E_RANGE: an id. */
TERN_API tern_dataset *tern_cityscapes_open(const char *root, const char *split,
                                            const tern_cityscapes_opts *opts, tern_error *err);
/* Returns the path of a sample's image; borrowed. `dataset` may also be a subset or an augmentation of one.
 * NULL if it is not, or there is no such sample. */
TERN_API const char *tern_cityscapes_path(const tern_dataset *dataset, int64_t index);

/* ---- CIFAR ---- */

typedef struct tern_cifar_opts {
    size_t size;
    int classes; /* 10 or 100; default 10                                                                  */
    bool test;   /* the test set instead of the training set; default false                                */
    bool coarse; /* use CIFAR-100's 20 coarse labels; default false                                        */
} tern_cifar_opts;

TERN_API tern_cifar_opts tern_cifar_defaults(void);

/* Opens the binary version of CIFAR and reads it as a whole: data_batch_1.bin to data_batch_5.bin or
 * test_batch.bin for CIFAR-10, train.bin or test.bin for CIFAR-100. Samples are (3, 32, 32). E_IO: a file
 * cannot be read; E_FORMAT: it has not a whole number of records (it may be truncated); E_RANGE: a label, an
 * option. */
TERN_API tern_dataset *tern_cifar_open(const char *folder, const tern_cifar_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
