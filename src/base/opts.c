/* opts.c - reads options structs of any version. */
#include "base/opts.h"

#include "base/base.h"

#include <string.h>

int tern__opts_read(void *own, size_t own_size, const void *user, const char *func, tern_error *err)
{
    size_t size;
    if (!user) return TERN_OK;
    memcpy(&size, user, sizeof(size));
    if (size < sizeof(size))
        return tern__error_set(err, func, TERN_E_INVALID,
                               "options: size is %zu; start from what the _defaults function returns", size);
    if (size > own_size)
        return tern__error_set(err, func, TERN_E_UNSUPPORTED,
                               "options: size is %zu, this version of the library knows %zu bytes", size,
                               own_size);
    memcpy(own, user, size);
    memcpy(own, &own_size, sizeof(own_size));
    return TERN_OK;
}
