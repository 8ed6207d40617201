/* pickle_nodes.c - the stack, the memo and the nodes of the pickle machine. The stack and the memo borrow
 * nodes: the machine itself holds a reference to every node until it ends. */
#include "checkpoint/pickle_vm.h"

#include <string.h>

static const char FUNC[] = "tern_load";

/* ---- stack ---- */

/* Returns the array with room for one item after `count`, grown if needed; NULL after an error. */
static void *pickle_grow(tern__vm *vm, void *items, int64_t count, int64_t *room, size_t size)
{
    if (count < *room) return items;
    int64_t wanted = TERN__MAX(2 * *room, TERN__MAX(count + 1, 64));
    if (tern__vm_charge(vm, wanted * (int64_t)size)) return NULL;
    void *grown = tern__realloc_array(items, (size_t)*room * size, (size_t)wanted * size, FUNC, vm->err);
    if (grown) *room = wanted;
    return grown;
}

int tern__vm_push(tern__vm *vm, tern_object *node)
{
    tern_object **stack =
        node ? pickle_grow(vm, vm->stack, vm->count, &vm->stack_room, sizeof(*stack)) : NULL;
    if (!stack) return vm->err->code;
    vm->stack = stack;
    vm->stack[vm->count++] = node;
    return TERN_OK;
}

int tern__vm_mark(tern__vm *vm)
{
    int64_t *marks = pickle_grow(vm, vm->marks, vm->mark_count, &vm->mark_room, sizeof(*marks));
    if (!marks) return vm->err->code;
    vm->marks = marks;
    vm->marks[vm->mark_count++] = vm->count;
    return TERN_OK;
}

int tern__vm_memo_set(tern__vm *vm, uint64_t number)
{
    if (number > INT32_MAX)
        return tern__vm_refuse(vm, TERN_E_FORMAT, "memo number %llu is too large",
                               (unsigned long long)number);
    tern_object *top = tern__vm_pop(vm);
    tern_object **memo =
        top ? pickle_grow(vm, vm->memo, (int64_t)number, &vm->memo_room, sizeof(*memo)) : NULL;
    if (!memo) return vm->err->code;
    vm->count++;
    vm->memo = memo;
    vm->memo[number] = top;
    vm->memo_count = TERN__MAX(vm->memo_count, (int64_t)number + 1);
    return TERN_OK;
}

tern_object *tern__vm_pop(tern__vm *vm)
{
    int64_t bottom = vm->mark_count ? vm->marks[vm->mark_count - 1] : 0;
    if (vm->count > bottom) return vm->stack[--vm->count];
    tern__vm_refuse(vm, TERN_E_FORMAT, "pops from an empty stack");
    return NULL;
}

int tern__vm_pop_mark(tern__vm *vm, tern_object ***items, int64_t *count)
{
    if (!vm->mark_count) return tern__vm_refuse(vm, TERN_E_FORMAT, "pops to a mark that does not exist");
    int64_t bottom = vm->marks[--vm->mark_count];
    *items = vm->stack ? vm->stack + bottom : NULL;
    *count = vm->count - bottom;
    vm->count = bottom;
    return TERN_OK;
}

/* ---- nodes ---- */

static tern_object *once(tern__vm *vm, tern_object **slot, tern_object *made)
{
    *slot = tern__vm_take(vm, made);
    return made;
}

tern_object *tern__vm_none(tern__vm *vm)
{
    return vm->none ? vm->none : once(vm, &vm->none, tern_object_none(vm->err));
}

tern_object *tern__vm_bool(tern__vm *vm, bool value)
{
    tern_object **slot = value ? &vm->yes : &vm->no;
    return *slot ? *slot : once(vm, slot, tern_object_bool(value, vm->err));
}

tern_object *tern__vm_int(tern__vm *vm, int64_t value)
{
    bool is_small = value >= 0 && value < 256;
    if (is_small && vm->small[value]) return vm->small[value];
    if (tern__vm_charge(vm, TERN__VM_SCALAR)) return NULL;
    tern_object *made = tern_object_int(value, vm->err);
    return is_small ? once(vm, &vm->small[value], made) : tern__vm_take(vm, made);
}

tern_object *tern__vm_float(tern__vm *vm, double value)
{
    return tern__vm_charge(vm, TERN__VM_SCALAR) ? NULL : tern__vm_take(vm, tern_object_float(value, vm->err));
}

tern_object *tern__vm_list(tern__vm *vm, tern_object_kind kind)
{
    if (tern__vm_charge(vm, kind == TERN_OBJECT_DICT ? TERN__VM_DICT : TERN__VM_LIST)) return NULL;
    return tern__vm_take(vm, kind == TERN_OBJECT_DICT    ? tern_object_dict(vm->err)
                             : kind == TERN_OBJECT_TUPLE ? tern_object_tuple(vm->err)
                                                         : tern_object_list(vm->err));
}

tern_object *tern__vm_list_of(tern__vm *vm, tern_object_kind kind, tern_object **items, int64_t count)
{
    tern_object *list = tern__vm_list(vm, kind);
    if (!list || tern__vm_charge(vm, (count + 2) * (int64_t)sizeof(*items))) return NULL;
    if (tern__object_reserve(list, count, vm->err)) return NULL;
    for (int64_t i = 0; i < count; i++) tern__object_append(list, items[i], NULL);
    return list;
}

int tern__vm_append(tern__vm *vm, tern_object *list, tern_object *item)
{
    int status = tern__vm_charge(vm, TERN__OBJECT_ITEM_BYTES);
    return status ? status : tern__object_append(list, item, vm->err);
}

/* Makes a text that stands for a key that is a tuple, a class or a record. */
static tern_object *key_text(tern__vm *vm)
{
    char text[64];
    snprintf(text, sizeof(text), "<key %lld at byte %lld>", (long long)++vm->bad_keys,
             (long long)(vm->source->offset - vm->begin));
    return tern__vm_charge(vm, TERN__VM_TEXT + (int64_t)sizeof(text))
               ? NULL
               : tern__vm_take(vm, tern_object_string(text, vm->err));
}

static tern_object *bad_key(tern__vm *vm, const tern_object *key)
{
    const char *kind = key->kind > TERN_OBJECT_RECORD ? "class" : tern_object_kind_name(key->kind);
    tern_object *record = tern__vm_record(vm, kind, NULL);
    if (record) record->kind = TERN__VM_BAD_KEY;
    return record;
}

/* Python has keys that no dict of ours has. A text stands for such a key. */
int tern__vm_set(tern__vm *vm, tern_object *dict, tern_object *key, tern_object *item)
{
    int status = tern__vm_charge(vm, TERN__OBJECT_PAIR_BYTES);
    if (!status) key = tern__vm_resolve(vm, key);
    if (!status && key && !tern__object_is_key(key)) {
        if (!vm->source->records) item = bad_key(vm, key);
        key = item ? key_text(vm) : NULL;
    }
    if (!key) return vm->err->code;
    return status ? status : tern__object_set(dict, key, item, vm->err);
}
