/* topk.c - counts how often the label is among the k largest scores. */
#include "kernels/confusion.h"
#include "report/predictions.h"
#include "tensor/host.h"

#include <tern/metrics.h>

/* Returns the rank of each label's score among the scores of all classes; NULL after a failure. */
static tern_tensor *ranks_of(tern_scope *scope, const char *func, const tern__operands *in, int64_t ignored)
{
    const tern__view *x = &in->x->view, *label = &in->label->view;
    tern__confusion_attr attr = {
        {func, "topk_correct", NULL, x->shape[x->ndim > 1], in->of_sample}, ignored, 0, 0};
    tern_tensor *rank = tern__result(scope, TERN_I64, TERN__PLAIN, label->ndim, label->shape);
    tern__call call = {.kernel = TERN__LABEL_RANK, .in = {x, label}, .attr = &attr};
    if (!rank || tern__view_count(label) == 0) return rank;
    call.out[0] = &rank->view;
    return tern__run(scope, &call) ? rank : NULL;
}

static int check_ks(tern_scope *scope, const char *func, int count, const int64_t *k)
{
    if (count < 1 || !k)
        return tern__scope_fail(scope, func, TERN_E_INVALID, "topk_correct: expected at least one k");
    for (int i = 0; i < count; i++)
        if (k[i] < 1)
            return tern__scope_fail(scope, func, TERN_E_RANGE, "topk_correct: expected k >= 1, got %lld",
                                    (long long)k[i]);
    return TERN_OK;
}

static int count_ranks(const tern__view *rank, int count, const int64_t *k, int64_t *correct, tern_error *err)
{
    tern__host host;
    int status = tern__host_open(&host, rank, err);
    if (status) return status;
    for (int i = 0; i < count; i++) correct[i] = 0;
    for (int64_t n = 0; n < tern__view_count(rank); n++) {
        int64_t place = tern__view_get_int(&host.view, n);
        for (int i = 0; i < count; i++) correct[i] += place >= 0 && place < k[i];
    }
    return tern__host_close(&host, false, err);
}

int tern_topk_correct(tern_scope *scope, tern_tensor *x, tern_tensor *label, int64_t ignore_index, int count,
                      const int64_t *k, int64_t *correct)
{
    tern__operands in = {x, label, 0};
    if (!TERN__ENTER(scope, __func__, 2, &in.x, &in.label)) return scope ? scope->error.code : TERN_E_INVALID;
    if (check_ks(scope, __func__, count, k) || tern__scores_take(scope, __func__, "topk_correct", 0, &in))
        return scope->error.code;
    tern_tensor *rank = ranks_of(scope, __func__, &in, ignore_index);
    if (!rank) return scope->error.code;
    tern_error err = {0};
    return count_ranks(&rank->view, count, k, correct, &err) ? tern__scope_fail_with(scope, &err) : TERN_OK;
}
