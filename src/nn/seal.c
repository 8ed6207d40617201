/* seal.c - lays out the parameters of a whole tree for good.
 *
 * They move into one reserved address range per dtype, and one for those that require no gradient, in reverse
 * registration order (roughly the order in
 * which backward finishes them), each on a cache line of its own. Their gradients get a parallel range. From
 * then on no address changes: a back end may replace the pages under a range, but never the range. Buckets
 * are pieces of the gradient range, so nothing is copied in or out, and an optimizer is one pass over both
 * ranges. */
#include "base/pages.h"
#include "nn/nn.h"

#include <string.h>
#include <sys/mman.h>

static size_t page_round(size_t bytes)
{
    return tern__align_up(TERN__MAX(bytes, (size_t)1), tern__page_bytes());
}

/* Reserves zeroed memory on a device: kernels also read the gaps between leaves, which must be zeros as on
 * the host. */
static char *reserve_there(tern_device *device, size_t bytes, tern_error *err)
{
    char *data = tern__memory_new(device, bytes, "tern_module_seal", err);
    if (data && !tern__memory_zero(data, bytes, err)) return data;
    tern__memory_free(data);
    return NULL;
}

static char *seal_reserve(tern_device *device, size_t bytes, tern_error *err)
{
    if (device) return reserve_there(device, bytes, err);

    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        tern__error_errno(err, "tern_module_seal", TERN_E_MEMORY,
                          "out of memory: %zu bytes for parameters or gradients", bytes);
        return NULL;
    }
    tern__pages_enlarge(data, bytes);
    return data;
}

static void seal_give_back(tern_device *device, char *data, size_t bytes)
{
    if (device)
        tern__memory_free(data);
    else if (data)
        munmap(data, bytes);
}

void tern__seal_free(tern__seal *seal)
{
    if (!seal) return;
    for (int r = 0; r < seal->range_count; r++) {
        const tern__range *range = &seal->ranges[r];
        seal_give_back(range->device, range->params, range->bytes);
        seal_give_back(range->device, range->grads, range->grad_bytes);
    }
    seal_give_back(NULL, seal->buffers, seal->buffer_bytes);
    tern__free(seal->leaves);
    tern__free(seal->range_of);
    tern__free(seal->offset);
    tern__free(seal);
}

/* Returns the dtype of gradients: the parameters' own, or f32 for 16-bit ones if amp says so. */
static tern_dtype grad_dtype(const tern__seal *seal, tern_dtype dtype)
{
    bool half = tern__dtype_is_half(dtype);
    return half && seal->root->tree->precision.gradients_f32 ? TERN_F32 : dtype;
}

static int range_index(tern__seal *seal, const tern_tensor *parameter)
{
    const tern__view *view = &parameter->view;
    tern__range own = {.dtype = view->dtype,
                       .grad_dtype = grad_dtype(seal, view->dtype),
                       .is_frozen = !parameter->requires_grad,
                       .device = tern__memory_device(view->data)};
    for (int r = 0; r < seal->range_count; r++) {
        const tern__range *range = &seal->ranges[r];
        if (range->dtype == own.dtype && range->device == own.device && range->is_frozen == own.is_frozen)
            return r;
    }
    if (seal->range_count == TERN__RANGES) return -1;
    seal->ranges[seal->range_count] = own;
    return seal->range_count++;
}

/* Assigns an offset to every leaf, last registered first, and to the buffers in order. */
static int seal_plan(tern__seal *seal, const tern__module_tree *tree, tern_error *err)
{
    size_t buffer_bytes = 0;
    for (int i = tree->entry_count - 1; i >= 0; i--) {
        tern_tensor *tensor = tree->state[i].tensor;
        if (tern__state_repeats(tree->module, i)) continue;
        size_t bytes = tern__align_up(tern__view_bytes(&tensor->view), TERN__LINE);
        if (!tensor->leaf) {
            buffer_bytes += tern__memory_device(tensor->view.data) ? 0 : bytes;
            continue;
        }
        int k = seal->leaf_count++, r = range_index(seal, tensor);
        if (r < 0)
            return tern__error_set(
                err, "tern_module_seal", TERN_E_UNSUPPORTED,
                "the parameters are of more than %d kinds of dtype, device and requires_grad", TERN__RANGES);
        seal->leaves[k] = tensor->leaf;
        seal->range_of[k] = r;
        seal->offset[k] = seal->ranges[r].bytes;
        seal->ranges[r].bytes += bytes;
        tensor->leaf->name = tree->state[i].name;
        tensor->leaf->index = k;
    }
    seal->buffer_bytes = buffer_bytes;
    return TERN_OK;
}

