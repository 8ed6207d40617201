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

/* Loads the file and lists its content. Call tern__inspected_close also after an error. */
int tern__inspected_open(tern__inspected *file, const char *path, const tern_load_opts *opts,
                         tern_error *err);
void tern__inspected_close(tern__inspected *file);

/* Prints all values but tensors as an indented tree; `all`: without shortening long texts and containers. */
void tern__inspect_tree(const tern_object *object, bool all);
/* Prints everything as one JSON object. */
int tern__inspect_json(const tern__inspected *file, tern_error *err);
/* Prints the differences. Returns TERN__EXIT_OK if there are none, else TERN__EXIT_FAILED. */
int tern__inspect_diff(tern__inspected *a, tern__inspected *b, tern_error *err);

/* What a file's tensors add up to. */
typedef struct tern__totals {
    int64_t tensors, bytes, values, nan, inf;
    uint64_t checksum; /* of names and values; does not depend on their order */
} tern__totals;

/* Measures a tensor and adds it to the totals. */
int tern__inspect_measure(tern__values *values, const tern__content_item *item, tern__totals *sum,
                          tern_error *err);

#endif
