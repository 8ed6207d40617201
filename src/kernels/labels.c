/* labels.c - errors about labels and indices that are out of range. */
#include "kernels/labels.h"

#include <stdio.h>

int tern__label_error(tern_error *err, tern__labels l, int64_t number, int64_t label)
{
    char position[48] = "";
    if (l.of_sample > 1)
        snprintf(position, sizeof(position), " at position %lld", (long long)(number % l.of_sample));
    return tern__error_set(err, l.func, TERN_E_RANGE, "%s: %s %lld of sample %lld%s is not in [0, %lld)",
                           l.op, l.what ? l.what : "label", (long long)label,
                           (long long)(number / l.of_sample), position, (long long)l.classes);
}

/* Writes the position of element i of the index: "(1, 2)". */
static const char *place_text(const tern__view *index, int64_t i, char text[TERN__SHAPE_TEXT])
{
    tern__view place = {.ndim = index->ndim};
    for (int d = index->ndim - 1; d >= 0; d--) {
        place.shape[d] = i % index->shape[d];
        i /= index->shape[d];
    }
    return tern__shape_text(&place, text);
}

int tern__index_error(tern_error *err, const tern__view *index, int64_t rows, int64_t number, int64_t row)
{
    char text[TERN__SHAPE_TEXT];
    return tern__error_set(err, "tern_embedding", TERN_E_RANGE,
                           "embedding: index %lld at %s is not in [0, %lld)", (long long)row,
                           place_text(index, number, text), (long long)rows);
}
