"""One rank of test_ddp_join.py: ranks with unequal numbers of batches under tern_ddp_join, compared with torch's
`with ddp.join()` over gloo: the same net with a batch norm whose statistics each rank keeps, and the last rank's
model at the end.

    tern run -n N /usr/bin/python3 ddp_join_rank.py DIVIDE_BY_INITIAL BUCKET_BYTES BATCHES_OF_RANK_0,.. MEETING_FILE
"""
import ctypes
import os
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from nets import Net, library

FEATURES, HIDDEN, CLASSES, BATCH, TOLERANCE = 6, 16, 5, 8, 1e-5
SGD = dict(lr=0.1, momentum=0.9)


class JoinOpts(ctypes.Structure):
    """tern_join_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("throw_on_early_termination", ctypes.c_bool),
        ("after_backward", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    ]


def make(lib):
    def sequential(rng):
        size = ctypes.c_int64
        net = ctypes.c_void_p(lib.check("tern_sequential_new"))
        for child in (
            lib.check("tern_linear_new", size(FEATURES), size(HIDDEN), None, rng),
            lib.check("tern_batch_norm1d_new", size(HIDDEN), None),
            lib.check("tern_relu_new"),
            lib.check("tern_linear_new", size(HIDDEN), size(CLASSES), None, rng),
        ):
            lib.check("tern_sequential_add", net, ctypes.c_void_p(child))
        return net.value

    return sequential


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn((BATCH, FEATURES), generator=generator), torch.randint(0, CLASSES, (BATCH,), generator=generator)


def main():
    initial, bucket_bytes, counts, meeting = bool(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    counts = [int(n) for n in counts.split(",")]
    batches, last = counts[rank], max(range(world), key=lambda rank: (counts[rank], rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    lib = library()
    lib.returns(JoinOpts, "tern_join_defaults")
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    opts = lib.tern_ddp_defaults()
    opts.broadcast_buffers = False
    opts.divide_by_initial_world_size = initial
    if bucket_bytes:
        opts.first_bucket_bytes = opts.bucket_bytes = bucket_bytes
    net = Net(lib, make(lib), seed=5, group=group, ddp_opts=opts, **SGD)
    torch.manual_seed(5)
    module = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), torch.nn.BatchNorm1d(HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    )
    ddp = DistributedDataParallel(module, broadcast_buffers=False)
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)

    with ddp.join(divide_by_initial_world_size=initial):
        for step in range(batches):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
    for buffer in module.buffers():  # PyTorch 1.13 has done this itself, and 2.6 does not
        dist.broadcast(buffer, last)
    for step in range(batches):
        x, y = batch(rank, step)
        net.step(x.numpy(), y.numpy())
    join = lib.tern_join_defaults()
    lib.check("tern_ddp_join", net.ddp, ctypes.byref(join))

    for ours, (name, want) in zip(net.state().items(), module.state_dict().items()):
        worst = float(numpy.abs(ours[1] - want.numpy()).max())
        assert worst <= TOLERANCE, f"rank {rank}: {ours[0]} ({name}): {worst}"
    print("equal", flush=True)
    net.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
