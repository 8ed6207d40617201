/* volume.h - arrays in NumPy's files, volumes in NIfTI's, datasets of patches, and prediction for whole
 * volumes.
 *
 * Threads: every function may be called from any thread. One thread at a time may write to a volume. */
#ifndef TERN_VOLUME_H
#define TERN_VOLUME_H

#include <tern/data.h>
#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- .npy --------------------------------------------------------------------------------------------- */

/* Loads an array from a file of numpy.save (versions 1 to 3, either byte order, C or Fortran order) as a
 * row-major tensor. f4, f8, f2, i8, i4, u1 and bool keep their dtype; i1, i2 and u2 become i32. Headers that
 * other programs wrote are read as numpy.load reads them: a dtype by any of its names, integers of Python 2
 * (10L), either quotes; and refused as there. Yours: tern_tensor_free. Errors name the file: E_IO (missing,
 * or shorter than its header says, which is found before memory is allocated), E_FORMAT (not such a file, a
 * malformed header, bytes after the array), E_UNSUPPORTED (another dtype, more than TERN_NDIM_MAX
 * dimensions), E_SHAPE (a dimension of 0). */
TERN_API tern_tensor *tern_npy_load(const char *path, tern_error *err);

/* Saves a tensor for numpy.load: version 1, C order, in its dtype (tern's i8 and i16 are NumPy's i1 and i2;
 * bf16 is E_UNSUPPORTED: NumPy has none). The file gets its name when it is complete. E_IO, E_LIFETIME. */
TERN_API int tern_npy_save(const char *path, const tern_tensor *tensor, tern_error *err);

/* ---- volumes ------------------------------------------------------------------------------------------ */

/* A volume: grey levels, labels or probabilities, as f32, which represents all integers up to 2^24. */
typedef struct tern_volume {
    int64_t shape[4];    /* channels, depth, height, width; NIfTI's dimensions 4 (or 1), 3, 2, 1        */
    float *values;       /* row-major                                                                   */
    double spacing[3];   /* between voxels along depth, height and width, in mm, above 0; 1 if unknown. A
                            file in micrometres or metres is converted, one without a unit is in mm     */
    double affine[3][4]; /* (column, row, slice, 1) -> x, y, z in mm: NIfTI's sform, else its qform, else
                            from the spacing                                                            */
    uint8_t header[348]; /* of the NIfTI file that the volume was read from; else zeros                 */
} tern_volume;

/* Makes a volume of zeros, with spacing 1 and an affine for that. NULL on error: E_SHAPE (a dimension below
 * 1, or too many voxels), E_MEMORY. Yours: tern_volume_free. */
TERN_API tern_volume *tern_volume_new(const int64_t shape[4], tern_error *err);
TERN_API void tern_volume_free(tern_volume *volume);

/* Loads a volume. The end of the name tells the format: .nii and .nii.gz (NIfTI-1 in one file, any of its
 * real dtypes, with scl_slope and scl_inter applied), .npy of (D, H, W) or (C, D, H, W), .tif (its pages, in
 * grey), or a folder of slices (PNG, TIFF or JPEG, in grey, sorted by name with numbers as numbers: slice2
 * before slice10). Errors name the file: E_IO (missing, truncated, an empty folder), E_FORMAT (damaged),
 * E_SHAPE (slices of different sizes, an array of other dimensions), E_UNSUPPORTED (another kind of file,
 * complex or colour voxels, more than four dimensions, a missing plug-in). Yours: tern_volume_free. */
TERN_API tern_volume *tern_volume_load(const char *path, tern_error *err);

/* Saves a volume as .nii, .nii.gz or .npy, in f32, i32 or u8. A value that i32 or u8 cannot hold exactly is
 * E_RANGE. A NIfTI file keeps the header of the volume's source (orientation, units, description) except for
 * dimensions, dtype and affine, so viewers show it on top of the source. The file gets its name when it is
 * complete. E_IO, E_DTYPE, E_UNSUPPORTED. */
TERN_API int tern_volume_save(const char *path, const tern_volume *volume, tern_dtype dtype, tern_error *err);

/* Copies the box of `shape` (depth, height, width) that begins at `start`, with all channels and its position
 * in space. E_RANGE: not inside the volume. Yours: tern_volume_free. */
