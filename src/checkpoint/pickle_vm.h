/* pickle_vm.h - the machine that reads pickles: pickle_read.c runs it, pickle_ops.c has its
 * instructions, pickle_nodes.c its stack, pickle_calls.c the functions and classes that a pickle may name. */
#ifndef TERN_SRC_CHECKPOINT_PICKLE_VM_H
#define TERN_SRC_CHECKPOINT_PICKLE_VM_H

#include "checkpoint/pickle.h"

/* Kinds of nodes that live on the machine's stack only: a function or class by name (a record otherwise), and
 * a storage. */
enum { TERN__VM_GLOBAL = TERN_OBJECT_RECORD + 1, TERN__VM_STORAGE };

/* At most so many bytes nodes take with malloc's own, beside text and items, and a storage of a few bytes. */
enum {
    TERN__VM_SCALAR = 48,
    TERN__VM_TEXT = 64,
    TERN__VM_LIST = 80,
    TERN__VM_DICT = TERN__OBJECT_BYTES,
    TERN__VM_TENSOR = 64 + 3 * TERN__LINE + sizeof(tern_tensor),
    TERN__VM_STORAGE_BYTES = 64 + 3 * TERN__LINE + TERN__OBJECT_PAIR_BYTES,
};

typedef struct tern__vm_storage {
    tern_object object;
    tern__storage *storage;
    tern_dtype dtype;
    int64_t bytes;
} tern__vm_storage;

typedef struct tern__vm {
    tern__pickle_source *source;
    tern_error *err;
    int64_t begin; /* of the pickle in the file */

    uint8_t *window; /* a part of the file */
    int64_t window_at;
    size_t window_bytes;

    tern_object **stack, **memo; /* borrowed: `all` has a reference to every node */
    int64_t count, stack_room, memo_count, memo_room;
    int64_t *marks;
    int64_t mark_count, mark_room;
    tern_object *all;
    tern_object *small[256], *none, *yes, *no; /* made once */
    tern_object *storages;                     /* dict key -> storage */
    bool is_done;
} tern__vm;

/* Sets the error with file, pickle and byte; returns `code`. */
int tern__vm_refuse(tern__vm *vm, int code, const char *format, ...) TERN__PRINTF(3, 4);
/* Before an allocation of so many bytes. */
int tern__vm_charge(tern__vm *vm, int64_t bytes);

/* The next bytes of the pickle. */
int tern__vm_read(tern__vm *vm, void *out, size_t bytes);
/* Runs one instruction. */
int tern__vm_step(tern__vm *vm, uint8_t op);

/* Pushes a node, or returns the error after which there is none. */
int tern__vm_push(tern__vm *vm, tern_object *node);
/* The top of the stack, above the last mark; NULL after an error. */
tern_object *tern__vm_pop(tern__vm *vm);
int tern__vm_mark(tern__vm *vm);
/* The items above the last mark, which goes; they are there until something is pushed. */
int tern__vm_pop_mark(tern__vm *vm, tern_object ***items, int64_t *count);
/* The top of the stack gets a number. */
int tern__vm_memo_set(tern__vm *vm, uint64_t number);

/* Nodes of the machine's own; NULL after an error. */
tern_object *tern__vm_take(tern__vm *vm, tern_object *node);
tern_object *tern__vm_none(tern__vm *vm);
tern_object *tern__vm_bool(tern__vm *vm, bool value);
tern_object *tern__vm_int(tern__vm *vm, int64_t value);
tern_object *tern__vm_float(tern__vm *vm, double value);
tern_object *tern__vm_list(tern__vm *vm, tern_object_kind kind);
tern_object *tern__vm_list_of(tern__vm *vm, tern_object_kind kind, tern_object **items, int64_t count);
int tern__vm_append(tern__vm *vm, tern_object *list, tern_object *item);
int tern__vm_set(tern__vm *vm, tern_object *dict, tern_object *key, tern_object *item);

/* What the name of a function or class stands for; a dtype is a string. */
tern_object *tern__vm_global(tern__vm *vm, const char *name);
/* function(*args) and class.__new__(class, *args). */
tern_object *tern__vm_call(tern__vm *vm, tern_object *function, tern_object *args);
/* The storage that a persistent id names. */
tern_object *tern__vm_storage_get(tern__vm *vm, const tern_object *id);

#endif
