/* pickle_result.c - what the pickle machine leaves as its result. The machine reads every file alike, and
 * makes a record of whatever tern does not have: an instance of a class, an int of more than 64 bits, a
 * tensor of another dtype. Here, where the place of each value in the result is known, they are refused by
 * name unless the caller wants records. */
#include "base/text.h"
#include "checkpoint/pickle_vm.h"
#include "checkpoint/dtypes.h"

#include <string.h>

static const char FUNC[] = "tern_load";

/* Limits of the walk: depth, and nodes. */
enum { DEEPEST = 1000, SEEN_ALWAYS = 1000000, SEEN_FOR_A_BYTE = 16 };

/* ---- nodes that something else stands for ---- */

/* Makes the record of a storage: its class, and its bytes as a u8 tensor. */
static tern_object *storage_record(tern__vm *vm, tern__vm_storage *storage)
{
    if (storage->record) return storage->record;
    const char *name = tern__object_name(storage->class);
    tern_object *record = tern__vm_record(vm, name, NULL);
    if (!record || tern__vm_charge(vm, TERN__VM_TENSOR)) return NULL;
    tern_tensor *bytes = tern__tensor_over(storage->storage, storage->storage->data, TERN_U8, 1,
                                           &storage->bytes, (int64_t[]){1}, FUNC, vm->err);
    tern_object *state = bytes ? tern__vm_take(vm, tern__object_tensor_take(bytes, vm->err)) : NULL;
    if (!state) {
        tern_tensor_free(bytes);
        return NULL;
    }
    tern__object_record_set(record, NULL, state);
    return storage->record = record;
}

/* Returns the name of a dtype ("f8") that has this machine's byte order and neither fields nor a unit of
 * time; NULL for any other. Its state is (version, byte order, subtype, names, fields, sizes .., metadata).
 */
static tern_object *dtype_name(const tern_object *dtype)
{
    tern_object *args = tern__object_child(dtype, 0), *state = tern__object_child(dtype, 1);
    const char *order = tern_object_to_string(tern__object_child(state, 1));
    bool is_simple = !order || *order != '>';
    for (int i = 2; i < 5; i++) {
        const tern_object *part = tern__object_child(state, i);
        is_simple = is_simple && tern_object_kind_get(part) == TERN_OBJECT_NONE;
    }
    return is_simple && !tern__object_child(state, 8) ? tern__object_child(args, 0) : NULL;
}

tern_object *tern__vm_resolve(tern__vm *vm, tern_object *node)
{
    if (node->kind == TERN__VM_STORAGE) return storage_record(vm, (tern__vm_storage *)node);
    bool is_dtype = node->kind == TERN_OBJECT_RECORD && !strcmp(tern__object_name(node), TERN__NUMPY_DTYPE);
    tern_object *name = is_dtype ? dtype_name(node) : NULL;
    return name ? name : node;
}

/* ---- what is refused ---- */

#define ELSE                                                                                                 \
    "; load it as a record with tern_load_opts.records, or write another key alone with: tern convert "      \
    "--records --key NAME IN OUT"

static int TERN__PRINTF(3, 4)
    pickle_refuse(tern__vm *vm, const tern__object_place *place, const char *format, ...)
{
    char where[TERN__PLACE_TEXT], text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return tern__error_set(vm->err, FUNC, TERN_E_UNSUPPORTED, "%s: %s: %s", vm->source->in->path,
                           tern__object_place_text(place, where), text);
}

#define REBUILDS "torch._utils._rebuild_tensor"

static int refuse_dimensions(tern__vm *vm, const tern__object_place *place, const tern_object *shape)
{
    return pickle_refuse(vm, place, "a tensor has %lld dimensions, tern supports at most %d" ELSE,
                         (long long)tern_object_count(shape), TERN_NDIM_MAX);
}

static int refuse_tensor(tern__vm *vm, const tern__object_place *place, const tern__tensor_record *tensor)
{
    const tern__file_dtype *dtype = tensor->dtype;
    if (dtype->dtype == TERN_DTYPE_NONE)
        return pickle_refuse(vm, place, "a tensor has %s (torch.%s), a dtype tern does not have" ELSE,
                             dtype->name, dtype->torch);
    return refuse_dimensions(vm, place, tensor->shape);
}

/* Refuses a numpy dtype, or a scalar or an array with such a dtype. */
static int refuse_numpy(tern__vm *vm, const tern__object_place *place, const char *what,
                        const tern_object *dtype)
{
    const char *name = tern_object_to_string(tern__object_child(tern__object_child(dtype, 0), 0));
    const char *order = tern_object_to_string(tern__object_child(tern__object_child(dtype, 1), 1));
    bool is_big_endian = order && *order == '>';
    if (name && !is_big_endian && !strcmp(what, "scalar") && !strcmp(name, "u8"))
        return pickle_refuse(vm, place, "an int of numpy's type u8 needs more than 63 bits" ELSE);
    return pickle_refuse(vm, place, "a %.100s has numpy's type %.20s%s, which tern does not support" ELSE,
                         what, name ? name : "?", is_big_endian ? " (big-endian)" : "");
}

