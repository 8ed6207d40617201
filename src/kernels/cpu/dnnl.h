/* dnnl.h - oneDNN's C API behind cached primitives: what is needed once per shape is made once per device.
 * The cache evicts the least recently used primitives.
 *
 * A primitive is found by a key of plain bytes: the kernel, its shapes and attributes, the thread count. A
 * run with a cached primitive sets the data pointers and executes: tern allocates nothing (oneDNN's
 * execute allocates a few small blocks). The scratchpad is the device's. A device serves one thread at a
 * time, and no kernel makes nearly as many primitives in one call as are kept, so primitives that a call
 * has found stay while it runs.
 *
 * Only dnnl_api.h and its implementations depend on the library's major version: 2.x describes memory and
 * operations by structs, 3.x by handles and arguments. Descriptions here are tern's own plain bytes, which
 * cost nothing to make, and become the library's only while a primitive is made.
 *
 * A build without oneDNN (TERN_DNNL=OFF in CMake) has dnnl_none.c in place of all files that call it. */
#ifndef TERN_SRC_KERNELS_CPU_DNNL_H
#define TERN_SRC_KERNELS_CPU_DNNL_H

#include "kernels/kernel.h"

#ifndef TERN_WITHOUT_DNNL
#include <oneapi/dnnl/dnnl.h>
#endif

#define TERN__PRIM_ARGS 8
#define TERN__PRIM_KEY  32
/* The most primitives that a device keeps. A step of ResNet-152 has 140; one of 196 different convolutions
 * has 1180. */
#define TERN__PRIMS_MAX 2048

#define TERN__DNNL_NDIM 12 /* DNNL_MAX_NDIMS */

/* The format of a tensor in memory. Zero it first: equal formats are equal byte for byte. */
typedef struct tern__dnnl_desc {
    int32_t ndim, type;     /* dnnl_data_type_t                                             */
    int32_t tag, unused;    /* dnnl_format_tag_t; undef: given by strides */
    const void *own;        /* the library's description, kept by a primitive; or NULL */
    uint64_t own_signature; /* hash of its contents, independent of its address */
    int64_t shape[TERN__DNNL_NDIM], stride[TERN__DNNL_NDIM];
} tern__dnnl_desc;

/* The key of a primitive, and of a case of a convolution. Zero it first, then fill in everything that
 * distinguishes primitives. */
typedef struct tern__prim_key {
    int32_t kernel, part; /* part: distinguishes primitives of one kernel */
    int32_t threads;
    int32_t unused; /* avoids padding */
    int64_t number[TERN__PRIM_KEY];
} tern__prim_key;

/* Returns a key for this call with kernel, threads and `part` set. */
static inline tern__prim_key tern__prim_key_make(const tern__call *call, int part)
{
    return (tern__prim_key){.kernel = (int32_t)call->kernel, .part = part, .threads = call->device->threads};
}
/* The number of primitives that the device has cached. */
int tern__prims_count(const tern_device *device);

/* Whether this build has oneDNN. Without it no other kernel than tern's own computes products in f32. */
bool tern__dnnl_is_there(void);
/* Whether this CPU has oneDNN's kernels for bf16. */
bool tern__dnnl_has_bf16(void);
/* Whether oneDNN generates code for convolutions on this CPU, instead of only having fallbacks. */
bool tern__dnnl_has_convolutions(void);

#ifndef TERN_WITHOUT_DNNL

/* A buffer and its format. */
typedef struct tern__dnnl_memory {
    const tern__dnnl_desc *desc;
    void *data;
} tern__dnnl_memory;

/* oneDNN's type for f32 and bf16; other dtypes have none. */
dnnl_data_type_t tern__dnnl_type(tern_dtype dtype);
tern__dnnl_desc tern__dnnl_by_strides(int ndim, const int64_t *shape, const int64_t *stride,
                                      dnnl_data_type_t type);
