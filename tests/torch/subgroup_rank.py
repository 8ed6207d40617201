"""One rank of test_subgroup.py: tern's groups compared with torch's over gloo for the same ranks, with a ddp on each.

    tern run -n N /usr/bin/python3 subgroup_rank.py MEETING_FILE
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
from tern import pointer

F32, SUM, STEPS, BATCH, TOLERANCE = 0, 0, 5, 6, 1e-5
SGD = dict(lr=0.1, momentum=0.9)


def handle(value):
    """NULL is not an error here: this rank is not in the group."""
    return ctypes.c_void_p(value) if value else None


def compare_members(lib, group, theirs, world):
    """Compares rank, size and names; one reduction and one gather."""
    rank, size = lib.tern_group_rank(group), lib.tern_group_size(group)
    assert (rank, size) == (dist.get_rank(theirs), dist.get_world_size(theirs))
    names = [lib.tern_group_world_rank(group, i) for i in range(size)]
    assert names == [dist.distributed_c10d.get_global_rank(theirs, i) for i in range(size)], names
    x = torch.arange(100, dtype=torch.float32) * (world + 1)
    ours, out = x.numpy().copy(), numpy.zeros((size, 100), numpy.float32)
    lib.check("tern_all_gather", group, pointer(ours), pointer(out), ctypes.c_size_t(100), F32)
    lib.check("tern_all_reduce", group, pointer(ours), ctypes.c_size_t(100), F32, SUM)
    want = [torch.empty(100) for _ in range(size)]
    dist.all_gather(want, x, group=theirs)
    assert (out == torch.stack(want).numpy()).all()
    dist.all_reduce(x, group=theirs)
    assert (ours == x.numpy()).all()


def compare_ddp(lib, group, theirs, seed):
    """A few steps, with each rank's own samples."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
    net = Net.mlp(lib, [20, 16, 5], seed=seed, group=group, **SGD)
    ddp = DistributedDataParallel(module, process_group=theirs)
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        x, y = torch.randn((BATCH, 20), generator=generator), torch.randint(0, 5, (BATCH,), generator=generator)
        net.step(x.numpy(), y.numpy())
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    for ours, (name, want) in zip(net.state().values(), module.state_dict().items()):
        worst = float(numpy.abs(ours - want.numpy()).max())
        assert worst <= TOLERANCE, f"{name}: {worst}"
    net.close()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)
    lib = library()
    whole = handle(lib.check("tern_group_open", None))
    order = numpy.random.default_rng(world)
    lists = [[int(r) for r in order.permutation(world)[: 1 + i % world]] for i in range(2 * world)]
    for seed, ranks in enumerate(lists):
        theirs = dist.new_group(ranks)
        array = (ctypes.c_int * len(ranks))(*ranks)
        ours = handle(lib.check("tern_group_new", whole, array, len(ranks), None))
        assert (ours is None) == (theirs == dist.GroupMember.NON_GROUP_MEMBER) == (rank not in ranks), ranks
        if ours:
            compare_members(lib, ours, theirs, world)
            compare_ddp(lib, ours, theirs, seed)
            lib.tern_group_close(ours)
    lib.tern_group_close(whole)
    print("equal", flush=True)


if __name__ == "__main__":
    main()
