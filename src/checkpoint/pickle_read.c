/* pickle_read.c - a pickle is a program for a machine with a stack: it makes objects and puts them into each
 * other. This machine runs what makes data, and has no instruction that does anything else: a name is looked
 * up in a table of what tern knows (pickle_calls.c), and "call" calls a function of that table.
 *
 * What a stranger's program could do is use up memory, time or stack. Every allocation is charged to what is
 * left of the file's size and the allowance. Every instruction takes time in proportion to the bytes and
 * nodes that it reads. An object that the program puts into several places (the memo exists for that) is one
 * node with several references; since whoever walks the result sees it several times, the walk's length is
 * bounded, and its depth too, which finds objects that hold themselves. */
#include "base/text.h"
#include "checkpoint/bytes.h"
#include "checkpoint/pickle_vm.h"

#include <string.h>

static const char FUNC[] = "tern_load";

enum { WINDOW = 1 << 16, DEEPEST = 1000 };
enum { SEEN_ALWAYS = 1000000, SEEN_FOR_A_BYTE = 16 }; /* nodes on the final walk */

/* ---- errors, memory ---- */

int tern__vm_refuse(tern__vm *vm, int code, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return tern__error_set(vm->err, FUNC, code, "%s: %s, byte %lld: %s", vm->source->in->path,
                           vm->source->what, (long long)(vm->source->offset - vm->begin), text);
}

int tern__vm_charge(tern__vm *vm, int64_t bytes)
{
    return tern__input_charge(vm->source->in, bytes, vm->err);
}

tern_object *tern__vm_take(tern__vm *vm, tern_object *node)
{
    if (!node) return NULL;
    node->link = vm->all;
    vm->all = node;
    return node;
}

/* ---- bytes ---- */

int tern__vm_read(tern__vm *vm, void *out, size_t bytes)
{
    tern__pickle_source *source = vm->source;
    if (bytes > (uint64_t)(source->end - source->offset))
        return tern__vm_refuse(vm, TERN_E_FORMAT, "ends where %zu bytes more are expected", bytes);
    int status = TERN_OK;
    if (bytes > WINDOW) {
        status = tern__input_read(source->in, source->offset, out, bytes, vm->err);
        if (!status) source->offset += (int64_t)bytes;
        return status;
    }
    if (source->offset + (int64_t)bytes > vm->window_at + (int64_t)vm->window_bytes) {
        vm->window_at = source->offset;
        vm->window_bytes = (size_t)TERN__MIN(source->end - source->offset, (int64_t)WINDOW);
        status = tern__input_read(source->in, vm->window_at, vm->window, vm->window_bytes, vm->err);
        if (status) vm->window_bytes = 0;
    }
    if (status) return status;
    memcpy(out, vm->window + (source->offset - vm->window_at), bytes);
    source->offset += (int64_t)bytes;
    return TERN_OK;
}

/* ---- the machine ---- */

static int run(tern__vm *vm)
{
    int status = TERN_OK;
    while (!status && !vm->is_done) {
        uint8_t op = 0;
        status = tern__vm_read(vm, &op, 1);
        if (!status) status = tern__vm_step(vm, op);
    }
    return status;
}

/* ---- the result ---- */

/* Every node in its place, once for each place. Classes that stand as values become records without
 * arguments. */
static int settle(tern__vm *vm, tern_object *node, int depth, int64_t *seen)
{
    if (depth > DEEPEST)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED,
                               "holds what is nested more than %d deep, or holds itself", DEEPEST);
    if (--*seen < 0)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED,
                               "names the same objects too often: there would be millions");
    if (node->kind == TERN__VM_STORAGE)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED, "holds a storage without a tensor");
    if (node->kind == TERN__VM_GLOBAL && !vm->source->records)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED, "holds the class %s itself", tern__object_name(node));
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < tern__object_child_count(node); i++) {
        tern_object *child = tern__object_child(node, i);
        if (child) status = settle(vm, child, depth + 1, seen);
        if (child) child->owned = true;
    }
    return status;
}

static tern_object *result(tern__vm *vm)
{
    if (vm->count != 1 || vm->mark_count) {
        tern__vm_refuse(vm, TERN_E_FORMAT, "ends with %lld objects on the stack, expected one",
                        (long long)vm->count);
        return NULL;
    }
    int64_t seen = SEEN_ALWAYS + SEEN_FOR_A_BYTE * (vm->source->offset - vm->begin);
    if (settle(vm, vm->stack[0], 0, &seen)) return NULL;
    return tern__object_hold(vm->stack[0]);
}

/* The machine's references go. What is not in the result is emptied first: it may stand in a circle. */
static void release(tern__vm *vm, const tern_object *root)
{
    for (tern_object *node = vm->all; node; node = node->link) {
        if (node->kind == TERN__VM_STORAGE) tern__storage_drop(((tern__vm_storage *)node)->storage);
        if (node->kind == TERN__VM_GLOBAL) node->kind = TERN_OBJECT_RECORD;
        if (!root || (!node->owned && node != root)) tern__object_empty(node);
    }
    for (tern_object *node = vm->all, *next; node; node = next) {
        next = node->link;
        node->link = NULL;
        tern__object_drop(node);
    }
    tern__free(vm->stack);
    tern__free(vm->memo);
    tern__free(vm->marks);
    tern__free(vm->window);
}

tern_object *tern__pickle_read(tern__pickle_source *source, tern_error *err)
{
    tern_error why = {0};
    tern__vm vm = {.source = source, .err = &why, .begin = source->offset};
    vm.window = tern__alloc_raw(WINDOW, TERN__LINE);
    if (!vm.window) tern__error_set(&why, FUNC, TERN_E_MEMORY, "out of memory: %d bytes", WINDOW);
    vm.storages = tern__vm_take(&vm, tern_object_dict(&why));
    tern_object *object = why.code || run(&vm) ? NULL : result(&vm);
    release(&vm, object);
    if (!object) tern__error_set(err, FUNC, why.code, "%s", why.text);
    if (!object && err && !err->native) err->native = why.native;
    return object;
}
