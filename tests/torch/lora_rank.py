"""One rank of test_lora.py: models with adapters under tern_ddp, beside one process of PyTorch that has all batches; AdamW, and AdamW that is
sharded. A bucket has adapters or frozen parameters, and nothing is ever written to the latter's gradients.

    tern run -n N /usr/bin/python3 lora_rank.py
"""
import ctypes
import os

import numpy
import torch

from language_models import TWINS, next_token_loss
from language_model_rank import FIELDS
from loras import LoraNet, adapt, lora_library

STEPS, BATCH, LENGTH = 6, 3, 12
CASES = [("gpt2", ["c_attn"], False), ("llama", ["q_proj", "v_proj"], True), ("gpt2", ["c_attn", "c_proj"], True)]


def train(lib, group, kind, targets, shards, rank, world):
    opts = lib.tern_ddp_defaults()
    opts.first_bucket_bytes = opts.bucket_bytes = 1024
    net = LoraNet.new(lib, kind, FIELDS[kind], targets, dict(r=24), seed=rank, group=group, ddp_opts=opts, adam=dict(lr=1e-2))
    if shards:
        lib.check("tern_optim_shard", net.optim, group)
    trained = sum(4 * value.size for value in net.adapters().values())
    buckets = [lib.tern_ddp_bucket_bytes(net.ddp, i) for i in range(lib.tern_ddp_bucket_count(net.ddp))]
    assert len(buckets) >= 3 and sum(buckets[1:]) == trained, (buckets, trained)
    module = TWINS[kind](**FIELDS[kind])
    adapt(module, targets, r=24)
    module.load_state_dict({name: torch.tensor(value) for name, value in net.state().items()})
    before = net.state()
    optim = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 1e-2)
    rng = numpy.random.default_rng(5)
    for step in range(STEPS):
        tokens = rng.integers(0, 41, (world * BATCH, LENGTH))
        net.step(tokens[rank * BATCH:(rank + 1) * BATCH])
        loss = next_token_loss(module(torch.tensor(tokens)), torch.tensor(tokens))
        optim.zero_grad()
        loss.backward()
        optim.step()
        assert abs(net.loss_mean() - loss.item()) <= 1e-4, f"{kind} rank {rank} step {step}: {net.loss_mean()} {loss.item()}"
    state = net.state()
    for name, value in module.state_dict().items():
        far = numpy.abs(state[name] - value.numpy()).max()
        assert far <= 1e-4 if ".lora_" in name else (state[name] == before[name]).all(), (name, far)
    share = lib.tern_optim_state_bytes(net.optim) / (2 * trained)
    assert share < (0.75 if shards else 1.3), share
    bits = numpy.concatenate([value.ravel() for value in state.values()]).view("uint32").astype("int64")
    most, least = bits.copy(), bits.copy()
    for array, op in ((most, 4), (least, 3)):
        lib.check("tern_all_reduce", group, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.size), 2, op)
    assert (most == least).all(), f"{kind}: the ranks' weights differ"
    net.close()


def main():
    torch.set_num_threads(1)
    lib = lora_library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    for case in CASES:
        train(lib, group, *case, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    print("equal", flush=True)
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
