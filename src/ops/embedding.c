/* embedding.c - looks up rows of a weight by index. */
#include "kernels/embedding.h"
#include "ops/ops.h"

tern_embedding_opts tern_embedding_defaults(void)
{
    return (tern_embedding_opts){.size = sizeof(tern_embedding_opts), .padding_idx = -1};
}

static int embedding_gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {
        .kernel = TERN__EMBEDDING_GRAD, .in = {tern__dy(node), &node->saved[0].view}, .attr = node->attr};
    return tern__grad_run(scope, node, 0, &call);
}

static bool embedding_shapes_fit(tern_scope *scope, const tern_tensor *weight, const tern_tensor *index)
{
    char ws[TERN__SHAPE_TEXT], is[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    if (weight->view.ndim == 2 && index->view.ndim < TERN_NDIM_MAX) return true;
    tern__scope_fail(
        scope, "tern_embedding", TERN_E_SHAPE,
        "embedding%s: expected a weight of 2 dimensions and an index of at most %d, got %s and %s",
        tern__layer_text(weight, layer), TERN_NDIM_MAX - 1, tern__shape_text(&weight->view, ws),
        tern__shape_text(&index->view, is));
    return false;
}

static bool dtype_fits(tern_scope *scope, const tern_tensor *weight, tern_dtype index)
{
    char layer[TERN__LAYER_TEXT];
    if (index == TERN_I64 || index == TERN_I32) return true;
    tern__scope_fail(scope, "tern_embedding", TERN_E_DTYPE,
                     "embedding%s: expected an index of i64 or i32, got %s", tern__layer_text(weight, layer),
                     tern_dtype_name(index));
    return false;
}

static bool embedding_read_opts(tern_scope *scope, const tern_tensor *weight, const tern_embedding_opts *opts,
                                tern__embedding_attr *attr)
{
    char layer[TERN__LAYER_TEXT];
    tern_embedding_opts o = tern_embedding_defaults();
    int64_t rows = weight->view.shape[0];
    if (tern__scope_opts(scope, &o, sizeof(o), opts, "tern_embedding")) return false;
    attr->padding = o.padding_idx;
    if (o.padding_idx >= -1 && o.padding_idx < rows) return true;
    tern__scope_fail(scope, "tern_embedding", TERN_E_RANGE,
                     "embedding%s: expected a padding_idx in [0, %lld) or -1, got %lld",
                     tern__layer_text(weight, layer), (long long)rows, (long long)o.padding_idx);
    return false;
}

tern_tensor *tern_embedding(tern_scope *scope, tern_tensor *index, tern_tensor *weight,
                            const tern_embedding_opts *opts)
{
    tern__embedding_attr attr;
    if (!TERN__ENTER(scope, __func__, 2, &weight, &index)) return NULL;
    if (!embedding_shapes_fit(scope, weight, index) || !dtype_fits(scope, weight, index->view.dtype))
        return NULL;
    if (!embedding_read_opts(scope, weight, opts, &attr)) return NULL;
    if (!(weight = tern__plain(scope, weight)) || !(index = tern__plain(scope, index))) return NULL;
    tern__view shape = index->view;
    shape.shape[shape.ndim++] = weight->view.shape[1];
    tern_tensor *y = tern__result(scope, weight->view.dtype, TERN__PLAIN, shape.ndim, shape.shape);
    tern__call call = {
        .kernel = TERN__EMBEDDING, .in = {&weight->view, &index->view}, .out = {y ? &y->view : NULL}};
    if (!y || !tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, "embedding", embedding_gradient, y, 1, &weight);
    tern__save(node, 0, index);
    tern__save_attr(scope, node, &attr, sizeof(attr));
    return y;
}
