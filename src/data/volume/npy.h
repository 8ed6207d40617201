/* npy.h - the header of NumPy's .npy files. */
#ifndef TERN_SRC_DATA_NPY_H
#define TERN_SRC_DATA_NPY_H

#include "data/gzip_file.h"

#include <tern/volume.h>

#define TERN__NPY_LOAD "tern_npy_load"

enum { TERN__NPY_HEADER_MOST = 10000 /* bytes, as in numpy.load */ };

/* What a header says. */
typedef struct tern__npy_array {
    char kind; /* f, i, u, b, or another of NumPy's */
    int bytes; /* per element                       */
    bool swapped, fortran;
    int ndim;
    int64_t shape[TERN_NDIM_MAX];
    int64_t count; /* of elements; 0 in a header: the reader multiplies */
} tern__npy_array;

/* Reads everything before the elements; *header_bytes is its size. */
int tern__npy_header_read(const tern__gzip_file *file, tern__npy_array *array, int64_t *header_bytes,
                          tern_error *err);

#endif
