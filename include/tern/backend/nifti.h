/* nifti.h - the interface of a NIfTI plug-in: one const struct in a shared object that is installed beside
 * the library. The plug-in knows the meaning of headers and voxels; the library reads and writes the files.
 *
 * Threads: any. */
#ifndef TERN_BACKEND_NIFTI_H
#define TERN_BACKEND_NIFTI_H

#include <stddef.h>
#include <stdint.h>

#define TERN_NIFTI_ABI    1
#define TERN_NIFTI_SYMBOL "tern_nifti_plugin"
#define TERN_NIFTI_HEADER 348 /* bytes */

typedef enum tern_nifti_status {
    TERN_NIFTI_OK,
    TERN_NIFTI_BAD,  /* not a NIfTI-1 header, or damaged     */
    TERN_NIFTI_OTHER /* valid, but of a kind that is not read */
} tern_nifti_status;

/* What a header says. */
typedef struct tern_nifti_info {
    int64_t shape[4];    /* dimension 4 (or 1), 3, 2, 1: row-major       */
    double spacing[3];   /* of dimensions 3, 2, 1, in mm                 */
    double affine[3][4]; /* (i, j, k, 1) -> x, y, z in mm                */
    int64_t offset;      /* of the first voxel in the file, in bytes     */
    int datatype;        /* NIfTI's code                                 */
    int bytes;           /* of one voxel                                 */
    int swapped;         /* 1: the file has the other byte order         */
    double slope, inter; /* value = slope * voxel + inter; 1 and 0 if none */
} tern_nifti_info;

typedef struct tern_nifti_backend {
    int abi;     /* TERN_NIFTI_ABI */
    size_t size; /* sizeof(tern_nifti_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* Reads a header. If it does not return TERN_NIFTI_OK, a reason is in why[0..why_size). Prints nothing.
     */
    tern_nifti_status (*parse)(const void *header, tern_nifti_info *info, char *why, size_t why_size);
    /* Converts `count` voxels of the file to values; it may overwrite `voxels`. */
    void (*values)(const tern_nifti_info *info, void *voxels, size_t count, float *values);
    /* Makes a header for a new file: the source's header (NULL: an empty one) with the shape, spacing, affine
     * and datatype of `info`. The voxels follow at byte 352. */
    void (*make)(const void *source, const tern_nifti_info *info, void *header);
} tern_nifti_backend;

#endif
