/* master.c - the f32 masters of 16-bit parameters: the optimizer updates the master, and the parameter is the
 * rounded master (Micikevicius et al. 2018; apex's master_weights).
 *
 * A master is made when it is first needed. Code that writes to a parameter (a ddp that copies rank 0's, a
 * checkpoint) need not know about masters, because the parameter's version tells that it was written to. Then
 * each element that is no longer its rounded master replaces the master; the others keep the bits that
 * rounding drops. So a model's state and its optimizer's may be loaded in either order. */
#include "base/half.h"
#include "optim/optim.h"
#include "tensor/host.h"

static void master_follow(float *master, const uint16_t *p, int64_t count, bool is_bf16)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t rounded = is_bf16 ? tern__bf16_from_f32(master[i]) : tern__f16_from_f32(master[i]);
        if (rounded != p[i]) master[i] = is_bf16 ? tern__bf16_to_f32(p[i]) : tern__f16_to_f32(p[i]);
    }
}

/* Compares on the host, as parameters are written to rarely. */
static int follow_piece(const tern__range *range, size_t begin, int64_t count, char *data, tern_error *err)
{
    tern__host p, master;
    tern__view narrow = tern__view_make(range->dtype, TERN__PLAIN, 1, &count),
               wide = tern__view_make(TERN_F32, TERN__PLAIN, 1, &count);
    narrow.data = range->params + begin;
    wide.data = data;
    int status = tern__host_open(&p, &narrow, err);
    if (status) return status;
    status = tern__host_open(&master, &wide, err);
    if (!status) {
        master_follow(master.view.data, p.view.data, count, range->dtype == TERN_BF16);
        status = tern__host_close(&master, true, err);
    }
    tern__host_close(&p, false, NULL);
    return status;
}

bool tern__masters_follow(tern_optim *optim, tern_scope *scope, int first, int last)
{
    tern_error err = {0};
    const tern__seal *seal = optim->seal;
    int r = seal->range_of[first];
    const tern__range *range = &seal->ranges[r];
    for (int k = first; k <= last; k++) {
        const tern__leaf *leaf = seal->leaves[k];
        if (seal->range_of[k] != r || optim->versions[k] == leaf->packs.version) continue;
        size_t end = seal->offset[k] + tern__view_bytes(&leaf->parameter->view);
        tern__slice part = tern__slice_cut((tern__slice){seal->offset[k], end}, optim->own[r]);
        if (!tern__slice_bytes(part)) continue;
        char *master = optim->state[TERN__OPTIM_MASTER][r] +
                       tern__optim_scaled(optim, r, part.begin - optim->own[r].begin);
        int64_t count = (int64_t)(tern__slice_bytes(part) / sizeof(uint16_t));
        if (follow_piece(range, part.begin, count, master, &err)) {
            tern__scope_fail_with(scope, &err);
            return false;
        }
    }
    return true;
}

void tern__masters_forget(tern_optim *optim)
{
    for (int k = 0; k < optim->seal->leaf_count; k++) optim->versions[k] = UINT64_MAX;
}
