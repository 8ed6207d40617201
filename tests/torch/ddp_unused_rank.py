"""One rank of test_ddp_unused.py: every rank skips other layers in every step, under tern_ddp (without an option) and
under torch's DistributedDataParallel with find_unused_parameters=True.

    tern run -n N /usr/bin/python3 ddp_unused_rank.py BUCKET_BYTES MEETING_FILE
"""
import ctypes
import os
import random
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from nets import Net, library

LAYERS, WIDTH, BATCH, STEPS, TOLERANCE = 6, 8, 4, 15, 1e-5
SGD = dict(lr=0.1, momentum=0.9, weight_decay=0.01)


def used_by(rank, step):
    """Always the last layer; each other layer in half of the steps. In even steps no rank uses layer 1."""
    dice = random.Random(97 * rank + step)
    chosen = [dice.random() < 0.5 for _ in range(LAYERS - 1)]
    chosen[1] = chosen[1] and step % 2 == 1
    return [layer for layer in range(LAYERS - 1) if chosen[layer]] + [LAYERS - 1]


class Conditional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])

    def forward(self, x, layers):
        for layer in layers:
            x = torch.relu(self.layers[layer](x))
        return x


class Ours(Net):
    def __init__(self, lib, **rest):
        self.layers = []
        super().__init__(lib, self.make, **rest)

    def make(self, rng):
        size = ctypes.c_int64(WIDTH)
        net = ctypes.c_void_p(self.lib.check("tern_sequential_new"))
        for _ in range(LAYERS):
            self.layers.append(ctypes.c_void_p(self.lib.check("tern_linear_new", size, size, None, rng)))
            self.lib.check("tern_sequential_add", net, self.layers[-1])
        return net.value

    def step(self, x, y, layers):
        lib, out = self.lib, self.tensor(x)
        for layer in layers:
            out = ctypes.c_void_p(lib.tern_forward(self.layers[layer], self.scope, out))
            out = ctypes.c_void_p(lib.tern_relu(self.scope, out))
        loss = ctypes.c_void_p(lib.tern_cross_entropy(self.scope, out, self.tensor(y), None))
        lib.tern_backward(self.scope, loss)
        self.raise_error()
        grads = self.grads()
        self.update()
        lib.check("tern_scope_end", self.scope)
        return grads


def main():
    bucket_bytes, meeting = int(sys.argv[1]), sys.argv[2]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    lib = library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    opts = lib.tern_ddp_defaults()
    if bucket_bytes:
        opts.first_bucket_bytes = opts.bucket_bytes = bucket_bytes
    ours = Ours(lib, seed=5, group=group, ddp_opts=opts, **SGD)
    torch.manual_seed(5)
    module = Conditional()
    ddp = DistributedDataParallel(module, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)

    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        x, y = torch.randn((BATCH, WIDTH), generator=generator), torch.randint(0, WIDTH, (BATCH,), generator=generator)
        layers = used_by(rank, step)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(ddp(x, layers), y).backward()
        grads = ours.step(x.numpy(), y.numpy(), layers)
        for (name, got), (_, want) in zip(grads.items(), module.named_parameters()):
            assert (got is None) == (want.grad is None), f"rank {rank} step {step}: {name}: who has a gradient?"
            worst = 0 if got is None else float(numpy.abs(got - want.grad.numpy()).max())
            assert worst <= TOLERANCE, f"rank {rank} step {step}: gradient of {name}: {worst}"
        optimizer.step()

    for (name, got), want in zip(ours.state().items(), module.state_dict().values()):
        worst = float(numpy.abs(got - want.numpy()).max())
        assert worst <= TOLERANCE, f"rank {rank}: {name}: {worst}"
    print("equal", flush=True)
    ours.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
