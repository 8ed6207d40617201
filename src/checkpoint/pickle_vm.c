/* pickle_vm.c - what all parts of the pickle machine use: errors, the memory budget, and the file's bytes. */
#include "checkpoint/pickle_vm.h"

#include "base/text.h"

#include <string.h>

static const char FUNC[] = "tern_load";

/* ---- errors, memory ---- */

int tern__vm_refuse(tern__vm *vm, int code, const char *format, ...)
{
    char text[TERN_ERROR_TEXT] = "";
    va_list args;
    va_start(args, format);
    tern__text_vappend(text, sizeof(text), format, args);
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
    if (bytes > TERN__VM_WINDOW) {
        status = tern__input_read(source->in, source->offset, out, bytes, vm->err);
        if (!status) source->offset += (int64_t)bytes;
        return status;
    }
    if (source->offset + (int64_t)bytes > vm->window_at + (int64_t)vm->window_bytes) {
        vm->window_at = source->offset;
        vm->window_bytes = (size_t)TERN__MIN(source->end - source->offset, (int64_t)TERN__VM_WINDOW);
        status = tern__input_read(source->in, vm->window_at, vm->window, vm->window_bytes, vm->err);
        if (status) vm->window_bytes = 0;
    }
    if (status) return status;
    memcpy(out, vm->window + (source->offset - vm->window_at), bytes);
    source->offset += (int64_t)bytes;
    return TERN_OK;
}
