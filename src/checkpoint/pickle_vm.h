/* pickle_vm.h - the stack machine that reads pickles: pickle_read.c runs it, pickle_ops.c has its
 * instructions, pickle_nodes.c its stack, memo and nodes, pickle_calls.c the functions and classes that a
 * pickle may name, pickle_result.c what it leaves, and pickle_vm.c its errors, memory budget and input. */
#ifndef TERN_SRC_CHECKPOINT_PICKLE_VM_H
#define TERN_SRC_CHECKPOINT_PICKLE_VM_H

#include "checkpoint/pickle.h"

/* Kinds of nodes that only the machine has: a function or class, by name (a record in the result); a storage;
 * and, instead of the value of a key that no dict can have, a record with the name of the key's kind, which
 * the final walk refuses. */
enum { TERN__VM_GLOBAL = TERN_OBJECT_RECORD + 1, TERN__VM_BAD_KEY, TERN__VM_STORAGE };

enum { TERN__VM_WINDOW = 1 << 16 }; /* bytes read at a time */

/* Upper bounds of the bytes that a node takes, with malloc's overhead but without its text and items; the
 * storage's is for one of a few bytes. */
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
    const tern__file_dtype *dtype;
    int64_t bytes;
    tern_object *class;  /* borrowed */
    tern_object *record; /* borrowed; what stands for it in the result, once that is made */
} tern__vm_storage;

typedef struct tern__vm {
    tern__pickle_source *source;
    tern_error *err;
    int64_t begin; /* the pickle's offset in the file */

    uint8_t *window; /* a part of the file, from window_at on */
    int64_t window_at;
    size_t window_bytes;

    tern_object **stack, **memo; /* borrowed: `all` holds a reference to every node */
    int64_t count, stack_room, memo_count, memo_room;
    int64_t *marks;
    int64_t mark_count, mark_room;
    tern_object *all;
    tern_object *small[256], *none, *yes, *no; /* made once */
    tern_object *storages;                     /* dict key -> storage */
    int64_t bad_keys;                          /* how many keys a text stands for */
    bool is_done;
} tern__vm;

/* ---- pickle_vm.c ---- */

/* Sets the error, with the file, the pickle and the byte offset, and returns `code`. */
int tern__vm_refuse(tern__vm *vm, int code, const char *format, ...) TERN__PRINTF(3, 4);
/* Takes `bytes` from the memory budget, before an allocation. */
int tern__vm_charge(tern__vm *vm, int64_t bytes);

/* Reads the next bytes of the pickle. */
int tern__vm_read(tern__vm *vm, void *out, size_t bytes);
/* Gives the machine the reference to a node; passes NULL on. */
tern_object *tern__vm_take(tern__vm *vm, tern_object *node);

/* ---- pickle_ops.c ---- */

/* Runs one instruction. */
int tern__vm_step(tern__vm *vm, uint8_t op);

/* ---- pickle_nodes.c ---- */

/* Pushes a node. A NULL node returns the error that its maker has set. */
int tern__vm_push(tern__vm *vm, tern_object *node);
/* Pops the top node, which must be above the last mark; NULL after an error. */
tern_object *tern__vm_pop(tern__vm *vm);
int tern__vm_mark(tern__vm *vm);
/* Pops the last mark and the items above it; the items stay valid until the next push. */
int tern__vm_pop_mark(tern__vm *vm, tern_object ***items, int64_t *count);
/* Stores the top of the stack in the memo, under `number`. */
int tern__vm_memo_set(tern__vm *vm, uint64_t number);

/* Make nodes that the machine holds; NULL after an error. */
tern_object *tern__vm_none(tern__vm *vm);
tern_object *tern__vm_bool(tern__vm *vm, bool value);
tern_object *tern__vm_int(tern__vm *vm, int64_t value);
tern_object *tern__vm_float(tern__vm *vm, double value);
tern_object *tern__vm_list(tern__vm *vm, tern_object_kind kind);
tern_object *tern__vm_list_of(tern__vm *vm, tern_object_kind kind, tern_object **items, int64_t count);
int tern__vm_append(tern__vm *vm, tern_object *list, tern_object *item);
int tern__vm_set(tern__vm *vm, tern_object *dict, tern_object *key, tern_object *item);

/* ---- pickle_calls.c ---- */

/* Returns the node for a function's or class's name; a dtype becomes a string. */
tern_object *tern__vm_global(tern__vm *vm, const char *name);
/* Returns function(*args) or class.__new__(class, *args). */
tern_object *tern__vm_call(tern__vm *vm, tern_object *function, tern_object *args);
/* Returns the storage that a persistent id names. */
tern_object *tern__vm_storage_get(tern__vm *vm, const tern_object *id);
/* Makes an instance of a class that tern does not know: its name, its arguments and no state. */
tern_object *tern__vm_record(tern__vm *vm, const char *name, tern_object *args);

/* ---- pickle_result.c ---- */

/* Returns what stands for a node in the result or as a key: a record for a storage, the name of a numpy dtype
 * that is not more than a name, or the node itself. NULL after an error. */
tern_object *tern__vm_resolve(tern__vm *vm, tern_object *node);
/* Checks the object that is left on the stack and returns it, with a reference for the caller. Unless records
 * were asked for, what tern does not have is refused here, where its place is known. */
tern_object *tern__vm_result(tern__vm *vm);

#define TERN__NUMPY_DTYPE  "numpy.dtype"
#define TERN__NUMPY_SCALAR "numpy.core.multiarray.scalar"
#define TERN__PYTHON_INT   "builtins.int"

#endif
