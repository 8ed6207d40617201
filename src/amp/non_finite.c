/* non_finite.c - names the parameters whose gradients are not finite. Each gradient is checked when it is
 * complete, before a ddp averages it and an infinity or a NaN spreads to all ranks. */
#include "amp/amp.h"
#include "comm/group.h"
#include "kernels/loss_scale.h"

#include <inttypes.h>

static int non_finite_look(tern__watch *watch, tern_scope *scope, const tern__leaf *leaf)
{
    tern__non_finite *self = (tern__non_finite *)watch;
    double bad = 0;
    tern__unscale_attr attr = {1};
    tern__view count = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    count.data = &bad;
    tern__call call = {
        .kernel = TERN__UNSCALE, .in = {&leaf->grad->view}, .out = {NULL, &count}, .attr = &attr};
    if (!tern__run(scope, &call)) return scope->error.code;
    if (bad > 0 && self->parameters++ == 0) {
        self->first = leaf;
        self->bad = bad;
    }
    return TERN_OK;
}

void tern__non_finite_begin(tern__non_finite *self, tern_scope *scope)
{
    self->watch.ready = non_finite_look;
    self->backward++;
    self->parameters = 0;
    scope->watch = &self->watch;
}

void tern__non_finite_report(tern__non_finite *self, const tern_scope *scope)
{
    const tern_group *group = scope->group;
    int rank = group ? tern_group_world_rank(group, tern_group_rank(group)) : 0;
    if (self->parameters == 0) return;
    tern__log(TERN_LOG_WARN,
              "rank %d, backward %" PRIu64
              ": gradients that are not finite: %d, first that of \"%s\", in %.0f of %lld numbers",
              rank, self->backward, self->parameters, self->first->name, self->bad,
              (long long)tern__view_count(&self->first->grad->view));
    self->parameters = 0;
}
