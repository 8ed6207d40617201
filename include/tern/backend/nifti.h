/* nifti.h - what a NIfTI plug-in offers: one const struct in a shared object of its own, found beside the
 * library. It knows what headers and voxels mean; files are the library's.
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
    TERN_NIFTI_BAD,  /* no NIfTI-1 header, or a damaged one */
    TERN_NIFTI_OTHER /* sound, but not what this reads      */
} tern_nifti_status;

typedef struct tern_nifti_info {
    int64_t shape[4];    /* dimension 4 (or 1), 3, 2, 1: row-major       */
    double spacing[3];   /* of dimensions 3, 2, 1                        */
    double affine[3][4]; /* (i, j, k, 1) -> x, y, z                      */
    int64_t offset;      /* of the first voxel in the file               */
    int datatype;        /* NIfTI's code                                 */
    int bytes;           /* of a voxel                                   */
    int swapped;         /* the other byte order                         */
    double slope, inter; /* value = slope * voxel + inter; 1 and 0 if none */
} tern_nifti_info;

typedef struct tern_nifti_backend {
    int abi;     /* TERN_NIFTI_ABI */
    size_t size; /* sizeof(tern_nifti_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* What a header says. Not TERN_NIFTI_OK: a reason in why[0..why_size). Prints nothing. */
    tern_nifti_status (*parse)(const void *header, tern_nifti_info *info, char *why, size_t why_size);
    /* `count` voxels of the file as values; `voxels` may be overwritten. */
    void (*values)(const tern_nifti_info *info, void *voxels, size_t count, float *values);
    /* A header for a file of one's own, in `header`: that of the source, or of none (NULL), with the shape,
     * spacing, affine and datatype of `info`; data follow at byte 352. */
    void (*make)(const void *source, const tern_nifti_info *info, void *header);
} tern_nifti_backend;

#endif
