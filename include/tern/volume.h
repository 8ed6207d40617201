/* volume.h - arrays in NumPy's files, volumes in NIfTI's, patches cut from them, and predictions put together
 * again.
 *
 * Threads: every function may be called from any thread; one volume is written to by one thread at a time. */
#ifndef TERN_VOLUME_H
#define TERN_VOLUME_H

#include <tern/data.h>
#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- .npy --------------------------------------------------------------------------------------------- */

/* The array of a file of numpy.save (versions 1 to 3, either byte order, C or Fortran order) as a row-major
 * tensor: f4, f8, f2, i8, i4, u1 and bool keep their dtype, i1, i2 and u2 become i32. Yours:
 * tern_tensor_free. Errors name the file. E_IO: missing, or shorter than its header says, found out before
 * memory for it is asked for; E_FORMAT: no such file, a header that is none, bytes behind the array;
 * E_UNSUPPORTED: other dtypes, more than TERN_NDIM_MAX dimensions; E_SHAPE: a dimension of 0. */
TERN_API tern_tensor *tern_npy_load(const char *path, tern_error *err);

/* What numpy.load opens: version 1, C order, the tensor's dtype (bf16 is E_UNSUPPORTED: NumPy has none). The
 * file takes its name when it is whole. E_IO, E_LIFETIME. */
TERN_API int tern_npy_save(const char *path, const tern_tensor *tensor, tern_error *err);

/* ---- volumes ------------------------------------------------------------------------------------------ */

/* Voxels as f32, which integers up to 2^24 survive: grey levels, labels, probabilities. */
typedef struct tern_volume {
    int64_t shape[4];    /* channels, depth, height, width; NIfTI's dimensions 4 (or 1), 3, 2, 1        */
    float *values;       /* row-major                                                                   */
    double spacing[3];   /* between voxels along depth, height and width, in mm; 1 where none is known  */
    double affine[3][4]; /* (column, row, slice, 1) -> x, y, z in mm: NIfTI's sform, else qform, else
                            spacing                                                                     */
    uint8_t header[348]; /* of the NIfTI file that it comes from; zeros: of none                        */
} tern_volume;

/* Zeros, with spacing 1 and an affine that says so. E_SHAPE: a dimension below 1, or too many voxels. Yours:
 * tern_volume_free. */
TERN_API tern_volume *tern_volume_new(const int64_t shape[4], tern_error *err);
TERN_API void tern_volume_free(tern_volume *volume);

/* Reads by the name's end: .nii and .nii.gz (NIfTI-1 in one file, any of its real dtypes, scl_slope and
 * scl_inter applied), .npy (D, H, W) or (C, D, H, W), .tif (its pages, in grey), and a folder of slices (PNG,
 * TIFF, JPEG, in grey, ordered by name with numbers as numbers: slice2 before slice10). Errors name the file.
 * E_IO: missing, truncated, an empty folder; E_FORMAT: damaged; E_SHAPE: slices of different size, an array
 * of other dimensions; E_UNSUPPORTED: another kind of file, complex or colour voxels, more than four
 * dimensions, a plug-in that is missing. Yours: tern_volume_free. */
TERN_API tern_volume *tern_volume_load(const char *path, tern_error *err);

/* Writes .nii, .nii.gz or .npy, as f32, i32 or u8; values that i32 and u8 cannot hold, fractions too, are
 * E_RANGE. NIfTI keeps the header that the volume came with (orientation, units, description) but for
 * dimensions, dtype and affine, so viewers lay it over the source. The file takes its name when it is whole.
 * E_IO, E_DTYPE, E_UNSUPPORTED. */
TERN_API int tern_volume_save(const char *path, const tern_volume *volume, tern_dtype dtype, tern_error *err);

/* The box of `shape` (depth, height, width) that begins at `start`, all channels, where it was in space.
 * E_RANGE: not inside the volume. Yours. */
