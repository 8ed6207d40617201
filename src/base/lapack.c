/* lapack.c - loads LAPACK. */
#include "base/lapack.h"

#include <dlfcn.h>

int tern__lapack_open(tern__lapack *lapack, const char *func, tern_error *err)
{
    void *handle = dlopen("liblapack.so.3", RTLD_NOW | RTLD_LOCAL);
    lapack->sgeqrf = handle ? dlsym(handle, "sgeqrf_") : NULL;
    lapack->sorgqr = lapack->sgeqrf ? dlsym(handle, "sorgqr_") : NULL;
    if (lapack->sorgqr) return TERN_OK;
    return tern__error_set(err, func, TERN_E_UNSUPPORTED,
                           "LAPACK cannot be loaded (%s): install liblapack3 or libopenblas0", dlerror());
}
