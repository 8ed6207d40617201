"""One rank of test_ddp.py: 20 steps of tern_ddp beside torch's DistributedDataParallel over gloo, same samples.

    tern run -n N /usr/bin/python3 ddp_rank.py MODEL BUCKET_BYTES MEETING_FILE [bf16]

With bf16 both compute in autocast regions; gradients and what is reduced are f32. Both round at the same places, but a sum in
another order may fall on the other side of a step, and 20 steps amplify that. So torch also trains in f32: how far its bf16 is
from that is what rounding does, and tern is to be nearer to torch's bf16.
"""
import copy
import ctypes
import importlib
import os
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from nets import Net, library
from ops import BF16, F32
from tern import pointer

STEPS, BATCH = 20, 16


def sampler_indices(lib, n, ranks, rank, epoch):
    """tern's DistributedSampler."""
    sampler = ctypes.c_void_p(lib.check("tern_distributed_sampler_new", ctypes.c_int64(n), ranks, rank, None))
    lib.tern_sampler_epoch_set(sampler, ctypes.c_int64(epoch))
    out = numpy.empty(lib.tern_sampler_length(sampler), numpy.int64)
    lib.check("tern_sampler_indices", sampler, pointer(out))
    lib.tern_sampler_free(sampler)
    return out


def make(lib, model, group, ddp_opts, **theirs):
    """Makes the same net in both libraries, under their ddps; `theirs` are options for torch's."""
    sgd = dict(lr=0.05 if model == "mlp" else 0.0005, momentum=0.9)
    torch.manual_seed(5)
    if model == "mlp":
        module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        net = Net.mlp(lib, [784, 64, 10], seed=5, group=group, ddp_opts=ddp_opts, **sgd)
    else:
        sys.path.append(os.path.join(os.environ["TERN_SOURCE"], "bench", "peers"))
        module = importlib.import_module("fashion").Net()
        fields = dict(in_channels=1, blocks=[1, 1, 1], channels=[16, 32, 64], small_stem=True, kaiming=False, classes=10)
        net = Net.resnet(lib, fields, seed=5, group=group, ddp_opts=ddp_opts, **sgd)
    ddp = DistributedDataParallel(module, **theirs)
    return net, ddp, module, torch.optim.SGD(ddp.parameters(), **sgd)


class Full:
    """torch's net, trained in f32."""

    def __init__(self, module, optimizer):
        self.module = copy.deepcopy(module)
        self.ddp = DistributedDataParallel(self.module)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=optimizer.defaults["lr"], momentum=optimizer.defaults["momentum"])

    def step(self, x, y):
        self.optimizer.zero_grad()
        F.cross_entropy(self.ddp(x), y).backward()
        self.optimizer.step()


def compare(ours, theirs, tolerance):
    for got, (name, want) in zip(ours.values(), theirs.items()):
        want = want.numpy()
        worst = float(numpy.abs(got - want).max())
        assert worst <= tolerance * max(1.0, float(numpy.abs(want).max())), f"{name}: {worst}"


def compare_half(ours, theirs, full):
    flat = lambda arrays: numpy.concatenate([numpy.asarray(a, "d").reshape(-1) for a in arrays])
    ours, theirs, full = (flat(state.values()) for state in (ours, theirs, full))
    apart, rounding = numpy.linalg.norm(ours - theirs), numpy.linalg.norm(theirs - full)
    assert apart <= 0.5 * rounding, f"weights: {apart / rounding:.3f} of what rounding does"
    assert numpy.linalg.norm(ours - full) > 0.5 * rounding, "tern has not rounded"


def main():
    model, bucket_bytes, meeting, half = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:] == ["bf16"]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    lib = library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    opts = lib.tern_ddp_defaults()
    if bucket_bytes:
        opts.first_bucket_bytes = opts.bucket_bytes = bucket_bytes
    net, ddp, module, optimizer = make(lib, model, group, opts)
    net.region, tolerance = (BF16, 1e-3) if half else (F32, 1e-4)
    full = Full(module, optimizer) if half else None

    samples = STEPS * BATCH * world - 3  # the last batches are padded
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn((samples, 1, 28, 28), generator=generator), torch.randint(0, 10, (samples,), generator=generator)
    theirs = DistributedSampler(range(samples), world, rank)
    theirs.set_epoch(3)
    order = torch.tensor(list(theirs))
    assert sampler_indices(lib, samples, world, rank, 3).tolist() == order.tolist()

    for step in range(STEPS):
        index = order[step * BATCH:(step + 1) * BATCH]
        batch = x[index].numpy()
        ours = net.step(batch.reshape(len(index), -1) if model == "mlp" else batch, y[index].numpy())
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(ddp(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if half:
            full.step(x[index], y[index])
        assert abs(ours - loss.item()) <= tolerance * loss.item(), f"rank {rank} step {step}: {ours} {loss.item()}"
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        assert abs(net.loss_mean() - mean.item() / world) <= tolerance * mean.item(), f"rank {rank} step {step}: mean"

    if rank == 0:
        if half:
            compare_half(net.state(), module.state_dict(), full.module.state_dict())
        else:
            compare(net.state(), module.state_dict(), tolerance)
        print("equal", flush=True)
    net.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