TERN_API tern_volume *tern_volume_crop(const tern_volume *volume, const int64_t start[3],
                                       const int64_t shape[3], tern_error *err);

/* ---- patches ------------------------------------------------------------------------------------------ */

typedef struct tern_patches_opts {
    size_t size;
    int64_t patch[3];   /* depth, height, width; default 32, 64, 64                                       */
    int64_t count;      /* 0, the default: the regular grid. More: that many patches at random places     */
    int64_t overlap[3]; /* of neighbours in the grid, at least; default 0                                 */
    double foreground;  /* the share of the random patches that contain a voxel of a class above 0: the
                           class is drawn among those in the volume, then the voxel, so rare classes are
                           seen as often as others; default 0                                             */
    double flip[3];     /* of random patches: probability to mirror along each dimension; default 0       */
    uint64_t seed;      /* default 0                                                                      */
    tern_dtype target;  /* TERN_U8: class maps; TERN_F32: the labels' values; default U8                  */
    int classes;        /* of u8 maps: labels are in [0, classes) or 255, ignored; default 0: not checked */
    float mean, std;    /* x = (x - mean) / std; std 0, the default: mean and std of the volume           */
} tern_patches_opts;

TERN_API tern_patches_opts tern_patches_defaults(void);

/* A dataset of patches (C, d, h, w) with targets (d, h, w), cut from `count` volumes and their labels of one
 * channel. All images have the same number of channels; sizes may differ, none is smaller than the patch.
 *
 * The grid has as few patches as cover every voxel with the overlap asked for, evenly spread, the last ones
 * at the border; volume after volume. Random patches come from volume index % count at a place from (seed,
 * epoch, index), the same on any number of ranks and workers. Borrows the volumes; the arrays of pointers are
 * copied. E_INVALID, E_SHAPE: image and label differ in size, a patch that does not fit; E_RANGE: a label,
 * naming volume and voxel, or an option. Yours: tern_dataset_free. */
TERN_API tern_dataset *tern_patches_new(const tern_volume *const *images, const tern_volume *const *labels,
                                        int count, const tern_patches_opts *opts, tern_error *err);

/* ---- prediction --------------------------------------------------------------------------------------- */

typedef enum tern_blend { TERN_BLEND_GAUSSIAN, TERN_BLEND_CONSTANT } tern_blend;
typedef enum tern_window_output {
    TERN_WINDOW_PROBABILITIES,
    TERN_WINDOW_CLASSES,
    TERN_WINDOW_RAW
} tern_window_output;

typedef struct tern_window_opts {
    size_t size;
    int64_t patch[3];          /* default 32, 64, 64                                                      */
    double overlap;            /* of neighbours, as a share of the patch, in [0, 1); default 0.5          */
    tern_blend blend;          /* how overlapping patches are weighted. Gaussian, the default: by distance
                                  from the patch's centre, sigma an eighth of its size                    */
    tern_window_output output; /* of `classes` logits: softmax (1 class: sigmoid), which is the default;
                                  the largest as the class (1 class: 1 above a probability of .5); or the
                                  network's output as it is                                               */
    int64_t batch;             /* patches in one forward; default 1                                       */
    float mean, std;           /* as in tern_patches_opts                                                 */
} tern_window_opts;

TERN_API tern_window_opts tern_window_defaults(void);

/* Runs `net`, (N, C, d, h, w) -> (N, classes, d, h, w), over a volume of any size and blends what overlapping
 * patches say; the weights of all patches over a voxel sum to 1. Patches at the border lie inside; where the
 * volume is smaller than the patch, it is padded with its mean. Sets the net to evaluation, as it was
 * afterwards. The scope must be between two steps. The result has `classes` channels, or 1 of classes, and
 * the source's place in space. E_SHAPE: what the network returns. Yours: tern_volume_free. Sums are f64. */
TERN_API tern_volume *tern_sliding_window(tern_module *net, tern_scope *scope, const tern_volume *volume,
                                          int classes, const tern_window_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
