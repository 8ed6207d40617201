/* pickle_read.c - reads a pickle.
 *
 * A pickle is a program for a stack machine, which makes objects and puts them into each other. tern's
 * machine makes data and can do nothing else: it looks up a name in a table of known names (pickle_calls.c),
 * and "call" calls a function of that table.
 *
 * A hostile program could only try to use up memory, time or stack. So every allocation is charged to a
 * budget: the file's size plus an allowance. Every instruction takes time in proportion to the bytes and
 * nodes that it reads. An object in several places (the memo makes that possible) is one node with several
 * references, and a walk over the result visits it several times. So the length of the walk is limited, and
 * its depth as well, which also finds objects that contain themselves. */
#include "checkpoint/pickle_vm.h"

static const char FUNC[] = "tern_load";

/* ---- the machine ---- */

static int pickle_run(tern__vm *vm)
{
    int status = TERN_OK;
    while (!status && !vm->is_done) {
        uint8_t op = 0;
        status = tern__vm_read(vm, &op, 1);
        if (!status) status = tern__vm_step(vm, op);
    }
    return status;
}

/* ---- the end ---- */

/* Drops the machine's references. Empties nodes that are not in the result first: they may refer to each
 * other in a cycle. */
static void pickle_release(tern__vm *vm, const tern_object *root)
{
    for (tern_object *node = vm->all; node; node = node->link) {
        if (node->kind == TERN__VM_STORAGE) tern__storage_drop(((tern__vm_storage *)node)->storage);
        if (node->kind == TERN__VM_GLOBAL || node->kind == TERN__VM_BAD_KEY) node->kind = TERN_OBJECT_RECORD;
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
    vm.window = tern__alloc_raw(TERN__VM_WINDOW, TERN__LINE);
    if (!vm.window) tern__error_set(&why, FUNC, TERN_E_MEMORY, "out of memory: %d bytes", TERN__VM_WINDOW);
    vm.storages = tern__vm_take(&vm, tern_object_dict(&why));
    tern_object *object = why.code || pickle_run(&vm) ? NULL : tern__vm_result(&vm);
    pickle_release(&vm, object);
    if (!object) tern__error_set(err, FUNC, why.code, "%s", why.text);
    if (!object && err && !err->native) err->native = why.native;
    return object;
}
