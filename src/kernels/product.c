/* product.c - reduces a matrix product over batches to few axes. */
#include "kernels/product.h"

enum { A, B, Y, OPERANDS = TERN__PRODUCT_OPERANDS };
enum { M, K, N, AXES };

typedef tern__product_axis axis;

static const int rows_of[OPERANDS] = {M, K, M}, columns_of[OPERANDS] = {K, N, N};

const axis *tern__product_rows(const tern__product *p, int operand)
{
    return &p->axis[rows_of[operand]];
}

const axis *tern__product_columns(const tern__product *p, int operand)
{
    return &p->axis[columns_of[operand]];
}

static axis product_axis_of(const tern__call *call, int d)
{
    const tern__view *y = call->out[0];
    return (axis){y->shape[d], {call->in[A]->stride[d], call->in[B]->stride[d], y->stride[d]}};
}

static bool has(int operand, int at)
{
    return rows_of[operand] == at || columns_of[operand] == at;
}

/* Merges `outer` into the axis if every operand that has the axis steps through both uniformly and the
 * others have stride 0. An axis of one element fits any stride. */
static bool extend(axis *inner, const axis *outer, int at)
{
    axis both = {inner->size * outer->size, {0}};
    for (int i = 0; i < OPERANDS; i++) {
        int64_t step = has(i, at) && inner->size == 1 ? outer->stride[i] : inner->stride[i];
        if (outer->stride[i] != (has(i, at) ? inner->size * step : 0)) return false;
        both.stride[i] = step;
    }
    *inner = both;
    return true;
}

bool tern__product_stand(const tern__product *p, int operand, tern__stand *s)
{
    const axis *rows = tern__product_rows(p, operand), *columns = tern__product_columns(p, operand);
    s->transposed = columns->size > 1 && columns->stride[operand] != 1;
    const axis *outer = s->transposed ? columns : rows, *inner = s->transposed ? rows : columns;
    s->step = outer->size > 1 ? outer->stride[operand] : inner->size;
    return (inner->size == 1 || inner->stride[operand] == 1) && s->step >= inner->size &&
           (operand != Y || !s->transposed);
}

bool tern__product_stands(const tern__product *p)
{
    tern__stand s;
    return tern__product_stand(p, A, &s) && tern__product_stand(p, B, &s) && tern__product_stand(p, Y, &s);
}

/* Adds the next outer dimension of the batch. The bias has the length of n, so n cannot grow with a bias. */
static void product_push(tern__product *p, axis outer)
{
    for (int at = 0; at < (p->bias ? N : AXES); at++) {
        tern__product longer = *p;
        if (extend(&longer.axis[at], &outer, at) && tern__product_stands(&longer)) {
            *p = longer;
            return;
        }
    }
    if (outer.stride[Y])
        p->batch[p->batches++] = outer;
    else
        p->sum[p->sums++] = outer;
}

tern__product tern__product_of(const tern__call *call)
{
    const tern__view *a = call->in[A], *b = call->in[B], *y = call->out[0];
    int row = y->ndim - 2, column = y->ndim - 1;
    tern__product p = {.view = {a, b, y}, .bias = call->in[2]};
    p.axis[M] = (axis){y->shape[row], {a->stride[row], 0, y->stride[row]}};
    p.axis[K] = (axis){a->shape[column], {a->stride[column], b->stride[row], 0}};
    p.axis[N] = (axis){y->shape[column], {0, b->stride[column], y->stride[column]}};
    for (int d = row - 1; d >= 0; d--)
        if (y->shape[d] > 1) product_push(&p, product_axis_of(call, d));
    return p;
}

int64_t tern__product_count(const tern__product *p)
{
    int64_t count = 1;
    for (int i = 0; i < p->batches; i++) count *= p->batch[i].size;
    return count;
}
