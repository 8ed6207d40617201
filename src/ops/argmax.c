#include "autograd/autograd.h"

#include <tern/ops.h>

tern_tensor *tern_argmax(tern_scope *scope, tern_tensor *x)
{
    if (!tern__op_enter(scope, "tern_argmax", 1, x)) return NULL;
    char shape[TERN__SHAPE_TEXT];
    if (x->view.ndim != 2 || x->view.shape[1] == 0) {
        tern__scope_fail(scope, "tern_argmax", TERN_E_SHAPE, "argmax: expected (N, C) with C > 0, got %s",
                         tern__shape_text(&x->view, shape));
        return NULL;
    }
    tern_tensor *y = tern__result(scope, TERN_I64, TERN__PLAIN, 1, x->view.shape);
    tern__call call = {.kernel = TERN__ARGMAX, .in = {&x->view}, .out = {y ? &y->view : NULL}};
    return y && tern__run(scope, &call) ? y : NULL;
}
