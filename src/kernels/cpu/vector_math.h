/* vector_math.h - <tgmath.h> with functions that vectorised loops may call: glibc has variants for each
 * vector width (libmvec), but declares them only under -ffast-math, which would give up NaN and infinities
 * everywhere else. Special values are right in them, too, only slower. */
#ifndef TERN_SRC_KERNELS_CPU_VECTOR_MATH_H
#define TERN_SRC_KERNELS_CPU_VECTOR_MATH_H

#include <tgmath.h>

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define TERN__VECTOR __attribute__((simd("notinbranch")))
TERN__VECTOR float expf(float);
TERN__VECTOR double(exp)(double);
TERN__VECTOR float logf(float);
TERN__VECTOR double(log)(double);
TERN__VECTOR float log1pf(float);
TERN__VECTOR double(log1p)(double);
TERN__VECTOR float tanhf(float);
TERN__VECTOR double(tanh)(double);
TERN__VECTOR float erff(float);
TERN__VECTOR double(erf)(double);
TERN__VECTOR float powf(float, float);
TERN__VECTOR double(pow)(double, double);
#endif
#endif

#endif
