/* augment.h - random changes of samples: of images and volumes, together with their maps.
 *
 * Threads: as data.h. */
#ifndef TERN_AUGMENT_H
#define TERN_AUGMENT_H

#include <tern/data.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_augment_opts {
    size_t size;
    int64_t crop[2];       /* height, width of the crop; default 0, 0: the sample's own                     */
    int64_t padding[2];    /* zeros added on both sides before cropping; default 0, 0                       */
    bool random_crop;      /* crop at a random place, else in the centre; default true                      */
    double flip;           /* probability of mirroring left to right; default 0                             */
    int channels;          /* number of values in mean and std; default 0: no normalisation                 */
    float mean[4], std[4]; /* x = (x - mean) / std, after all other changes, also in the padding            */
    uint64_t seed;         /* default 0                                                                     */

    double flip_vertical; /* probability of mirroring upside down; default 0                                */
    bool rotate;          /* rotate by a random number of quarter turns; needs a square crop; default false */
    int ignore;           /* value of maps in the padding; default 255                                      */

    /* Images only: resizing, before padding and cropping. */
    int64_t resize[2]; /* height, width; default 0, 0: the sample's own                                     */
    double scale[2];   /* times a random factor between these. If the result is smaller than the crop, more
                          padding is added below and to the right; default 1, 1                             */

    /* Images of 1 or 3 channels in [0, 1] only. Each is at most 1, hue at most 0.5; default 0. */
    double brightness, contrast, saturation; /* times a factor in [1 - this, 1 + this]                      */
    double hue;                              /* rotate by an angle in [-this, this] of a full turn          */

    /* Volumes only. */
    int64_t crop_depth, padding_depth; /* as crop and padding; default 0                                    */
    double flip_depth;                 /* probability of reversing the order of slices; default 0           */

    double intensity_scale, intensity_shift; /* x = x s + t, with s in [1 - scale, 1 + scale] and t in
                                                [-shift, shift]; default 0                                  */
} tern_augment_opts;

/* Returns the default options. */
TERN_API tern_augment_opts tern_augment_defaults(void);

/* Makes a dataset of the samples (C, H, W) or (C, D, H, W) of `dataset`, each changed as the options say,
 * with random numbers from (seed, epoch, index): the same on any number of ranks and workers, and after a
 * resume. A map (H, W) or (D, H, W), of f32, u8, i32 or i64, is cropped, mirrored and rotated as its sample
 * is; if that is resized, the map gets the nearest labels. Borrows `dataset`; the loader gives the epoch.
 * Yours: tern_dataset_free, before `dataset`.
 *
 * NULL on error: E_INVALID (no dataset with get), E_SHAPE (samples that are neither images nor volumes, a map
 * of another size, a crop larger than the padded sample, options for the other kind, another number of
 * channels), E_DTYPE (samples that are not f32, a map's), E_RANGE (an option).
 *
 * The changes are made in this order:
 *
 *   resize, scale     torchvision's resize with antialias, maps as Pillow's NEAREST
 *   padding, crop     RandomCrop or CenterCrop
 *   flips, rotate     hflip, vflip, torch.flip of the depth, torch.rot90(x, k, (-2, -1))
 *   colours           ColorJitter's four changes of tensors, in an order drawn for each sample
 *   intensity, mean and std
 *
 * and use these random numbers:
 *
 *   mix(z): z += G; z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) * 0x94d049bb133111eb;
 *           z ^ z >> 31; all modulo 2^64, with G = 0x9e3779b97f4a7c15: SplitMix64's output
 *   key = mix(mix(mix(seed) + epoch) + index), number i = mix(key + i G)
 *   place(i, n) = number i * n / 2^64, rounded down; share(i) = (number i >> 11) / 2^53
 *   between(i, a, b) = a + share(i) (b - a)
 *
 *   crop       top = place(0, padded height - crop height + 1); left alike with number 1 and the widths,
 *              the first slice with number 16 and the depths
 *   flips      share(2) < flip; share(17) < flip_vertical; share(18) < flip_depth
 *   rotate     k = place(19, 4)
 *   scale      factor = between(20, scale[0], scale[1]); sizes are rounded to the nearest, halves to even
 *   colours    brightness between(21, max(0, 1 - brightness), 1 + brightness); contrast alike with number 22,
 *              saturation with 23; hue between(24, -hue, hue). Order: of brightness, contrast, saturation,
 *              hue first the one at place(25, 4), then of the remaining three the one at place(26, 3), then
 *              of the remaining two the one at place(27, 2)
 *   intensity  s = between(28, 1 - intensity_scale, 1 + intensity_scale);
 *              t = between(29, -intensity_shift, intensity_shift)
 */
TERN_API tern_dataset *tern_augment_new(const tern_dataset *dataset, const tern_augment_opts *opts,
                                        tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
