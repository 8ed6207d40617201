/* inspect.h - the parts of `tern inspect`. */
#ifndef TERN_CLI_INSPECT_INSPECT_H
#define TERN_CLI_INSPECT_INSPECT_H

#include "inspect/content.h"
#include "inspect/values.h"

#include <tern/checkpoint.h>

typedef struct tern__inspected {
    const char *path;
    const char *format; /* "PyTorch zip" */
    int64_t bytes;
    tern_object *object;
    tern__content content;
} tern__inspected;

/* Everything in the file and its list; tern__inspected_close also after a failure. */
int tern__inspected_open(tern__inspected *file, const char *path, const tern_load_opts *opts,
                         tern_error *err);
void tern__inspected_close(tern__inspected *file);

/* What is no tensor, as an indented tree; `all`: also what is many or long. */
void tern__inspect_tree(const tern_object *object, bool all);
/* The whole as one JSON object on stdout. */
int tern__inspect_json(const tern__inspected *file, tern_error *err);
/* Prints what differs; TERN__EXIT_OK or TERN__EXIT_FAILED. */
int tern__inspect_diff(tern__inspected *a, tern__inspected *b, tern_error *err);

/* Of all tensors: the sums, and a checksum of names and values that does not depend on their order. */
void tern__inspect_add(tern__values *total, const tern__content_item *item, const tern__values *values);

#endif
