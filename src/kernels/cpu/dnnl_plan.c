/* dnnl_plan.c - descriptions, and plans of what the library would compute. */
#include "kernels/cpu/dnnl_api.h"

#include <string.h>

/* ---- descriptions ---- */

_Static_assert(DNNL_MAX_NDIMS == TERN__DNNL_NDIM, "a description has the library's dimensions");

dnnl_data_type_t tern__dnnl_type(tern_dtype dtype)
{
    return dtype == TERN_F32 ? dnnl_f32 : dtype == TERN_BF16 ? dnnl_bf16 : dnnl_data_type_undef;
}

tern__dnnl_desc tern__dnnl_by_tag(int ndim, const int64_t *shape, dnnl_format_tag_t tag,
                                  dnnl_data_type_t type)
{
    tern__dnnl_desc desc = {.ndim = ndim, .type = (int32_t)type, .tag = (int32_t)tag};
    memcpy(desc.shape, shape, (size_t)ndim * sizeof(*shape));
    return desc;
}

tern__dnnl_desc tern__dnnl_by_strides(int ndim, const int64_t *shape, const int64_t *stride,
                                      dnnl_data_type_t type)
{
    tern__dnnl_desc desc = tern__dnnl_by_tag(ndim, shape, dnnl_format_tag_undef, type);
    memcpy(desc.stride, stride, (size_t)ndim * sizeof(*stride));
    return desc;
}

tern__dnnl_desc tern__dnnl_describe(const tern__view *view)
{
    static const dnnl_format_tag_t blocked[] = {[3] = dnnl_nCw16c, [4] = dnnl_nChw16c, [5] = dnnl_nCdhw16c};
    dnnl_data_type_t type = tern__dnnl_type(view->dtype);
    if (view->layout == TERN__BLOCKED16 && view->ndim > 2)
        return tern__dnnl_by_tag(view->ndim, view->shape, blocked[view->ndim], type);
    int64_t stride[TERN_NDIM_MAX], step = 1;
    for (int d = view->ndim - 1; d >= 0; step *= view->shape[d--]) stride[d] = step;
    return tern__dnnl_by_strides(view->ndim, view->shape, stride, type);
}

bool tern__dnnl_same(const tern__dnnl_desc *a, const tern__dnnl_desc *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* ---- plans ---- */

/* The library's objects from which a plan is made, kept while it is made. */
typedef struct words {
    const void *own[TERN__DNNL_OPERANDS];
    void *made[TERN__DNNL_OPERANDS];
    dnnl_primitive_attr_t attr;
    dnnl_engine_t engine;
} words;

static void words_free(words *w)
{
    for (int i = 0; i < TERN__DNNL_OPERANDS; i++) tern__dnnl_api_free(w->made[i]);
    if (w->attr) dnnl_primitive_attr_destroy(w->attr);
}

static dnnl_status_t append_sum(dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t sum;
    dnnl_status_t status = dnnl_post_ops_create(&sum);
    if (status != dnnl_success) return status;
    status = tern__dnnl_api_append_sum(sum);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, sum);
    dnnl_post_ops_destroy(sum);
    return status;
}

/* Fills in attributes with a user-provided scratchpad, and the operands' descriptions. */
static dnnl_status_t fill_words(words *w, const tern__dnnl_desc *const desc[TERN__DNNL_OPERANDS], bool add)
{
    dnnl_status_t status = dnnl_primitive_attr_create(&w->attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(w->attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && add) status = append_sum(w->attr);
    for (int i = 0; i < TERN__DNNL_OPERANDS && status == dnnl_success; i++) {
        if (!desc[i]) continue;
        if (!desc[i]->own) status = tern__dnnl_api_describe(desc[i], &w->made[i]);
        w->own[i] = desc[i]->own ? desc[i]->own : w->made[i];
    }
    return status;
}

static int words_new(const tern__call *call, const tern__dnnl_desc *const desc[TERN__DNNL_OPERANDS], bool add,
                     words *w)
{
    *w = (words){.attr = NULL};
    int status = tern__dnnl_open(call, &w->engine);
    if (status) return status;
    dnnl_status_t vendor = fill_words(w, desc, add);
    if (vendor == dnnl_success) return TERN_OK;
    words_free(w);
    return tern__dnnl_fail(call, vendor, "memory description");
}

static int planned(const tern__call *call, words *w, dnnl_status_t status, const char *what)
{
    words_free(w);
    return status == dnnl_success ? TERN_OK : tern__dnnl_fail(call, status, what);
}

int tern__dnnl_plan_conv(const tern__call *call, const tern__dnnl_conv *c, dnnl_primitive_desc_t *plan)
{
    words w;
    int status = words_new(call, (const tern__dnnl_desc *[]){c->x, c->w, c->y, c->b}, false, &w);
    if (status) return status;
    return planned(call, &w, tern__dnnl_api_plan_conv(w.engine, c, w.own, w.attr, plan), "convolution");
}

int tern__dnnl_plan_matmul(const tern__call *call, const tern__dnnl_matmul *m, dnnl_primitive_desc_t *plan)
{
    words w;
    int status = words_new(call, (const tern__dnnl_desc *[]){m->a, m->b, m->y, m->bias}, m->add, &w);
    if (status) return status;
    return planned(call, &w, tern__dnnl_api_plan_matmul(w.engine, m, w.own, w.attr, plan), "matmul");
}

int tern__dnnl_plan_reorder(const tern__call *call, const tern__dnnl_desc *from, const tern__dnnl_desc *to,
                            bool add, dnnl_primitive_desc_t *plan)
{
    words w;
    int status = words_new(call, (const tern__dnnl_desc *[]){from, to, NULL, NULL}, add, &w);
    if (status) return status;
    return planned(call, &w,
                   dnnl_reorder_primitive_desc_create(plan, w.own[0], w.engine, w.own[1], w.engine, w.attr),
                   "reorder");
}

const char *tern__dnnl_plan_name(const_dnnl_primitive_desc_t plan)
{
    const char *name = "";
    dnnl_primitive_desc_query(plan, dnnl_query_impl_info_str, 0, &name);
    return name;
}