/* A torch.nn.Module that was saved whole has this attribute. */
static bool is_module(const tern_object *record)
{
    return tern_object_get(tern__object_child(record, 1), "_parameters") != NULL;
}

static int refuse_class(tern__vm *vm, const tern__object_place *place, const tern_object *record)
{
    const char *class = tern__object_name(record), *dot = strrchr(class, '.');
    const tern_object *state = tern__object_child(record, 1);
    if (dot && !strcmp(dot, "._reconstruct") && tern__object_child(state, 2)) {
        char what[160];
        snprintf(what, sizeof(what), "numpy array (%.100s)", class);
        return refuse_numpy(vm, place, what, tern__object_child(state, 2));
    }
    const tern_object *shape = tern__object_child(tern__object_child(record, 0), 2);
    if (!strncmp(class, REBUILDS, sizeof(REBUILDS) - 1) && tern_object_count(shape) > TERN_NDIM_MAX)
        return refuse_dimensions(vm, place, shape);
    if (!is_module(record))
        return pickle_refuse(vm, place, "contains an instance of %.120s: tern_load makes data" ELSE, class);
    return pickle_refuse(
        vm, place,
        "contains an instance of %.150s: tern_load makes data, not instances of classes; recover "
        "the tensors in it with: tern convert --records IN OUT",
        class);
}

static int refuse_record(tern__vm *vm, const tern__object_place *place, const tern_object *record)
{
    tern__tensor_record tensor;
    const char *class = tern__object_name(record);
    if (tern__tensor_record_read(&tensor, record)) return refuse_tensor(vm, place, &tensor);
    if (!strcmp(class, TERN__PYTHON_INT))
        return pickle_refuse(vm, place, "an int needs more than 64 bits" ELSE);
    if (!strcmp(class, TERN__NUMPY_DTYPE)) return refuse_numpy(vm, place, "dtype", record);
    if (!strcmp(class, TERN__NUMPY_SCALAR))
        return refuse_numpy(vm, place, "scalar", tern__object_child(tern__object_child(record, 0), 0));
    return refuse_class(vm, place, record);
}

/* ---- the walk ---- */

static int check_node(tern__vm *vm, const tern_object *node, const tern__object_place *place)
{
    const bool records = vm->source->records;
    switch (node->kind) {
    case TERN__VM_STORAGE:
        return records ? TERN_OK : pickle_refuse(vm, place, "contains a storage without a tensor" ELSE);
    case TERN__VM_GLOBAL:
        return records ? TERN_OK
                       : pickle_refuse(vm, place, "contains the class %.150s itself" ELSE,
                                       tern__object_name(node));
    case TERN__VM_BAD_KEY:
        return pickle_refuse(vm, place, "a dict has a key of kind %s, which tern does not support" ELSE,
                             tern__object_name(node));
    case TERN_OBJECT_RECORD: return records ? TERN_OK : refuse_record(vm, place, node);
    default: return TERN_OK;
    }
}

/* Walks the result and checks its nodes, once for each place where they are, and puts what stands for them in
 * their places. `release` turns classes used as values into records without arguments. */
static int result_settle(tern__vm *vm, tern_object *node, const tern__object_place *place, int depth,
                         int64_t *seen)
{
    if (depth > DEEPEST)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED,
                               "contains objects that are nested more than %d deep or contain themselves",
                               DEEPEST);
    if (--*seen < 0)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED, "uses the same objects in millions of places");
    int status = check_node(vm, node, place);
    for (int64_t i = 0; !status && i < tern__object_child_count(node); i++) {
        tern_object *child = tern__object_child(node, i), *settled = child;
        tern__object_place inner = {place, node, i};
        if (!child) continue;
        if (child->kind != TERN__VM_STORAGE || vm->source->records) settled = tern__vm_resolve(vm, child);
        if (!settled) return vm->err->code;
        if (settled != child) tern__object_child_set(node, i, settled);
        status = result_settle(vm, settled, &inner, depth + 1, seen);
        settled->owned = true;
    }
    return status;
}

tern_object *tern__vm_result(tern__vm *vm)
{
    if (vm->count != 1 || vm->mark_count) {
        tern__vm_refuse(vm, TERN_E_FORMAT, "ends with %lld objects on the stack, expected one",
                        (long long)vm->count);
        return NULL;
    }
    int64_t seen = SEEN_ALWAYS + SEEN_FOR_A_BYTE * (vm->source->offset - vm->begin);
    tern_object *root = vm->stack[0];
    if (root->kind != TERN__VM_STORAGE || vm->source->records) root = tern__vm_resolve(vm, root);
    return root && !result_settle(vm, root, NULL, 0, &seen) ? tern__object_hold(root) : NULL;
}
