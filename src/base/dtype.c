/* dtype.c - names and sizes of dtypes. */
#include "base/base.h"

const char *tern_dtype_name(tern_dtype dtype)
{
    static const char *const names[] = {
#define X(name, text, bytes) text,
        TERN_DTYPE_LIST(X)
#undef X
    };
    return (unsigned)dtype < TERN_DTYPE_COUNT ? names[dtype] : "?";
}

size_t tern_dtype_bytes(tern_dtype dtype)
{
    static const size_t sizes[] = {
#define X(name, text, bytes) bytes,
        TERN_DTYPE_LIST(X)
#undef X
    };
    return (unsigned)dtype < TERN_DTYPE_COUNT ? sizes[dtype] : 0;
}
