/* image_data.h - datasets of pictures: a folder a class, pictures with maps of labels (Cityscapes' layout),
 * and CIFAR. Samples are (C, H, W) in [0, 1], bytes / 255, as torchvision's ToTensor; normalise and augment
 * them with tern_augment_new.
 *
 * Threads: data.h's. Files are opened when a sample is asked for; its errors name the file. */
#ifndef TERN_IMAGE_DATA_H
#define TERN_IMAGE_DATA_H

#include <tern/data.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a folder a class ---- */

typedef struct tern_image_folder_opts {
    size_t size;
    int channels;    /* 3, or 1 for grey; default 3                                                     */
    int64_t crop[2]; /* height, width of the samples; default 224, 224                                  */
    int64_t resize;  /* the shorter side becomes this, and the crop is cut from the middle; at least the
                        crop's larger side; default 256                                                 */
    bool random;     /* for training: instead, a random part of the picture becomes the crop; default
                        false                                                                           */
    double scale[2]; /* of a random part: its share of the picture's area; default 0.08, 1              */
    double ratio[2]; /* and its width / height; default 3/4, 4/3                                        */
    uint64_t seed;   /* default 0                                                                       */
    bool draft;      /* decode JPEGs at 1/2, 1/4 or 1/8 where at least twice the crop's pixels are left
                        along each side, which makes little difference to see and large photographs much
                        faster; default false                                                           */
} tern_image_folder_opts;

TERN_API tern_image_folder_opts tern_image_folder_defaults(void);

/* torchvision.datasets.ImageFolder(root): the folders in `root` are the classes, sorted by name, and what is
 * below them and has the ending of a picture (.jpg, .jpeg, .png, .tif, .tiff, .bmp, .pgm, .ppm, .webp in any
 * case) the samples, folder by folder sorted by name; of the last four kinds each is an error when it is
 * asked for. Pictures become the crop as by torchvision's Resize and CenterCrop or, if `random`, by its
 * RandomResizedCrop, on Pillow's images, bit for bit (but the grey of a JPEG in colours is its own), with
 * random numbers of augment.h: of attempt a, number 64 + 4 a the area, 65 + 4 a the logarithm of the ratio,
 * 66 + 4 a the top, 67 + 4 a the left. E_IO: a folder cannot be read, there is no class, a class has no
 * picture. E_RANGE: an option. When a sample is asked for, tern_image_load's errors, and E_UNSUPPORTED if it
 * has not 8 bits a sample. */
TERN_API tern_dataset *tern_image_folder_open(const char *root, const tern_image_folder_opts *opts,
                                              tern_error *err);
/* The name of a class and the path of a sample's file; borrowed. NULL: there is no such. */
TERN_API const char *tern_image_folder_class(const tern_dataset *folder, int label);
TERN_API const char *tern_image_folder_path(const tern_dataset *folder, int64_t index);

/* ---- pictures with maps ---- */

typedef struct tern_cityscapes_opts {
    size_t size;
    const uint8_t *train_ids; /* train_ids[id] is the class of what the map calls `id`, 255 to ignore it;
                                 copied. Default NULL: Cityscapes' 34 ids and 19 classes */
    int ids;           /* in train_ids; an id beyond is E_RANGE; default 34                            */
    int classes;       /* train_ids are below it, or 255; default 19                                   */
    int64_t resize[2]; /* height, width to which picture (bilinear) and map (nearest) are resized;
                          default 0, 0: not, and all pictures must be as large as the first            */
} tern_cityscapes_opts;

TERN_API tern_cityscapes_opts tern_cityscapes_defaults(void);

/* Cityscapes' layout: root/leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png with the map
 * root/gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png, sorted by city and name. Samples are (3, H, W), targets
 * (H, W) of u8 classes. E_IO: a folder cannot be read, there is no picture, or one without a map. When a
 * sample is asked for: E_SHAPE: picture and map, or picture and first picture, differ in size; E_RANGE: an
 * id. */
TERN_API tern_dataset *tern_cityscapes_open(const char *root, const char *split,
                                            const tern_cityscapes_opts *opts, tern_error *err);
/* The path of a sample's picture; borrowed. NULL: there is no such. */
TERN_API const char *tern_cityscapes_path(const tern_dataset *dataset, int64_t index);

/* ---- CIFAR ---- */

typedef struct tern_cifar_opts {
    size_t size;
    int classes; /* 10, or 100; default 10                                                                 */
    bool test;   /* the test set, not the training set; default false                                      */
    bool coarse; /* CIFAR-100's 20 coarse labels; default false                                            */
} tern_cifar_opts;

TERN_API tern_cifar_opts tern_cifar_defaults(void);

/* CIFAR's binary version, read whole: of CIFAR-10 data_batch_1.bin to data_batch_5.bin, or test_batch.bin;
 * of CIFAR-100 train.bin, or test.bin. Samples are (3, 32, 32). E_IO: a file cannot be read; E_FORMAT: it is
 * not a whole number of records (what a truncated file is not); E_RANGE: a label, an option. */
TERN_API tern_dataset *tern_cifar_open(const char *folder, const tern_cifar_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
