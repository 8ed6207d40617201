"""A small language model whose decoder shares the encoder's weight, in tern and in torch."""
import ctypes

import torch

WORDS, SIZE = 23, 8


def language_model(lib):
    """encoder -> inner -> tanh -> decoder, with one weight for encoder and decoder."""

    def make(rng):
        size, words = ctypes.c_int64(SIZE), ctypes.c_int64(WORDS)
        model = ctypes.c_void_p(lib.check("tern_sequential_new"))
        for part in (
            lib.check("tern_embedding_new", words, size, None, rng),
            lib.check("tern_linear_new", size, size, None, rng),
            lib.check("tern_tanh_new"),
            lib.check("tern_linear_new", size, words, None, rng),
        ):
            last = ctypes.c_void_p(lib.check("tern_sequential_add", model, ctypes.c_void_p(part)))
        encoder = ctypes.c_void_p(lib.tern_state_find(model, b"0.weight"))
        lib.check("tern_parameter_share", last, b"weight", encoder)
        return model.value

    return make


def torch_language_model(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(WORDS, SIZE), torch.nn.Linear(SIZE, SIZE), torch.nn.Tanh(), torch.nn.Linear(SIZE, WORDS)
    )
    model[3].weight = model[0].weight
    return model
