/* dnnl.h - oneDNN's C API behind cached primitives: everything that is made once per shape is made once per
 * device, and again only after so many others that it was the one not used for the longest time.
 *
 * A primitive is found by a key of plain bytes: the kernel, its shapes and attributes, the thread count.
 * Found again, a run sets the data pointers and executes: tern allocates nothing (oneDNN's execute does, a
 * few small blocks). The scratchpad is the device's. A device serves one thread at a time, and no kernel
 * makes nearly as many primitives in one call as are kept: what it has found stays while it runs.
 *
 * Nobody but dnnl_api.h and what stands behind it knows which major version the library is of: 2.x describes
 * memory and operations by structs, 3.x by handles and arguments. Here a description is tern's own, plain
 * bytes that cost nothing to make, and becomes the library's only while a primitive is made. */
#ifndef TERN_SRC_KERNELS_CPU_DNNL_H
#define TERN_SRC_KERNELS_CPU_DNNL_H

#include "kernels/kernel.h"

#include <oneapi/dnnl/dnnl.h>

#define TERN__PRIM_ARGS 8
#define TERN__PRIM_KEY  32
/* That a device keeps. A step of ResNet-152 has 140, one of 196 convolutions that all differ has 1180. */
#define TERN__PRIMS_MAX 2048

/* How a tensor stands in memory. Two that are equal byte for byte are the same; filled with zeros first. */
typedef struct tern__dnnl_desc {
    int32_t ndim, type;     /* dnnl_data_type_t                                             */
    int32_t tag, unused;    /* dnnl_format_tag_t; undef: by strides                         */
    const void *own;        /* the library's own description, which a primitive keeps; or NULL */
    uint64_t own_signature; /* of what it says: the same wherever it was made               */
    dnnl_dims_t shape, stride;
} tern__dnnl_desc;

/* Memory and how what is in it stands. */
typedef struct tern__dnnl_memory {
    const tern__dnnl_desc *desc;
    void *data;
} tern__dnnl_memory;

/* oneDNN's name of f32 and bf16; other dtypes have none here. */
dnnl_data_type_t tern__dnnl_type(tern_dtype dtype);
tern__dnnl_desc tern__dnnl_by_strides(int ndim, const int64_t *shape, const int64_t *stride,
                                      dnnl_data_type_t type);
tern__dnnl_desc tern__dnnl_by_tag(int ndim, const int64_t *shape, dnnl_format_tag_t tag,
                                  dnnl_data_type_t type);
/* A contiguous or blocked view of f32 or bf16; the blocked one has 2 to 5 dimensions. */
tern__dnnl_desc tern__dnnl_describe(const tern__view *view);
bool tern__dnnl_same(const tern__dnnl_desc *a, const tern__dnnl_desc *b);

/* Filled with zeros and then with what tells two primitives apart. */
typedef struct tern__prim_key {
    int32_t kernel, part; /* part: several primitives of one kernel            */
    int32_t threads;
    int32_t unused; /* keeps the bytes free of padding                   */
    int64_t number[TERN__PRIM_KEY];
} tern__prim_key;

/* One argument of a primitive: its DNNL_ARG_ number, and how the caller has it. */
typedef struct tern__prim_arg {
    int arg;
    const tern__dnnl_desc *have;
} tern__prim_arg;

typedef struct tern__prim tern__prim;
struct tern__prim {
    tern__prim_key key;
    dnnl_primitive_t primitive;
    int arg_count;
    dnnl_exec_arg_t args[TERN__PRIM_ARGS + 1]; /* the last one is the scratchpad           */
    tern__dnnl_desc desc[TERN__PRIM_ARGS];     /* as it has each: the caller's where equal */
    size_t bytes[TERN__PRIM_ARGS], scratch_bytes;
    bool moves_stack;          /* the stack pointer is not the stack's while it runs */
    tern__prim *next;          /* in its bucket                                      */
    tern__prim *newer, *older; /* by their last use                                  */
};

/* A key for this call: kernel, threads and `part` filled. */
tern__prim_key tern__prim_key_make(const tern__call *call, int part);
unsigned tern__prim_key_hash(const tern__prim_key *key);
/* NULL if no such primitive has been made yet, or it is no longer kept. */
tern__prim *tern__prim_find(const tern__call *call, const tern__prim_key *key);
/* Makes the primitive that is planned, whose arguments are in the formats that it asks for, and keeps it
 * under `key`, in the place of the least recently used one where there are enough. Takes over `plan`. */
int tern__prim_new(const tern__call *call, const tern__prim_key *key, dnnl_primitive_desc_t plan,
                   const tern__prim_arg *args, int arg_count, tern__prim **prim);
/* Runs it on `data`, one pointer an argument, in the order given to tern__prim_new. */
int tern__prim_run(const tern__call *call, tern__prim *prim, void *const *data);
/* How many the device keeps. */
int tern__prims_count(const tern_device *device);

/* ---- plans: what the library would compute, and how ---- */

typedef struct tern__dnnl_conv {
    dnnl_prop_kind_t kind;                       /* forward_training, backward_data or backward_weights */
    const tern__dnnl_desc *x, *w, *y, *b;        /* or their gradients; no b: NULL */
    dnnl_dims_t stride, dilation, before, after; /* dilation from 0; what is padded on both sides */
} tern__dnnl_conv;

typedef struct tern__dnnl_matmul {
    const tern__dnnl_desc *a, *b, *y, *bias; /* no bias: NULL */
    bool add;                                /* y += */
} tern__dnnl_matmul;

/* E_UNSUPPORTED where the library has nothing for it, and no message then. */
int tern__dnnl_plan_conv(const tern__call *call, const tern__dnnl_conv *conv, dnnl_primitive_desc_t *plan);
int tern__dnnl_plan_matmul(const tern__call *call, const tern__dnnl_matmul *m, dnnl_primitive_desc_t *plan);
int tern__dnnl_plan_reorder(const tern__call *call, const tern__dnnl_desc *from, const tern__dnnl_desc *to,
                            bool add, dnnl_primitive_desc_t *plan);
/* The library's name of the code it would run. */
const char *tern__dnnl_plan_name(const_dnnl_primitive_desc_t plan);

/* to = or += from, element by element, whatever their formats; the primitive is kept under `key`. */
int tern__dnnl_reorder(const tern__call *call, const tern__prim_key *key, const tern__dnnl_memory *from,
                       const tern__dnnl_memory *to, bool add);

/* Whether this CPU has oneDNN's kernels for bf16. */
bool tern__dnnl_has_bf16(void);

/* Whether oneDNN makes code for convolutions on this CPU, and has not only fallbacks. */
bool tern__dnnl_has_convolutions(void);

/* E_UNSUPPORTED if oneDNN says unimplemented, E_MEMORY, or E_SYSTEM with oneDNN's status. */
int tern__dnnl_fail(const tern__call *call, dnnl_status_t status, const char *what);

#endif
