/* scatter.c - cuts a nested input into chunks and joins nested results, by the rules of
 * torch.nn.parallel.scatter and gather: tensors are cut as by torch.chunk, lists and dictionaries keep their
 * structure, and the tensor with the fewest chunks decides how many replicas take part. */
#include "parallel/data_parallel.h"

#include "ops/ops.h"

#include <string.h>

/* ---- tensors of a value, in order ---- */

static int count_tensors(tern_value value)
{
    int count = value.tensor != NULL;
    for (int i = 0; i < value.count; i++) count += count_tensors(value.items[i]);
    return count;
}

static void list_tensors(tern_value value, tern_tensor **list, int *at)
{
    if (value.tensor) list[(*at)++] = value.tensor;
    for (int i = 0; i < value.count; i++) list_tensors(value.items[i], list, at);
}

/* Returns a value nested like `value` whose tensors are the next ones of `tensors`. */
static tern_value rebuild(tern_scope *scope, tern_value value, tern_tensor *const *tensors, int *at)
{
    tern_value copy = {.name = value.name, .count = value.count};
    if (value.tensor) copy.tensor = tensors[(*at)++];
    if (value.count && !(copy.items = tern_value_list(scope, value.count))) return (tern_value){0};
    for (int i = 0; i < value.count; i++) copy.items[i] = rebuild(scope, value.items[i], tensors, at);
    return copy;
}

tern_value *tern_value_list(tern_scope *scope, int count)
{
    if (!scope || scope->error.code) return NULL;
    if (count < 0) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE, "expected at least 0 values, got %d", count);
        return NULL;
    }
    return tern__scope_alloc(scope, (size_t)TERN__MAX(count, 1) * sizeof(tern_value));
}

/* ---- scatter ---- */

tern__view tern__chunk_of(const tern__pass *pass, int i, int part, const tern__view *whole)
{
    int dim = pass->parallel->opts.dim;
    int64_t rows = whole->shape[dim], first = TERN__MIN(rows, part * pass->chunk[i]);
    tern__view chunk = *whole;
    chunk.packs = NULL;
    chunk.shape[dim] = TERN__MIN(pass->chunk[i], rows - first);
    chunk.data = (char *)whole->data + first * whole->stride[dim] * (int64_t)tern_dtype_bytes(whole->dtype);
    return chunk;
}

/* Sets the length of tensor i's chunks, which limits how many replicas take part. */
static int scatter_cut(tern__pass *pass, int i)
{
    char shape[TERN__SHAPE_TEXT];
    int dim = pass->parallel->opts.dim, devices = pass->parallel->count;
    const tern__view *view = &pass->x[i]->view;
    if (dim >= view->ndim)
        return tern__scope_fail(pass->scope, "tern_data_parallel_forward", TERN_E_SHAPE,
                                "input %d %s has no dimension %d to split along", i,
                                tern__shape_text(view, shape), dim);
    if (!(pass->x[i] = tern__plain(pass->scope, pass->x[i]))) return pass->scope->error.code;
    int64_t rows = view->shape[dim];
    pass->chunk[i] = TERN__MAX((rows + devices - 1) / devices, 1);
    pass->count = (int)TERN__MIN(pass->count, TERN__MAX((rows + pass->chunk[i] - 1) / pass->chunk[i], 1));
    return TERN_OK;
}

bool tern__replica_lacks(const tern__replica *replica, const tern__view *view)
{
    return replica->device->backend && tern__memory_device(view->data) != replica->device;
}

tern_tensor *tern__replica_copy(const tern__pass *pass, int index, const tern__view *view)
{
    tern_scope *inner = pass->parallel->replicas[index].scope;
    inner->here = inner->device;
    tern_tensor *x = tern__result(inner, view->dtype, view->layout, view->ndim, view->shape);
    if (x && tern__copy(inner, &x->view, view)) return x;
    tern__scope_fail_with(pass->scope, &inner->error);
    return NULL;
}

/* Returns a chunk, over the memory of the whole input, which lives as long as the pass, or copied. */
static tern_tensor *chunk_tensor(tern__pass *pass, int i, int part)
{
    const tern__replica *replica = &pass->parallel->replicas[part];
    tern__view view = tern__chunk_of(pass, i, part, &pass->x[i]->view);
    bool lacks = tern__replica_lacks(replica, &view);
    tern_tensor *x = lacks ? tern__replica_copy(pass, part, &view) : tern__result_over(replica->scope, &view);
    if (x) x->requires_grad = pass->x[i]->requires_grad && pass->scope->grad;
    return x;
}

