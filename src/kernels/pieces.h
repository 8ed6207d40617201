/* pieces.h - parts of one long run of memory that a call keeps apart: where updates depend on norms, one call
 * is about many parameters. */
#ifndef TERN_SRC_KERNELS_PIECES_H
#define TERN_SRC_KERNELS_PIECES_H

#include "base/anywhere.h"
#include "tensor/view.h"

/* A row of an operand i64 (pieces, 3). Pieces follow each other, and there may be gaps between them. They are
 * counted as in a longer run, of which a call has what lies from its first piece on. Those of parameters
 * begin with a cache line. */
typedef struct tern__piece {
    int64_t begin, count;
    int64_t row; /* of the factors that it goes by */
} tern__piece;

static inline int64_t tern__piece_count(const tern__view *pieces)
{
    return pieces ? pieces->shape[0] : 1;
}

static inline const tern__piece *tern__piece_table(const tern__view *pieces)
{
    return pieces ? (const tern__piece *)pieces->data : NULL;
}

/* Piece i, counted from where the call's operands begin; without a table the one that is all. */
TERN__ANYWHERE tern__piece tern__piece_get(const tern__piece *table, int64_t i, int64_t all)
{
    tern__piece piece = {0, all, 0};
    if (!table) return piece;
    piece = table[i];
    piece.begin -= table[0].begin;
    return piece;
}

#endif