tern__dnnl_desc tern__dnnl_by_tag(int ndim, const int64_t *shape, dnnl_format_tag_t tag,
                                  dnnl_data_type_t type);
/* Describes a contiguous or blocked view of f32 or bf16; a blocked one has 2 to 5 dimensions. */
tern__dnnl_desc tern__dnnl_describe(const tern__view *view);
bool tern__dnnl_same(const tern__dnnl_desc *a, const tern__dnnl_desc *b);

/* An argument of a primitive: its DNNL_ARG_ number, and the caller's format. */
typedef struct tern__prim_arg {
    int arg;
    const tern__dnnl_desc *have;
} tern__prim_arg;

typedef struct tern__prim tern__prim;
struct tern__prim {
    tern__prim_key key;
    dnnl_primitive_t primitive;
    int arg_count;
    dnnl_exec_arg_t args[TERN__PRIM_ARGS + 1]; /* the last one is the scratchpad */
    tern__dnnl_desc desc[TERN__PRIM_ARGS];     /* the primitive's formats; the caller's if equal */
    size_t bytes[TERN__PRIM_ARGS], scratch_bytes;
    bool moves_stack;          /* it uses the stack pointer for something else (signals.h) */
    tern__prim *next;          /* next in its bucket */
    tern__prim *newer, *older; /* by their last use                                  */
};

unsigned tern__prim_key_hash(const tern__prim_key *key);
/* Returns the primitive; NULL: not made yet, or evicted. */
tern__prim *tern__prim_find(const tern__call *call, const tern__prim_key *key);
/* Makes the planned primitive, whose arguments have the formats that it asks for, and caches it under
 * `key`; if the cache is full the least recently used primitive is evicted. Takes over `plan`. */
int tern__prim_new(const tern__call *call, const tern__prim_key *key, dnnl_primitive_desc_t plan,
                   const tern__prim_arg *args, int arg_count, tern__prim **prim);
/* Runs it on `data`, one pointer per argument, in the order given to tern__prim_new. */
int tern__prim_run(const tern__call *call, tern__prim *prim, void *const *data);

/* ---- plans: what the library would compute, and how ---- */

typedef struct tern__dnnl_conv {
    dnnl_prop_kind_t kind;                       /* forward_training, backward_data or backward_weights */
    const tern__dnnl_desc *x, *w, *y, *b;        /* or their gradients; b may be NULL */
    dnnl_dims_t stride, dilation, before, after; /* dilation counts from 0; padding on both sides */
} tern__dnnl_conv;

typedef struct tern__dnnl_matmul {
    const tern__dnnl_desc *a, *b, *y, *bias; /* bias may be NULL */
    bool add;                                /* y += */
} tern__dnnl_matmul;

/* E_UNSUPPORTED, without a message, if the library has no implementation. */
int tern__dnnl_plan_conv(const tern__call *call, const tern__dnnl_conv *conv, dnnl_primitive_desc_t *plan);
int tern__dnnl_plan_matmul(const tern__call *call, const tern__dnnl_matmul *m, dnnl_primitive_desc_t *plan);
int tern__dnnl_plan_reorder(const tern__call *call, const tern__dnnl_desc *from, const tern__dnnl_desc *to,
                            bool add, dnnl_primitive_desc_t *plan);
/* The library's name of the implementation it would run. */
const char *tern__dnnl_plan_name(const_dnnl_primitive_desc_t plan);

/* to = or += from, element by element, in any formats; the primitive is cached under `key`. */
int tern__dnnl_reorder(const tern__call *call, const tern__prim_key *key, const tern__dnnl_memory *from,
                       const tern__dnnl_memory *to, bool add);

/* Sets the error: E_UNSUPPORTED if oneDNN says unimplemented, E_MEMORY, or E_SYSTEM with oneDNN's status. */
int tern__dnnl_fail(const tern__call *call, dnnl_status_t status, const char *what);

#endif
#endif
