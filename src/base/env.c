/* env.c - environment variables and clocks. */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *tern__env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The number may be followed by one of the characters in `behind`. */
static int read_int(const char *func, const char *name, const char *behind, long low, long high,
                    long fallback, long *out, tern_error *err)
{
    const char *text = tern__env(name);
    *out = fallback;
    if (!text) return TERN_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || !strchr(behind, *end) || end == text)
        return tern__error_set(err, func, TERN_E_ENV, "%s=\"%s\" is not an integer", name, text);
    if (value < low || value > high)
        return tern__error_set(err, func, TERN_E_ENV, "%s=%ld is not in [%ld, %ld]", name, value, low, high);
    *out = value;
    return TERN_OK;
}

int tern__env_int(const char *name, long low, long high, long fallback, long *out, tern_error *err)
{
    return read_int(__func__, name, "", low, high, fallback, out, err);
}

int tern__env_first_int(const char *name, long low, long high, long fallback, long *out, tern_error *err)
{
    return read_int(__func__, name, ", ", low, high, fallback, out, err);
}

int tern__env_filled(const char *name, tern_error *err)
{
    const char *value = getenv(name);
    if (!value || *value) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_ENV, "%s=\"\" is set but empty", name);
}

int tern__env_filled_int(const char *name, long low, long high, long fallback, int *out, tern_error *err)
{
    long value;
    int status = tern__env_filled(name, err);
    if (!status) status = tern__env_int(name, low, high, fallback, &value, err);
    if (!status) *out = (int)value;
    return status;
}

static int64_t read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int64_t tern__now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t tern__thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}
