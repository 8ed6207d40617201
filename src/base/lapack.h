/* lapack.h - the machine's LAPACK, loaded when first asked for: what few need costs nobody else a library. */
#ifndef TERN_SRC_LAPACK_H
#define TERN_SRC_LAPACK_H

#include "base/base.h"

/* Fortran's: everything by pointer, matrices column by column. lwork = -1 only asks for the best size of
 * `work`, which comes back in work[0]. */
typedef struct tern__lapack {
    /* QR decomposition of a (m, n): R above the diagonal, and below it and in tau[min(m, n)] the reflectors.
     */
    void (*sgeqrf)(const int *m, const int *n, float *a, const int *lda, float *tau, float *work,
                   const int *lwork, int *info);
    /* The first n columns of Q from k reflectors of sgeqrf. */
    void (*sorgqr)(const int *m, const int *n, const int *k, float *a, const int *lda, const float *tau,
                   float *work, const int *lwork, int *info);
} tern__lapack;

/* liblapack.so.3, which stays loaded. E_UNSUPPORTED, saying what to install. */
int tern__lapack_open(tern__lapack *lapack, const char *func, tern_error *err);

#endif
