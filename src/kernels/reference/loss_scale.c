/* loss_scale.c - the update of a loss scale. */
#include "kernels/loss_scale.h"
#include "kernels/reference/reference.h"

int tern__reference_scale_update(const tern__call *call)
{
    double numbers[TERN__LOSS_SCALE_NUMBERS];
    for (int i = 0; i < TERN__LOSS_SCALE_NUMBERS; i++) numbers[i] = tern__view_get(call->in[0], i);
    tern__loss_scale scale = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
    tern__loss_scale_update(&scale, call->attr);
    const double updated[] = {scale.scale, scale.inverse, scale.unskipped, scale.found, scale.overflows};
    for (int i = 0; i < TERN__LOSS_SCALE_NUMBERS; i++) tern__view_set(call->out[0], i, updated[i]);
    return TERN_OK;
}
