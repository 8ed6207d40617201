#include "kernels/power_sum.h"
#include "optim/optim.h"

bool tern__norm_square(tern_scope *scope, const tern__view *view, double *sum)
{
    tern__power_attr attr = {2};
    tern__view out = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    out.data = sum;
    tern__call call = {.kernel = TERN__POWER_SUM, .in = {view}, .out = {&out}, .attr = &attr};
    return tern__run(scope, &call);
}
