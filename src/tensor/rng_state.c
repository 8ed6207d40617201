/* rng_state.c - the state dict of a random number generator: a tensor of bytes, as PyTorch has it. */
#include "tensor/tensor.h"

#include <tern/state_dict.h>

tern_object *tern_rng_state_dict(const tern_rng *rng, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!rng) {
        tern__error_set(err, __func__, TERN_E_INVALID, "the rng is NULL");
        return NULL;
    }
    int64_t bytes = TERN_RNG_STATE_BYTES;
    tern_tensor *tensor = tern__tensor_new(TERN_U8, 1, &bytes, err);
    if (!tensor) return NULL;
    tern_rng_state_get(rng, tensor->view.data);
    tern_object *object = tern_object_tensor(tensor, err);
    tern_tensor_free(tensor);
    return object;
}

int tern_rng_state_dict_load(tern_rng *rng, const tern_object *state, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    const tern_tensor *tensor = tern_object_to_tensor(state);
    if (!rng) return tern__error_set(err, __func__, TERN_E_INVALID, "the rng is NULL");
    if (!tensor || tensor->view.dtype != TERN_U8)
        return tern__error_set(err, __func__, TERN_E_DTYPE,
                               "expected a u8 tensor of %d bytes, got a %s of %s", TERN_RNG_STATE_BYTES,
                               tern_object_kind_name(tern_object_kind_get(state)),
                               tensor ? tern_dtype_name(tensor->view.dtype) : "no dtype");
    char bytes[TERN_RNG_STATE_BYTES];
    int status = tern_tensor_read(tensor, bytes, sizeof(bytes), err);
    return status ? status : tern_rng_state_set(rng, bytes, err);
}
