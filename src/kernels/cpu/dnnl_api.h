/* dnnl_api.h - the differences between the C APIs of oneDNN 2.x and 3.x. dnnl_2.c and dnnl_3.c implement
 * the same functions; CMake selects the file for the version found.
 *
 * The library's descriptions are const void * here: a struct's address in 2.x, a handle in 3.x. All other
 * functions of the library take either. */
#ifndef TERN_SRC_KERNELS_CPU_DNNL_API_H
#define TERN_SRC_KERNELS_CPU_DNNL_API_H

#include "kernels/cpu/dnnl.h"

/* The operands of a convolution or a product, in the order of their descriptions. */
enum { TERN__DNNL_X, TERN__DNNL_W, TERN__DNNL_Y, TERN__DNNL_B, TERN__DNNL_OPERANDS };

/* FNV-1a over 4-byte words. */
uint64_t tern__dnnl_hash(const void *bytes, size_t size);

/* The device's engine, opened by its first kernel. */
int tern__dnnl_open(const tern__call *call, dnnl_engine_t *engine);

/* Converts our description to the library's; free it. */
dnnl_status_t tern__dnnl_api_describe(const tern__dnnl_desc *desc, void **own);
void tern__dnnl_api_free(void *own);
/* A hash that is equal for equal descriptions. */
uint64_t tern__dnnl_api_signature(const void *own);

dnnl_status_t tern__dnnl_api_append_sum(dnnl_post_ops_t ops);
/* `own`: the operands' descriptions; NULL for no bias. Cases that this version is known to compute wrongly
 * are unimplemented. */
dnnl_status_t tern__dnnl_api_plan_conv(dnnl_engine_t engine, const tern__dnnl_conv *conv,
                                       const void *const own[TERN__DNNL_OPERANDS], dnnl_primitive_attr_t attr,
                                       dnnl_primitive_desc_t *plan);
dnnl_status_t tern__dnnl_api_plan_matmul(dnnl_engine_t engine, const tern__dnnl_matmul *m,
                                         const void *const own[TERN__DNNL_OPERANDS],
                                         dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *plan);

#endif
