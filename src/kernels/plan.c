/* plan.c - merges the dimensions of several views, and moves a cursor over them. */
#include "kernels/plan.h"

/* The dimensions of one view in the order of iteration, outermost first. */
typedef struct form {
    int ndim;
    int64_t shape[TERN__PLAN_DIMS], stride[TERN__PLAN_DIMS];
} form;

static form plain_form(const tern__view *view)
{
    form f = {.ndim = view->ndim};
    for (int d = 0; d < view->ndim; d++) {
        f.shape[d] = view->shape[d];
        f.stride[d] = view->stride[d];
    }
    return f;
}

/* A plain view as (N, C / 16, spatial.., 16). */
static form split_form(const tern__view *view)
{
    form f = plain_form(view);
    f.shape[f.ndim] = TERN__BLOCK;
    f.stride[f.ndim++] = view->stride[1];
    f.shape[1] /= TERN__BLOCK;
    f.stride[1] *= TERN__BLOCK;
    return f;
}

/* The same for a blocked view, which is contiguous in that order. */
static form blocked_form(const tern__view *view)
{
    form f = split_form(view);
    int64_t stride = 1;
    for (int d = f.ndim - 1; d >= 0; d--) {
        f.stride[d] = stride;
        stride *= f.shape[d];
    }
    return f;
}

/* Any view as (N, spatial.., C). */
static form last_form(const tern__view *view)
{
    form f = plain_form(view), last = f;
    for (int d = 2; d < f.ndim; d++) {
        last.shape[d - 1] = f.shape[d];
        last.stride[d - 1] = f.stride[d];
    }
    last.shape[f.ndim - 1] = f.shape[1];
    last.stride[f.ndim - 1] = f.stride[1];
    return last;
}

static form form_of(const tern__view *view, tern__layout layout)
{
    if (layout == TERN__CHANNELS_LAST) return last_form(view);
    if (layout == TERN__PLAIN) return plain_form(view);
    return view->layout == TERN__BLOCKED16 ? blocked_form(view) : split_form(view);
}

/* Adds the next outer dimension, merged with the previous one if every operand steps through both
 * uniformly. */
static void plan_push(tern__plan *p, int64_t size, const int64_t stride[TERN__PLAN_OPERANDS])
{
    int last = p->ndim - 1;
    bool on = true;
    for (int i = 0; i < p->operands; i++) on = on && stride[i] == p->stride[i][last] * p->shape[last];
    if (size == 1) return;
    if (on && p->shape[last] > 1) {
        p->shape[last] *= size;
        return;
    }
    if (p->shape[last] > 1) last = p->ndim++;
    p->shape[last] = size;
    for (int i = 0; i < p->operands; i++) p->stride[i][last] = stride[i];
}

tern__plan tern__plan_of(const tern__view *const *views, int operands)
{
    form forms[TERN__PLAN_OPERANDS] = {{0}};
    tern__layout layout = TERN__PLAIN;
    const form *any = NULL;
    for (int i = 0; i < operands; i++)
        if (views[i] && layout != TERN__BLOCKED16 && views[i]->layout) layout = views[i]->layout;
    for (int i = 0; i < operands; i++) {
        if (!views[i]) continue;
        forms[i] = form_of(views[i], layout);
        any = &forms[i];
    }
    tern__plan p = {.operands = operands, .ndim = 1, .shape = {1}, .count = 1};
    for (int d = any->ndim - 1; d >= 0; d--) {
        int64_t stride[TERN__PLAN_OPERANDS];
        for (int i = 0; i < operands; i++) stride[i] = forms[i].stride[d];
        plan_push(&p, any->shape[d], stride);
        p.count *= any->shape[d];
    }
    return p;
}

tern__cursor tern__cursor_at(const tern__plan *plan, int64_t element)
{
    tern__cursor c = {0};
    for (int d = 0; d < plan->ndim; d++) {
        c.index[d] = element % plan->shape[d];
        element /= plan->shape[d];
        for (int i = 0; i < plan->operands; i++) c.at[i] += c.index[d] * plan->stride[i][d];
    }
    return c;
}

/* Carries from dimensions that have ended to the next index of outer ones. */
static void carry(const tern__plan *plan, tern__cursor *cursor)
{
    for (int d = 0; d + 1 < plan->ndim && cursor->index[d] == plan->shape[d]; d++) {
        cursor->index[d] = 0;
        cursor->index[d + 1]++;
        for (int i = 0; i < plan->operands; i++)
            cursor->at[i] += plan->stride[i][d + 1] - plan->shape[d] * plan->stride[i][d];
    }
}

void tern__cursor_move(const tern__plan *plan, tern__cursor *cursor, int64_t count)
{
    cursor->index[0] += count;
    for (int i = 0; i < plan->operands; i++) cursor->at[i] += count * plan->stride[i][0];
    carry(plan, cursor);
}
