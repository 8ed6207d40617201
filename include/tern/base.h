/* base.h - what every other header needs: status codes, errors, dtypes, the allocator and log hooks.
 *
 * Callbacks of yours, a module's forward, a dataset's get, a release .., return to where they were called
 * from: to leave one through tern's functions by a C++ exception or by longjmp is undefined. Catch it inside,
 * and say it by tern_error_set, or to all ranks by tern_group_abort(group, code, what).
 *
 * Threads: everything here may be called from any thread, except the two setters, which are called before
 * any other function of the library. */
#ifndef TERN_BASE_H
#define TERN_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TERN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0": major.minor.patch of the library that is running. */
TERN_API const char *tern_version(void);

/* ---- status ------------------------------------------------------------------------------------------- */

/* 0 is done, positive is not yet, negative is an error. */
#define TERN_STATUS_LIST(X)                                                                                  \
    X(OK, 0, "done")                                                                                         \
    X(PENDING, 1, "not finished yet")                                                                        \
    X(E_INVALID, -1, "invalid argument")                                                                     \
    X(E_SHAPE, -2, "shape mismatch")                                                                         \
    X(E_DTYPE, -3, "dtype mismatch")                                                                         \
    X(E_MEMORY, -4, "out of memory")                                                                         \
    X(E_IO, -5, "input or output failed")                                                                    \
    X(E_FORMAT, -6, "malformed data")                                                                        \
    X(E_RANGE, -7, "value out of range")                                                                     \
    X(E_STATE, -8, "called in the wrong order")                                                              \
    X(E_UNSUPPORTED, -9, "not supported here")                                                               \
    X(E_SYSTEM, -10, "system call failed")                                                                   \
    X(E_ENV, -11, "malformed environment variable")                                                          \
    X(E_TIMEOUT, -12, "timed out")                                                                           \
    X(E_PEER, -13, "another rank failed or left")                                                            \
    X(E_MISMATCH, -14, "ranks disagree")                                                                     \
    X(E_LIFETIME, -15, "tensor used after its scope")                                                        \
    X(E_FORKED, -16, "group used in a forked child")

typedef enum tern_status {
#define X(name, value, text) TERN_##name = value,
    TERN_STATUS_LIST(X)
#undef X
} tern_status;

/* "E_SHAPE" and "shape mismatch"; "?" for a value that is no status. */
TERN_API const char *tern_status_name(int status);
TERN_API const char *tern_status_text(int status);

/* ---- errors ------------------------------------------------------------------------------------------- */

#define TERN_ERROR_TEXT 512

/* Lives on the caller's stack, zeroed: `tern_error err = {0};`. The first failure fills it and later ones
 * leave it alone, so calls can be chained and checked once. A constructor given an error that is already set
 * does nothing and returns NULL. Every function that takes a `tern_error *` accepts NULL. */
typedef struct tern_error {
    int code;                   /* TERN_OK or a negative tern_status                        */
    int native;                 /* errno or the library's own code behind it; 0 if none     */
    const char *func;           /* the function that failed; static storage, or NULL        */
    char text[TERN_ERROR_TEXT]; /* what, where, expected, got                               */
} tern_error;

/* Fills `err`, unless it is NULL or filled, and returns `code`, a negative tern_status: how a callback of
 * yours says what it failed with, `return tern_error_set(err, __func__, TERN_E_IO, "%s is torn", path);`. */
TERN_API int tern_error_set(tern_error *err, const char *func, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Prints "tern: func: text" on stderr, without func where that is NULL; returns 1, or 0 if no error is set:
 * `return tern_error_print(&err);`. */
TERN_API int tern_error_print(const tern_error *err);

/* ---- dtypes ------------------------------------------------------------------------------------------- */

/* Appended to, never reordered: the numbers go over the wire. */
#define TERN_DTYPE_LIST(X)                                                                                   \
    X(F32, "f32", 4)                                                                                         \
    X(F64, "f64", 8)                                                                                         \
    X(I64, "i64", 8)                                                                                         \
    X(I32, "i32", 4)                                                                                         \
    X(U8, "u8", 1)                                                                                           \
    X(BF16, "bf16", 2)                                                                                       \
    X(F16, "f16", 2)                                                                                         \
    X(BOOL, "bool", 1)

typedef enum tern_dtype {
#define X(name, text, bytes) TERN_##name,
    TERN_DTYPE_LIST(X)
#undef X
        TERN_DTYPE_COUNT
} tern_dtype;

TERN_API const char *tern_dtype_name(tern_dtype dtype);
TERN_API size_t tern_dtype_bytes(tern_dtype dtype);

/* ---- hooks -------------------------------------------------------------------------------------------- */

/* Every host allocation of the library goes through one pair of functions, but for pages that ranks may share
 * (sealed parameters, gradients and buffers; windows), which are mapped, and for what oneDNN, OpenMP, zlib
 * and the C library allocate for themselves. `alloc` returns memory of any content, aligned to `align` (a
 * power of two, at most 4096), or NULL; `free` takes what `alloc` returned. Both may be called from any
 * thread. */
typedef struct tern_allocator {
    void *(*alloc)(size_t bytes, size_t align, void *ctx);
    void (*free)(void *ptr, void *ctx);
    void *ctx;
} tern_allocator;

/* NULL restores the default. Call it before anything else of the library. */
TERN_API void tern_allocator_set(const tern_allocator *allocator);

typedef enum tern_log_level { TERN_LOG_ERROR, TERN_LOG_WARN, TERN_LOG_INFO, TERN_LOG_DEBUG } tern_log_level;
typedef void (*tern_log_fn)(tern_log_level level, const char *text, void *ctx);

/* `fn` gets the messages of every level, from any thread. NULL restores the default: WARN and above on
 * stderr. TERN_LOG=error|warn|info|debug moves the default's bar. */
TERN_API void tern_log_set(tern_log_fn fn, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