TERN_API tern_volume *tern_volume_crop(const tern_volume *volume, const int64_t start[3],
                                       const int64_t shape[3], tern_error *err);

/* ---- patches ------------------------------------------------------------------------------------------ */

typedef struct tern_patches_opts {
    size_t size;
    int64_t patch[3];   /* depth, height, width; default 32, 64, 64                                       */
    int64_t count;      /* number of patches at random places; default 0: a regular grid instead          */
    int64_t overlap[3]; /* smallest overlap of neighbours in the grid, in voxels; default 0               */
    double foreground;  /* the share of random patches that contain a voxel of a class above 0. First the
                           class is drawn from those in the volume, then the voxel, so rare classes are seen
                           as often as others; default 0                                                  */
    double flip[3];     /* random patches: probability to mirror along each dimension; default 0          */
    uint64_t seed;      /* default 0                                                                      */
    tern_dtype target;  /* TERN_U8: class maps; TERN_F32: the labels' values; default TERN_U8             */
    int classes;        /* u8 maps: labels are in [0, classes), or 255: ignored; default 0: not checked   */
    float mean, std;    /* x = (x - mean) / std; std 0, the default: the volume's own mean and std        */
} tern_patches_opts;

TERN_API tern_patches_opts tern_patches_defaults(void);

/* Makes a dataset of patches (C, d, h, w) with targets (d, h, w), cut from `count` volumes and their labels,
 * which have one channel. All images must have the same number of channels; their sizes may differ, but none
 * may be smaller than the patch.
 *
 * The grid has the fewest patches that cover every voxel with the requested overlap, evenly spread, the last
 * ones at the border, volume after volume. Random patch `index` comes from volume index % count, at a place
 * that depends on (seed, epoch, index), so it is the same on any number of ranks and workers. Borrows the
 * volumes; copies the arrays of pointers. NULL on error: E_INVALID, E_SHAPE (image and label differ in size,
 * or a patch does not fit), E_RANGE (a label, naming volume and voxel, or an option). Yours:
 * tern_dataset_free. */
TERN_API tern_dataset *tern_patches_new(const tern_volume *const *images, const tern_volume *const *labels,
                                        int count, const tern_patches_opts *opts, tern_error *err);

/* ---- prediction --------------------------------------------------------------------------------------- */

/* How overlapping patches are weighted; and what a prediction contains. */
typedef enum tern_blend { TERN_BLEND_GAUSSIAN, TERN_BLEND_CONSTANT } tern_blend;
typedef enum tern_window_output {
    TERN_WINDOW_PROBABILITIES,
    TERN_WINDOW_CLASSES,
    TERN_WINDOW_RAW
} tern_window_output;

typedef struct tern_window_opts {
    size_t size;
    int64_t patch[3];          /* depth, height, width; default 32, 64, 64                                */
    double overlap;            /* of neighbours, as a share of the patch, in [0, 1); default 0.5          */
    tern_blend blend;          /* the weights of a patch: constant, or Gaussian, by distance from its centre
                                  with sigma an eighth of its size; default Gaussian                      */
    tern_window_output output; /* of `classes` logits: the softmax (1 class: sigmoid), the default; or the
                                  class with the largest (1 class: 1 above probability .5); or the network's
                                  output itself                                                           */
    int64_t batch;             /* patches in one forward; default 1                                       */
    float mean, std;           /* as in tern_patches_opts                                                 */
} tern_window_opts;

TERN_API tern_window_opts tern_window_defaults(void);

/* Predicts a volume of any size: runs `net`, (N, C, d, h, w) -> (N, classes, d, h, w), on overlapping patches
 * and blends their results; at every voxel the weights of the patches sum to 1, and sums are f64. Patches at
 * the border lie inside the volume. A volume smaller than the patch is padded with its mean. The net runs in
 * evaluation mode, and gets its own mode back. The scope must be between two steps. The result has `classes`
 * channels (1 for TERN_WINDOW_CLASSES) and the source's position in space. E_SHAPE: the net's result has
 * another shape. Yours: tern_volume_free. */
TERN_API tern_volume *tern_sliding_window(tern_module *net, tern_scope *scope, const tern_volume *volume,
                                          int classes, const tern_window_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
