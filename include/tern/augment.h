/* augment.h - samples changed at random, pictures and volumes together with their maps.
 *
 * Threads: data.h's. */
#ifndef TERN_AUGMENT_H
#define TERN_AUGMENT_H

#include <tern/data.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_augment_opts {
    size_t size;
    int64_t crop[2];       /* height, width of what is cut out; default 0, 0: the sample's own              */
    int64_t padding[2];    /* zeros on both sides before the cut; default 0, 0                              */
    bool random_crop;      /* a random place, else the centre; default true                                 */
    double flip;           /* probability of a mirror image, left to right; default 0                       */
    int channels;          /* of mean and std; default 0: no normalisation                                  */
    float mean[4], std[4]; /* x = (x - mean) / std, after all else, padding too                             */
    uint64_t seed;         /* default 0                                                                     */

    double flip_vertical; /* probability of a mirror image, upside down; default 0                          */
    bool rotate;          /* by a random number of quarter turns, of a crop that is square; default false   */
    int ignore;           /* what maps have in the padding; default 255                                     */

    /* Of images, which become another size before they are padded and cut. */
    int64_t resize[2]; /* height, width; default 0, 0: the sample's own                                     */
    double scale[2];   /* times a random factor between these; where the crop is larger than what comes of
                          it, there is more padding below and to the right; default 1, 1                    */

    /* Of images of 1 or 3 channels in [0, 1]; each at most 1, hue at most 0.5; default 0. */
    double brightness, contrast, saturation; /* by a factor in [1 - this, 1 + this]                         */
    double hue;                              /* by an angle in [-this, this] of a full turn                 */

    /* Of volumes. */
    int64_t crop_depth, padding_depth; /* as crop and padding; default 0                                    */
    double flip_depth;                 /* probability that the order of slices is turned; default 0         */

    double intensity_scale, intensity_shift; /* x = x s + t, with s in [1 - scale, 1 + scale] and t in
                                                [-shift, shift]; default 0                                  */
} tern_augment_opts;

TERN_API tern_augment_opts tern_augment_defaults(void);

/* The samples (C, H, W) or (C, D, H, W) of `dataset`, each changed as the options say by numbers of its own
 * from (seed, epoch, index): the same on any number of ranks and workers, and after a resume. A map (H, W) or
 * (D, H, W), of f32, u8, i32 or i64, is cut, mirrored and turned as its sample is, and where that is resized
 * gets the labels that are nearest. In this order:
 *
 *   resize, scale     torchvision's resize with antialias, maps as Pillow's NEAREST
 *   padding, crop     RandomCrop or CenterCrop
 *   flips, rotate     hflip, vflip, torch.flip of the depth, torch.rot90(x, k, (-2, -1))
 *   colours           ColorJitter: its four changes of tensors, in an order of the sample's own
 *   intensity, mean and std
 *
 * with these random numbers:
 *
 *   mix(z): z += G; z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) * 0x94d049bb133111eb;
 *           z ^ z >> 31; all modulo 2^64, with G = 0x9e3779b97f4a7c15: SplitMix64's output
 *   key = mix(mix(mix(seed) + epoch) + index), number i = mix(key + i G)
 *   place(i, n) = number i * n / 2^64, rounded down; share(i) = (number i >> 11) / 2^53
 *   between(i, a, b) = a + share(i) (b - a)
 *
 *   top = place(0, padded height - crop height + 1), left with number 1 and widths, first slice with 16 and
 *   depths; mirrored if share(2) < flip, share(17) < flip_vertical, share(18) < flip_depth
 *   k = place(19, 4); the factor of scale = between(20, scale[0], scale[1]), and sizes are rounded to the
 *   nearest, halves to even
 *   factors: between(21, max(0, 1 - brightness), 1 + brightness), 22 contrast, 23 saturation; angle:
 *   between(24, -hue, hue); order: of brightness, contrast, saturation, hue first the one at place(25, 4),
 *   then of the three left at place(26, 3), then of two at place(27, 2)
 *   s = between(28, 1 - intensity_scale, 1 + intensity_scale), t = between(29, -intensity_shift, ..)
 *
 * Borrows `dataset`. The loader tells the epoch. E_INVALID: no dataset with get. E_SHAPE: samples that are
 * neither images nor volumes, a map of another size, a crop larger than the padded sample, options for the
 * other kind, another number of channels. E_DTYPE: a map's. E_RANGE: an option. Yours: tern_dataset_free,
 * before `dataset`. */
TERN_API tern_dataset *tern_augment_new(const tern_dataset *dataset, const tern_augment_opts *opts,
                                        tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
