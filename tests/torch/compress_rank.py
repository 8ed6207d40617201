"""One rank of test_compress.py: tern_ddp with reduce_dtype f16 compared with torch's DistributedDataParallel with
fp16_compress_hook over gloo: the gradients of 5 steps, and the bytes sent.

    tern run -n 2 /usr/bin/python3 compress_rank.py MEETING_FILE
"""
import ctypes
import os
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from nets import Net, library
from ops import F16

STEPS, BATCH, SGD = 5, 16, dict(lr=0.05, momentum=0.9)


def total_bytes(lib, net):
    return sum(lib.tern_ddp_bucket_bytes(net.ddp, b) for b in range(lib.tern_ddp_bucket_count(net.ddp)))


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)
    lib = library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    opts = lib.tern_ddp_defaults()
    opts.reduce_dtype = F16
    net = Net.mlp(lib, [784, 64, 10], seed=5, group=group, ddp_opts=opts, **SGD)
    torch.manual_seed(5)
    module = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    ddp = DistributedDataParallel(module)
    ddp.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)
    assert total_bytes(lib, net) == 2 * sum(p.numel() for p in module.parameters())

    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        x, y = torch.randn((BATCH, 784), generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)
        net.backward(x.numpy(), y.numpy())
        sizes = [grad.abs() for grad in torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))]
        for size in sizes:
            dist.all_reduce(size, dist.ReduceOp.MAX)  # relative to the ranks' own gradients, which may cancel
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        for ours, parameter, size in zip(net.grads().values(), module.parameters(), sizes):
            want = parameter.grad.numpy()
            assert numpy.array_equal(ours, ours.astype("float16").astype("float32"))  # the mean, which is rounded
            # A gradient between two f16 numbers may be rounded to either: an error of one unit in the last place, or of the smallest number.
            worst = numpy.abs(ours - want) / numpy.maximum(2.0**-10 * size.numpy(), 2.0**-23)
            assert worst.max() <= 1.01, f"rank {rank} step {step}: {worst.max()} units"
        optimizer.step()
        net.update()
    net.close()
    lib.tern_group_close(group)
    dist.destroy_process_group()  # at exit torch could end gloo's thread first, and abort
    print("equal", flush=True)


if __name__ == "__main__":
    main()
