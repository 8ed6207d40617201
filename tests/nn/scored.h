/* scored.h - a module that goes back inside its own call: its result is y = x * scale times the gradient of a
 * score of y, the sum of the largest of y * y * scale in blocks of 2 x 2. */
#ifndef TERN_TESTS_NN_SCORED_H
#define TERN_TESTS_NN_SCORED_H

#include <tern/function.h>
#include <tern/nn.h>
#include <tern/ops.h>

typedef struct scored {
    tern_module base;
    tern_tensor *scale;
    bool is_function; /* the gradient comes from a tern_function, whose forward has gradients off */
} scored;

static inline tern_tensor *scored_slope(tern_scope *scope, tern_tensor *y, tern_tensor *scale,
                                        tern_error *err)
{
    bool before = tern_grad_enabled_set(scope, true);
    tern_tensor *z = tern_detach(scope, y);
    tern_requires_grad_set(z, true, err);
    tern_tensor *score = tern_max_pool2d(scope, tern_mul(scope, z, tern_mul(scope, z, scale)), 2, 2, NULL);
    tern_backward(scope, tern_sum(scope, score));
    tern_tensor *slope = tern_detach(scope, tern_grad_get(z));
    tern_grad_enabled_set(scope, before);
    return slope;
}

static inline tern_tensor *scored_function_forward(tern_function_call *call, tern_scope *scope,
                                                   tern_tensor *const *x, tern_error *err)
{
    tern_tensor *slope = scored_slope(scope, x[0], x[1], err);
    tern_function_save(call, 0, slope);
    return tern_mul(scope, x[0], slope);
}

static inline int scored_function_backward(tern_function_call *call, tern_scope *scope, tern_tensor *dy,
                                           tern_tensor **dx, tern_error *err)
{
    (void)err;
    dx[0] = tern_mul(scope, dy, tern_function_saved(call, 0));
    return TERN_OK;
}

static inline tern_tensor *scored_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    static const tern_function function = {
        .name = "scored", .forward = scored_function_forward, .backward = scored_function_backward};
    const scored *self = (scored *)module;
    tern_tensor *y = tern_mul(scope, x, self->scale);
    tern_tensor *both[2] = {y, self->scale};
    if (self->is_function) return tern_function_apply(scope, &function, 2, both, NULL, 0);
    return tern_mul(scope, y, scored_slope(scope, y, self->scale, NULL));
}

static inline void scored_init(scored *self, bool is_function, tern_error *err)
{
    *self = (scored){.is_function = is_function};
    tern_module_init(&self->base, "scored", scored_forward, err);
    self->scale = tern_parameter_add(&self->base, "scale", TERN_F32, 0, NULL, err);
    tern_tensor_write(self->scale, &(float){3}, sizeof(float), err);
}

#endif