static int fill_part(tern__pass *pass, int p, tern_value input)
{
    tern__part *part = &pass->parts[p];
    part->x = tern__scope_alloc(pass->scope, (size_t)TERN__MAX(pass->x_count, 1) * sizeof(*part->x));
    for (int i = 0; part->x && i < pass->x_count; i++)
        if (!(part->x[i] = chunk_tensor(pass, i, p))) return TERN_E_MEMORY;
    int at = 0;
    if (part->x) part->input = rebuild(pass->scope, input, part->x, &at);
    return pass->scope->error.code;
}

int tern__scatter(tern__pass *pass, tern_value input)
{
    int at = 0, status = TERN_OK;
    pass->x_count = count_tensors(input);
    pass->count = pass->parallel->count;
    size_t room = (size_t)TERN__MAX(pass->x_count, 1);
    pass->x = tern__scope_alloc(pass->scope, room * sizeof(*pass->x));
    pass->x_held = tern__scope_alloc(pass->scope, room * sizeof(tern__storage *));
    pass->chunk = tern__scope_alloc(pass->scope, room * sizeof(*pass->chunk));
    pass->parts = tern__scope_alloc(pass->scope, (size_t)pass->count * sizeof(*pass->parts));
    if (!pass->x || !pass->x_held || !pass->chunk || !pass->parts) return pass->scope->error.code;
    list_tensors(input, pass->x, &at);
    for (int i = 0; i < pass->x_count && !status; i++) {
        bool enters = TERN__ENTER(pass->scope, "tern_data_parallel_forward", 1, &pass->x[i]);
        status = enters ? scatter_cut(pass, i) : pass->scope->error.code;
    }
    for (int p = 0; p < pass->count && !status; p++) status = fill_part(pass, p, input);
    return status;
}

/* ---- gather ---- */

static bool is_alike(tern_value a, tern_value b)
{
    bool alike = !a.tensor == !b.tensor && a.count == b.count && !a.name == !b.name &&
                 (!a.name || !strcmp(a.name, b.name));
    for (int i = 0; alike && i < a.count; i++) alike = is_alike(a.items[i], b.items[i]);
    return alike;
}

static int find_part(tern__pass *pass, int p)
{
    tern__part *part = &pass->parts[p];
    size_t room = (size_t)TERN__MAX(pass->y_count, 1);
    int at = 0;
    part->y = tern__scope_alloc(pass->scope, room * sizeof(*part->y));
    part->out = tern__scope_alloc(pass->scope, room * sizeof(*part->out));
    part->dy = tern__scope_alloc(pass->scope, room * sizeof(*part->dy));
    part->dy_held = tern__scope_alloc(pass->scope, room * sizeof(tern__storage *));
    if (!part->y || !part->out || !part->dy || !part->dy_held) return pass->scope->error.code;
    list_tensors(part->output, part->y, &at);
    return TERN_OK;
}

int tern__results_find(tern__pass *pass)
{
    pass->y_count = count_tensors(pass->parts[0].output);
    for (int p = 0; p < pass->count; p++) {
        if (!is_alike(pass->parts[0].output, pass->parts[p].output))
            return tern__scope_fail(pass->scope, "tern_data_parallel_forward", TERN_E_MISMATCH,
                                    "replica %d's results are nested differently from replica 0's", p);
        int status = find_part(pass, p);
        if (status) return status;
    }
    return TERN_OK;
}

/* Joins result j of all parts. A single device's results are returned as they are. */
static tern_tensor *join(tern__pass *pass, int j)
{
    tern_data_parallel *parallel = pass->parallel;
    if (parallel->count == 1) return pass->parts[0].out[j];
    tern_tensor **out = tern__scope_alloc(pass->scope, (size_t)pass->count * sizeof(*out));
    for (int p = 0; out && p < pass->count; p++) out[p] = pass->parts[p].out[j];
    if (!out) return NULL;
    if (tern_tensor_ndim(out[0]) > 0) return tern_cat(pass->scope, pass->count, out, parallel->opts.dim);
    if (!parallel->warned)
        tern__log(TERN_LOG_WARN, "tern_data_parallel_forward: the replicas' results have no dimensions; they "
                                 "are stacked to a vector");
    parallel->warned = true;
    return tern_stack(pass->scope, pass->count, out, 0);
}

tern_value tern__gather(tern__pass *pass)
{
    int at = 0;
    tern_tensor **all = tern__scope_alloc(pass->scope, (size_t)TERN__MAX(pass->y_count, 1) * sizeof(*all));
    for (int j = 0; all && j < pass->y_count; j++)
        if (!(all[j] = join(pass, j))) return (tern_value){0};
    return all ? rebuild(pass->scope, pass->parts[0].output, all, &at) : (tern_value){0};
}
