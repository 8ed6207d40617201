#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

const char *tern__env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

int tern__env_int(const char *name, long low, long high, long fallback, long *out, tern_error *err)
{
    const char *text = tern__env(name);
    *out = fallback;
    if (!text) return TERN_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text)
        return tern__error_set(err, __func__, TERN_E_ENV, "%s=\"%s\" is not an integer", name, text);
    if (value < low || value > high)
        return tern__error_set(err, __func__, TERN_E_ENV, "%s=%ld is not in [%ld, %ld]", name, value, low,
                               high);
    *out = value;
    return TERN_OK;
}

int64_t tern__now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
