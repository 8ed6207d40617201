/* opts.h - reads an options struct of a caller that was built against another version of the library. */
#ifndef TERN_SRC_OPTS_H
#define TERN_SRC_OPTS_H

#include <tern/base.h>

/* `own` has the defaults, `own_size` bytes; copies the fields of `user` over them, unless `user` is NULL.
 * Every options struct starts with its size. Fields that an older caller does not know keep their defaults. A
 * newer caller's larger struct is E_UNSUPPORTED, and a struct that was not made by its _defaults function is
 * E_INVALID. A new field must start at or after the struct's old end, not in its padding, where an older
 * caller has garbage. */
int tern__opts_read(void *own, size_t own_size, const void *user, const char *func, tern_error *err);

#endif
