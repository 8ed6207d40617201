/* opts.h - reading an options struct of a caller who was built against another version of the library. */
#ifndef TERN_SRC_OPTS_H
#define TERN_SRC_OPTS_H

#include <tern/base.h>

/* `own` holds the defaults, `own_size` bytes of them, and the fields of `user` are copied over it; NULL
 * leaves them. Every options struct starts with its size: fields that an older caller does not know keep
 * their defaults, a newer caller's larger struct is E_UNSUPPORTED, and one that was not made by its _defaults
 * function is E_INVALID. A new field begins at or after the struct's old end: in the padding there, an older
 * caller has garbage. */
int tern__opts_read(void *own, size_t own_size, const void *user, const char *func, tern_error *err);

#endif
