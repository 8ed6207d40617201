/* base.h - status codes, errors, dtypes, and hooks for memory and logging. Every other header includes it.
 *
 * How to read the comments in these headers:
 *
 * - Errors: "E_RANGE: .." means that the function fails with TERN_E_RANGE in that case: it returns the
 *   status, or NULL, and fills *err. Ops have no tern_error; their error is the scope's (autograd.h).
 * - Ownership: "Yours: tern_x_free" means that you free the result with this function, which accepts NULL. A
 *   borrowed result belongs to something else; do not free it. "Borrows x" means that x must outlive the
 *   result.
 * - Options: get a struct from its _defaults function, which sets `size` and the default values, and change
 *   the fields that you need. NULL means the defaults. `size` lets a program run with a newer version of the
 *   library.
 * - Collective: all ranks of the group must call the function (comm.h).
 * - A name such as torch.nn.functional.linear is the function of PyTorch, or of apex, that does the same.
 *
 * Callbacks: a function that you hand to tern (a module's forward, a dataset's get, a release) must return to
 * its caller. Leaving it by a C++ exception or longjmp, through tern's frames, is undefined behaviour. Catch
 * the exception inside, and report it with tern_error_set, or to all ranks with tern_group_abort. A callback
 * gets the `ctx` that was given with it as its last argument, before a tern_error. What that points to must
 * outlive whatever makes the calls.
 *
 * Threads: everything here may be called from any thread, except tern_allocator_set and tern_log_set, which
 * must be called before any other function of the library. */
#ifndef TERN_BASE_H
#define TERN_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TERN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The version of these headers, and the same as one number. CMakeLists.txt reads it here. */
#define TERN_VERSION_MAJOR  0
#define TERN_VERSION_MINOR  1
#define TERN_VERSION_PATCH  0
#define TERN_VERSION_NUMBER 100 /* major * 10000 + minor * 100 + patch */

/* Returns the version of the library that is loaded, major.minor.patch: "0.1.0". */
TERN_API const char *tern_version(void);

/* ---- status ------------------------------------------------------------------------------------------- */

/* The value of every function that returns a status: 0 is success, positive is "not yet", negative an error.
 * Each entry is the name without TERN_, the value and the text. */
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
    X(E_FORKED, -16, "used in a forked child")

typedef enum tern_status {
#define TERN__X(name, value, text) TERN_##name = value,
    TERN_STATUS_LIST(TERN__X)
#undef TERN__X
        TERN__STATUS_END = TERN_OK /* no status: C++98 allows no comma at the end */
} tern_status;

/* Return the name of a status ("E_SHAPE") and its text ("shape mismatch"); "?" for any other number. */
TERN_API const char *tern_status_name(int status);
TERN_API const char *tern_status_text(int status);

/* ---- errors ------------------------------------------------------------------------------------------- */

#define TERN_ERROR_TEXT 512

/* An error. Put it on your stack, zeroed: `tern_error err = {0};`. The first failure fills it and later
 * failures leave it alone, so you can make several calls and check once. Every `tern_error *` argument may be
 * NULL.
 *
 * A function that is given an error already set does nothing: a constructor returns NULL, a function with a
 * status returns err->code. These work all the same: what frees, closes or ends something (tern_scope_end,
 * tern_work_test, tern_work_wait, tern_work_source), and tern_group_abort. A collective or message does
 * nothing either, but because its peers would wait for it, it also ends the group's family (collectives.h).
 *
 * The text is one line of UTF-8 that does nothing to a terminal: of the names and bytes of files in it,
 * control characters, those that change the writing direction, and bytes that are not UTF-8 are written as
 * \n, \x1b, \u202e. A text that is too long ends with "..". The same holds for log messages. */
typedef struct tern_error {
    int code;                   /* TERN_OK or a negative tern_status                         */
    int native;                 /* errno, or the failing library's own code; 0: none         */
    const char *func;           /* the function that failed, a static string; or NULL        */
    char text[TERN_ERROR_TEXT]; /* what failed and where, expected and got                   */
} tern_error;

/* Reports an error from one of your callbacks. Fills *err, unless `err` is NULL or *err is already set, and
 * returns `code`, a negative tern_status; any other code, such as an errno, becomes E_INVALID. The text is
 * copied; `func` is not, so pass a string that stays, such as __func__:
 *
 *     return tern_error_set(err, __func__, TERN_E_IO, "%s is truncated", path);
 */
TERN_API int tern_error_set(tern_error *err, const char *func, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Prints "tern: func: text" on stderr (without func if it is NULL) and returns 1; if no error is set, prints
 * nothing and returns 0. Made for the end of main: `return tern_error_print(&err);`. */
TERN_API int tern_error_print(const tern_error *err);

/* ---- dtypes ------------------------------------------------------------------------------------------- */

/* The element types: name without TERN_, text, bytes of one element. The order is fixed, since ranks exchange
 * the numbers: new types are added at the end. */
#define TERN_DTYPE_LIST(X)                                                                                   \
    X(F32, "f32", 4)                                                                                         \
    X(F64, "f64", 8)                                                                                         \
    X(I64, "i64", 8)                                                                                         \
    X(I32, "i32", 4)                                                                                         \
    X(U8, "u8", 1)                                                                                           \
    X(BF16, "bf16", 2)                                                                                       \
    X(F16, "f16", 2)                                                                                         \
    X(BOOL, "bool", 1)                                                                                       \
    X(I8, "i8", 1)                                                                                           \
    X(I16, "i16", 2)

typedef enum tern_dtype {
#define TERN__X(name, text, bytes) TERN_##name,
    TERN_DTYPE_LIST(TERN__X)
#undef TERN__X
        TERN_DTYPE_COUNT, /* how many there are: it grows */
    TERN_DTYPE_NONE = 255 /* none of them             */
} tern_dtype;

/* Return a dtype's name ("f32"; "?" for any other number) and the bytes of one element (0). */
TERN_API const char *tern_dtype_name(tern_dtype dtype);
TERN_API size_t tern_dtype_bytes(tern_dtype dtype);

/* ---- hooks -------------------------------------------------------------------------------------------- */

/* The library's allocator for host memory. `alloc` returns uninitialised memory aligned to `align` (a power
 * of two, at most 4096), or NULL; `free` takes a pointer that `alloc` returned. Both may be called from any
 * thread. Two things do not pass through it: pages that ranks may share (sealed parameters, gradients and
 * buffers; the memory of tern_group_mem_alloc), which are mapped, and what oneDNN, OpenMP, zlib and the C
 * library allocate themselves. */
typedef struct tern_allocator {
    void *(*alloc)(size_t bytes, size_t align, void *ctx);
    void (*free)(void *ptr, void *ctx);
    void *ctx;
} tern_allocator;

/* Installs an allocator, copying the struct; NULL restores the default (the C library's). Call it before any
 * other function of the library. E_INVALID: a NULL function; E_STATE: the library has allocated memory, which
 * the new allocator's `free` would get. */
TERN_API int tern_allocator_set(const tern_allocator *allocator, tern_error *err);

typedef enum tern_log_level { TERN_LOG_ERROR, TERN_LOG_WARN, TERN_LOG_INFO, TERN_LOG_DEBUG } tern_log_level;
typedef void (*tern_log_fn)(tern_log_level level, const char *text, void *ctx);

/* Installs a log function. It receives the messages of all levels and may be called from any thread. NULL
 * restores the default, which prints WARN and above on stderr; TERN_LOG=error|warn|info|debug in the
 * environment changes that level. */
TERN_API void tern_log_set(tern_log_fn fn, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
