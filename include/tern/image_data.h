/* image_data.h - datasets of pictures. Samples are (C, H, W) in [0, 1], bytes / 255, as torchvision's
 * ToTensor; normalise and augment them with tern_augment_new.
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
} tern_image_folder_opts;

TERN_API tern_image_folder_opts tern_image_folder_defaults(void);

/* torchvision.datasets.ImageFolder(root): the folders in `root` are the classes, sorted by name, and what is
 * below them and has the ending of a picture (.jpg, .jpeg, .png, .tif, .tiff, .bmp, .pgm, .ppm, .webp in any
 * case) the samples, folder by folder sorted by name; of the last four kinds each is an error when it is
 * asked for. Pictures become the crop as by torchvision's Resize and CenterCrop or, if `random`, by its
 * RandomResizedCrop, on Pillow's images, bit for bit, with random numbers of data.h's augmentation: of
 * attempt a, number 64 + 4 a the area, 65 + 4 a the logarithm of the ratio, 66 + 4 a the top, 67 + 4 a the
 * left. E_IO: a folder cannot be read, there is no class, a class has no picture. E_RANGE: an option. */
TERN_API tern_dataset *tern_image_folder_open(const char *root, const tern_image_folder_opts *opts,
                                              tern_error *err);
/* The name of a class and the path of a sample's file; borrowed. NULL: there is no such. */
TERN_API const char *tern_image_folder_class(const tern_dataset *folder, int label);
TERN_API const char *tern_image_folder_path(const tern_dataset *folder, int64_t index);

#ifdef __cplusplus
}
#endif
#endif
