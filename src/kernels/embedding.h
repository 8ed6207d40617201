/* embedding.h - what the kernels of an embedding share. */
#ifndef TERN_SRC_KERNELS_EMBEDDING_H
#define TERN_SRC_KERNELS_EMBEDDING_H

#include "kernels/kernel.h"

/* The row that gets no gradient; -1: none. */
typedef struct tern__embedding_attr {
    int64_t padding;
} tern__embedding_attr;

/* Element i of a contiguous index, i64 or i32. */
static inline int64_t tern__index_at(const tern__view *index, int64_t i)
{
    return index->dtype == TERN_I64 ? ((const int64_t *)index->data)[i] : ((const int32_t *)index->data)[i];
}

/* TERN_OK if every element of the index is a row of the weight, else E_RANGE with the first that is not. */
int tern__embedding_check(const tern__call *call);

#endif
