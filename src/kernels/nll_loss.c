#include "kernels/nll_loss.h"

#include <stdio.h>

int tern__label_error(tern_error *err, const tern__nll_attr *attr, const tern__lines *lines, int64_t line,
                      int64_t label)
{
    char position[48] = "";
    if (lines->inner > 1)
        snprintf(position, sizeof(position), " at position %lld", (long long)(line % lines->inner));
    return tern__error_set(err, attr->func, TERN_E_RANGE,
                           "%s: label %lld of sample %lld%s is not in [0, %lld)", attr->op, (long long)label,
                           (long long)(line / lines->inner), position, (long long)lines->size);
}
