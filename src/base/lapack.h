/* lapack.h - the machine's LAPACK, loaded on first use, so that programs that do not need it do not need the
 * library. */
#ifndef TERN_SRC_LAPACK_H
#define TERN_SRC_LAPACK_H

#include "base/base.h"

/* Fortran's functions: all arguments are pointers, and matrices are column-major. lwork = -1 only returns the
 * best size of `work`, in work[0]. */
typedef struct tern__lapack {
    /* QR decomposition of a (m, n): puts R above the diagonal, and the reflectors below it and in
     * tau[min(m, n)]. */
    void (*sgeqrf)(const int *m, const int *n, float *a, const int *lda, float *tau, float *work,
                   const int *lwork, int *info);
    /* Computes the first n columns of Q from k reflectors of sgeqrf. */
    void (*sorgqr)(const int *m, const int *n, const int *k, float *a, const int *lda, const float *tau,
                   float *work, const int *lwork, int *info);
} tern__lapack;

/* Loads liblapack.so.3, which stays loaded. E_UNSUPPORTED, saying what to install. */
int tern__lapack_open(tern__lapack *lapack, const char *func, tern_error *err);

#endif
