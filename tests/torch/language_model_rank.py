"""One rank of test_language_model.py: GPT-2 and Llama under tern_ddp, on batches of unequal numbers of labels, beside one process of PyTorch
that has all batches.

    tern run -n N /usr/bin/python3 language_model_rank.py
"""
import ctypes
import os

import numpy
import torch

from language_models import TWINS, LanguageNet, language_library
from nets import DdpOpts

FIELDS = {
    "gpt2": dict(vocab_size=41, n_positions=12, n_embd=24, n_layer=2, n_head=3),
    "llama": dict(vocab_size=41, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  max_position_embeddings=12),
}
NORMALISER_LOSS = 1
STEPS, BATCH, LENGTH = 6, 3, 12


def train(lib, group, kind, rank, world):
    opts = lib.tern_ddp_defaults()
    opts.normaliser = NORMALISER_LOSS
    opts.first_bucket_bytes = opts.bucket_bytes = 4096
    net = LanguageNet.new(lib, kind, FIELDS[kind], seed=rank, group=group, ddp_opts=opts, adam=dict(lr=1e-2))
    module = TWINS[kind](**FIELDS[kind])
    module.load_state_dict({name: torch.tensor(value) for name, value in net.state().items()})
    optim = torch.optim.AdamW(module.parameters(), 1e-2)
    rng = numpy.random.default_rng(5)
    for step in range(STEPS):
        tokens = rng.integers(0, 41, (world * BATCH, LENGTH))
        labels = tokens.copy()
        labels[rng.random(labels.shape) < 0.3] = -100
        labels[-BATCH:, 4:] = -100  # the last rank has fewer
        mine = slice(rank * BATCH, (rank + 1) * BATCH)
        net.step(tokens[mine], labels[mine])
        logits = module(torch.tensor(tokens))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), torch.tensor(labels)[:, 1:].flatten())
        optim.zero_grad()
        loss.backward()
        optim.step()
        assert abs(net.loss_mean() - loss.item()) <= 1e-4, f"{kind} rank {rank} step {step}: {net.loss_mean()} {loss.item()}"
    state = numpy.concatenate([value.ravel() for value in net.state().values()])
    bits = state.view("uint32").astype("int64")
    most, least = bits.copy(), bits.copy()
    for array, op in ((most, 4), (least, 3)):
        lib.check("tern_all_reduce", group, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.size), 2, op)
    assert (most == least).all(), f"{kind}: the ranks' weights differ"
    net.close()


def main():
    torch.set_num_threads(1)
    lib = language_library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    for kind in FIELDS:
        train(lib, group, kind, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    print("equal", flush=True)
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
