/* base.h - errors, memory, log and environment for the rest of the library. */
#ifndef TERN_SRC_BASE_H
#define TERN_SRC_BASE_H

#include <tern/base.h>

#include <stdarg.h>

#define TERN__PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TERN__COUNT(a)          (sizeof(a) / sizeof((a)[0]))
#define TERN__MIN(a, b)         ((a) < (b) ? (a) : (b))
#define TERN__MAX(a, b)         ((a) > (b) ? (a) : (b))
#define TERN__LINE              64 /* bytes in a cache line */

/* ---- errors: the first one wins ---- */

/* Fills in `err` unless it is NULL or already set. Returns `code`, so that a caller can `return
 * tern__error_set(..)`. */
int tern__error_set(tern_error *err, const char *func, int code, const char *fmt, ...) TERN__PRINTF(4, 5);
/* The same with errno: appends ": strerror(errno)" and keeps it in err->native. */
int tern__error_errno(tern_error *err, const char *func, int code, const char *fmt, ...) TERN__PRINTF(4, 5);
/* True for an errno that tells of a lack of descriptors or memory, whatever the call was about. */
bool tern__is_shortage(int native);
/* E_INVALID "the NAME is NULL", unless `argument` is there. */
int tern__need(const void *argument, const char *name, const char *func, tern_error *err);
int tern__error_vset(tern_error *err, const char *func, int code, int native, const char *fmt, va_list args);
static inline bool tern__is_set(const tern_error *err)
{
    return err && err->code != TERN_OK;
}

/* Makes an error "none" without zeroing all of its text, which a fast path has no time for. */
static inline void tern__error_clear(tern_error *err)
{
    err->code = err->native = 0;
    err->func = NULL;
    err->text[0] = '\0';
}

/* ---- memory, from the user's allocator: zeroed, aligned to 64 bytes; NULL sets E_MEMORY with the size ----
 */

void *tern__alloc(size_t bytes, const char *func, tern_error *err);
void *tern__realloc_array(void *ptr, size_t old_bytes, size_t new_bytes, const char *func, tern_error *err);
/* Makes room for `count` items of `size` bytes in an array that has room for *room; new items are zeros. The
 * room at least doubles, so appending stays cheap. `list` is the address of a pointer to the array. */
int tern__array_reserve(void *list, size_t *room, size_t count, size_t size, const char *func,
                        tern_error *err);
void tern__free(void *ptr);
char *tern__strdup(const char *text, const char *func, tern_error *err);
/* Installs an allocator whose `free` also takes the blocks that were allocated before. */
void tern__allocator_replace(const tern_allocator *allocator);
/* Allocates memory that is not zeroed, with any alignment. Returns NULL without setting an error. */
void *tern__alloc_raw(size_t bytes, size_t align);
static inline size_t tern__align_up(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* ---- dtypes ---- */

/* Returns true for bf16 and f16. */
static inline bool tern__dtype_is_half(tern_dtype dtype)
{
    return dtype == TERN_BF16 || dtype == TERN_F16;
}
/* Returns true for f32, f64, bf16 and f16. */
static inline bool tern__dtype_is_float(tern_dtype dtype)
{
    return dtype == TERN_F32 || dtype == TERN_F64 || tern__dtype_is_half(dtype);
}

/* Returns the distance from 1 to the next number of a floating-point dtype (torch.finfo(dtype).eps). */
static inline double tern__dtype_epsilon(tern_dtype dtype)
{
    return dtype == TERN_F64 ? 0x1p-52 : dtype == TERN_BF16 ? 0x1p-7 : dtype == TERN_F16 ? 0x1p-10 : 0x1p-23;
}

/* ---- log ---- */

void tern__log(tern_log_level level, const char *fmt, ...) TERN__PRINTF(2, 3);

/* ---- environment: an empty variable counts as unset; use getenv to tell the two apart ---- */

/* Returns the value, or NULL if the variable is unset or empty. */
const char *tern__env(const char *name);
/* Sets *out to the integer in `name`, or to `fallback` if it is unset. E_ENV, naming variable and value: it
 * is not an integer in [low, high]. */
int tern__env_int(const char *name, long low, long high, long fallback, long *out, tern_error *err);
/* The same for the first integer of a list with commas. */
int tern__env_first_int(const char *name, long low, long high, long fallback, long *out, tern_error *err);
/* For variables that a launcher sets: E_ENV if the variable is set but empty, which is the launcher's mistake
 * and does not mean unset. */
int tern__env_filled(const char *name, tern_error *err);
/* tern__env_filled and tern__env_int together, for an int. */
int tern__env_filled_int(const char *name, long low, long high, long fallback, int *out, tern_error *err);

/* ---- time ---- */

int64_t tern__now_ns(void); /* CLOCK_MONOTONIC */
/* CPU time of the calling thread. */
int64_t tern__thread_ns(void);

#endif
