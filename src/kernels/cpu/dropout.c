/* dropout.c - dropout of elements and of whole channels: threads take chunks, whose random words depend
 * only on their position (dropout_draws.c). */
#include "kernels/dropout.h"
#include "kernels/cpu/dropout_draws.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/space.h"

#define CHUNK TERN__DROPOUT_CHUNK

int tern__cpu_dropout(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    bool plain = tern__view_is_contiguous(x) && tern__view_is_contiguous(y);
    if (!plain || x->dtype != y->dtype) return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(x), chunks = (count + CHUNK - 1) / CHUNK;
    int threads = tern__loop_threads(call, count);
    const tern__dropout_fns *fns = TERN__BY_WIDTH(tern__dropout);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        fns->drop(call, chunks * t / threads * CHUNK, TERN__MIN(count, chunks * (t + 1) / threads * CHUNK));
    return TERN_OK;
}

int tern__cpu_dropout_channels(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!tern__view_is_dense(x) || !tern__view_is_dense(y) || x->layout != y->layout ||
        x->dtype != y->dtype || (x->dtype == TERN_F64 && x->layout != TERN__PLAIN))
        return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(x), chunks = (x->shape[0] * x->shape[1] + CHUNK - 1) / CHUNK;
    float *f = tern__loop_scratch(call, (size_t)TERN__MAX(chunks, 1) * CHUNK * sizeof(*f));
    const tern__dropout_fns *fns = TERN__BY_WIDTH(tern__dropout);
    if (!f) return TERN_E_MEMORY;
    fns->draw(call->attr, 0, chunks, f);
    tern__dropout_planes p = {
        .call = call, .factor = f, .width = x->layout == TERN__BLOCKED16 ? TERN__BLOCK : 1};
    p.size = tern__space_of(x).count * p.width;
    int threads = tern__loop_threads(call, count);
    int64_t rows = count / TERN__BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        fns->scale(&p, rows * t / threads * TERN__BLOCK,
                   t + 1 < threads ? rows * (t + 1) / threads * TERN__BLOCK : count);
    return TERN_OK;
}
