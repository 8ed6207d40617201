"""One rank of test_share.py: a model whose first and last layer share a weight, under tern_ddp and under torch's
DistributedDataParallel over gloo.

    tern run -n N /usr/bin/python3 share_rank.py MEETING_FILE
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
from tied import WORDS, language_model, torch_language_model

STEPS, SENTENCE, TOLERANCE = 12, 7, 1e-4


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)
    lib = library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    sgd = dict(lr=0.1, momentum=0.9)
    net, module = Net(lib, language_model(lib), seed=4 + rank, group=group, **sgd), torch_language_model(4 + rank)
    ddp = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(ddp.parameters(), **sgd)
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        words = torch.randint(0, WORDS, (SENTENCE + 1,), generator=generator)
        ours = net.step(words[:-1].numpy(), words[1:].numpy())
        loss = F.cross_entropy(ddp(words[:-1]), words[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(ours - loss.item()) <= TOLERANCE * loss.item(), f"rank {rank} step {step}: {ours} {loss.item()}"
    for name, want in module.state_dict().items():
        worst = numpy.abs(net.state()[name] - want.numpy()).max()
        assert worst <= TOLERANCE * max(1, float(want.abs().max())), f"rank {rank}: {name}: {worst}"
    print("equal", flush=True)
    net.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
