/* state.c - what an optimizer remembers of its parameters: made by the first step, when it is known which
 * groups there are and which slice is this rank's. */
#include "optim/optim.h"

static int states_of(const tern_optim *optim)
{
    int states = 0;
    for (int g = 0; g < optim->group_count; g++) states = TERN__MAX(states, optim->groups[g].states);
    return states;
}

static int alloc_states(tern_optim *optim, const char *func, tern_error *err)
{
    int states = states_of(optim);
    for (int s = 0; s < states; s++)
        for (int r = 0; r < optim->seal->range_count; r++) {
            size_t bytes = tern__slice_bytes(optim->own[r]);
            if (bytes && !(optim->state[s][r] = tern__alloc(bytes, func, err))) return TERN_E_MEMORY;
        }
    return TERN_OK;
}

int tern__optim_state_open(tern_optim *optim, const char *func, tern_error *err)
{
    if (optim->begun) return TERN_OK;
    int status = alloc_states(optim, func, err);
    if (status) tern__optim_state_drop(optim);
    optim->begun = !status;
    return status;
}

void tern__optim_state_drop(tern_optim *optim)
{
    for (int s = 0; s < TERN__OPTIM_STATES; s++)
        for (int r = 0; r < TERN_DTYPE_COUNT; r++) {
            tern__free(optim->state[s][r]);
            optim->state[s][r] = NULL;
        }
}

size_t tern_optim_state_bytes(const tern_optim *optim)
{
    size_t bytes = 0;
    for (int s = 0; optim && s < TERN__OPTIM_STATES; s++)
        for (int r = 0; r < optim->seal->range_count; r++)
            bytes += optim->state[s][r] ? tern__slice_bytes(optim->own[r]) : 0;
    return bytes;
}
