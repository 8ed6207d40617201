/* dnnl.h - oneDNN (2.x C API) behind cached primitives: everything that is made once per shape is made once
 * per device.
 *
 * A primitive is found by a key of plain bytes: the kernel, its shapes and attributes, the thread count.
 * Found again, a run sets the data pointers and executes: tern allocates nothing (oneDNN's execute does, a
 * few small blocks). The scratchpad is the device's. */
#ifndef TERN_SRC_KERNELS_CPU_DNNL_H
#define TERN_SRC_KERNELS_CPU_DNNL_H

#include "kernels/kernel.h"

#include <oneapi/dnnl/dnnl.h>

#define TERN__PRIM_ARGS 8
#define TERN__PRIM_KEY  32

/* Filled with zeros and then with what tells two primitives apart. */
typedef struct tern__prim_key {
    int32_t kernel, part; /* part: several primitives of one kernel            */
    int32_t threads;
    int32_t unused; /* keeps the bytes free of padding                   */
    int64_t number[TERN__PRIM_KEY];
} tern__prim_key;

typedef struct tern__prim tern__prim;
struct tern__prim {
    tern__prim_key key;
    dnnl_primitive_t primitive;
    int arg_count;
    dnnl_exec_arg_t args[TERN__PRIM_ARGS + 1]; /* the last one is the scratchpad */
    size_t scratch_bytes;
    tern__prim *next;
};

/* One argument of a primitive: its DNNL_ARG_ number and how its memory is described. */
typedef struct tern__prim_arg {
    int arg;
    const dnnl_memory_desc_t *desc;
} tern__prim_arg;

/* Memory of a format that a description tells. */
typedef struct tern__dnnl_memory {
    const dnnl_memory_desc_t *desc;
    void *data;
} tern__dnnl_memory;

/* oneDNN's name of f32 and bf16; other dtypes have none here. */
dnnl_data_type_t tern__dnnl_type(tern_dtype dtype);
/* How a contiguous or blocked view of f32 or bf16 stands in memory. */
dnnl_status_t tern__dnnl_describe(const tern__view *view, dnnl_memory_desc_t *desc);
/* to = or += from, element by element, whatever their formats; the primitive is kept under `key`. */
int tern__dnnl_reorder(const tern__call *call, const tern__prim_key *key, const tern__dnnl_memory *from,
                       const tern__dnnl_memory *to, bool add);

/* A key for this call: kernel, threads and `part` filled. */
tern__prim_key tern__prim_key_make(const tern__call *call, int part);
/* NULL if no such primitive has been made yet. */
tern__prim *tern__prim_find(const tern__call *call, const tern__prim_key *key);

dnnl_engine_t tern__dnnl_engine(const tern__call *call);
/* Whether this CPU has oneDNN's kernels for bf16. */
bool tern__dnnl_has_bf16(void);

/* Attributes with the scratchpad in our hands; destroy with dnnl_primitive_attr_destroy. */
int tern__dnnl_attr_new(const tern__call *call, dnnl_primitive_attr_t *attr);
/* E_UNSUPPORTED if oneDNN says unimplemented, E_MEMORY, or E_SYSTEM with oneDNN's status. */
int tern__dnnl_fail(const tern__call *call, dnnl_status_t status, const char *what);

/* Makes the primitive of `desc` and its arguments, and keeps both under `key`. Takes over `desc`. */
int tern__prim_new(const tern__call *call, const tern__prim_key *key, dnnl_primitive_desc_t desc,
                   const tern__prim_arg *args, int arg_count, tern__prim **prim);
/* Runs it on `data`, one pointer an argument, in the order given to tern__prim_new. */
int tern__prim_run(const tern__call *call, tern__prim *prim, void *const *data);

#endif