static int reserve_all(tern__seal *seal, tern_error *err)
{
    for (int r = 0; r < seal->range_count; r++) {
        tern__range *range = &seal->ranges[r];
        range->grad_bytes = page_round(tern__grad_offset(range, range->bytes));
        range->bytes = page_round(range->bytes);
        range->params = seal_reserve(range->device, range->bytes, err);
        range->grads = range->params ? seal_reserve(range->device, range->grad_bytes, err) : NULL;
        if (!range->grads) return TERN_E_MEMORY;
    }
    if (!seal->buffer_bytes) return TERN_OK;
    seal->buffer_bytes = page_round(seal->buffer_bytes);
    seal->buffers = seal_reserve(NULL, seal->buffer_bytes, err);
    return seal->buffers ? TERN_OK : TERN_E_MEMORY;
}

/* Makes the gradients' handles. This comes before anything moves, so that a failure leaves the tree as it
 * was. */
static int make_grads(tern__seal *seal, tern_error *err)
{
    for (int k = 0; k < seal->leaf_count; k++) {
        tern__leaf *leaf = seal->leaves[k];
        leaf->grad = tern__alloc(sizeof(*leaf->grad), "tern_module_seal", err);
        if (!leaf->grad) return TERN_E_MEMORY;
        const tern__range *range = &seal->ranges[seal->range_of[k]];
        const tern__view *p = &leaf->parameter->view;
        leaf->grad->view = tern__view_make(range->grad_dtype, TERN__PLAIN, p->ndim, p->shape);
        leaf->grad->view.data = range->grads + tern__grad_offset(range, seal->offset[k]);
    }
    return TERN_OK;
}

/* Moves a tensor within one device's memory. */
static void move_tensor(tern_tensor *tensor, char *to)
{
    tern__memory_copy(to, tensor->view.data, tern__view_bytes(&tensor->view), NULL);
    tensor->view.data = to;
}

/* Moves a parameter under all its names. */
static void move_parameter(const tern__seal *seal, tern__member *member)
{
    int k = member->leaf.index;
    move_tensor(&member->tensor, seal->ranges[seal->range_of[k]].params + seal->offset[k]);
    for (tern__member *name = member->names; name; name = name->names)
        name->tensor.view.data = member->tensor.view.data;
}

static void move_members(tern__seal *seal, tern__module_tree *tree, size_t *buffer_at)
{
    for (tern__member *member = tree->members; member; member = member->next) {
        if (member->is_buffer && tern__memory_device(member->memory)) continue;
        if (member->is_buffer) {
            move_tensor(&member->tensor, seal->buffers + *buffer_at);
            *buffer_at += tern__align_up(tern__view_bytes(&member->tensor.view), TERN__LINE);
        } else if (tern__member_owns(member)) {
            move_parameter(seal, member);
        }
        tern__memory_free(member->memory);
        member->memory = NULL;
    }
    for (tern__module_tree *child = tree->children; child; child = child->next)
        move_members(seal, child, buffer_at);
}

static tern__seal *new_seal(tern_module *root, tern_error *err)
{
    tern__seal *seal = tern__alloc(sizeof(*seal), "tern_module_seal", err);
    if (!seal) return NULL;
    size_t count = (size_t)root->tree->entry_count;
    seal->root = root;
    seal->leaves = tern__alloc(count * sizeof(*seal->leaves), "tern_module_seal", err);
    seal->range_of = tern__alloc(count * sizeof(*seal->range_of), "tern_module_seal", err);
    seal->offset = tern__alloc(count * sizeof(*seal->offset), "tern_module_seal", err);
    if (seal->leaves && seal->range_of && seal->offset) return seal;
    tern__seal_free(seal);
    return NULL;
}

tern__seal *tern__module_seal(tern_module *module, tern_error *err)
{
    tern_module *root = tern__module_root(module);
    if (root->tree->seal) return root->tree->seal;
    if (tern__module_state(root, err)) return NULL;
    tern__seal *seal = new_seal(root, err);
    if (!seal) return NULL;
    if (seal_plan(seal, root->tree, err) || reserve_all(seal, err) || make_grads(seal, err)) {
        for (int k = 0; k < seal->leaf_count; k++) {
            tern__free(seal->leaves[k]->grad);
            seal->leaves[k]->grad = NULL;
        }
        tern__seal_free(seal);
        return NULL;
    }
    size_t buffer_at = 0;
    move_members(seal, root->tree, &buffer_at);
    root->tree->seal = seal;
    return seal;
}

void tern__seal_touch(tern__seal *seal)
{
    for (int k = 0; k < seal->leaf_count; k++) seal->leaves[k]->packs.version++;
}
