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
