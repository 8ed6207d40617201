"""Compiled programs on a group of tern: DDP's steps and functional collectives in one graph, bit-equal to gloo on two ranks."""
import os
import tempfile
import unittest

import extension

extension.enter()
import skips

if extension.TORCH != "newest":
    skips.end("this PyTorch compiles less, or nothing")
CACHE = tempfile.TemporaryDirectory()
# In the ranks' own processes, which then need no others; the second one to compile something finds it in the cache.
os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_CACHE_DIR=CACHE.name)
import ranks
import torch
import torch._dynamo
import torch._inductor.compile_fx  # before the fork
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch._inductor.config.cpp.simdlen = 1  # no tries of what the CPU has, each of which is compiled
torch._inductor.config.cpp_cache_precompile_headers = False
STEPS, LIMIT_S = 20, 200


def perceptron():
    return nn.Sequential(nn.Linear(16, 400), nn.Tanh(), nn.Linear(400, 800), nn.ReLU(), nn.Linear(800, 400), nn.Tanh(), nn.Linear(400, 3))


def transformer():
    layer = nn.TransformerEncoderLayer(128, 2, 900, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(16, 128), layer, nn.Linear(128, 3))


def trained(rank, group, make):
    """The losses, and the parameters after the training."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    parts = []

    def compile_part(graph, inputs):
        parts.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    module = torch.compile(make(), backend=compile_part)
    model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=1)  # the compiler takes no smaller buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    values, losses = torch.Generator().manual_seed(40 + rank), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 5, 16, generator=values)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert len(parts) > 1, "the compiler has not split the graph at the buckets"
    return [torch.stack(losses), *(parameter.detach().clone() for parameter in model.parameters())]


def collectives(rank, group):
    """The results of collectives between other operations."""

    def calls(x):
        total = functional.all_reduce(x.sin() * 2, "sum", group)
        most = functional.all_reduce(total - x, "max", group)
        every = functional.all_gather_tensor(total[:3].cos() + x[1:4], 0, group)
        mine = functional.reduce_scatter_tensor(every + 1, "sum", 0, group)
        first = functional.broadcast(mine * 3, 0, group)
        swapped = functional.all_to_all_single(every - 1, None, None, group)
        sums = functional.all_reduce_coalesced([total.exp(), mine.exp()], "sum", group)
        gathered = functional.all_gather_into_tensor_coalesced([first + 1, swapped.neg()], group)
        parts = functional.reduce_scatter_tensor_coalesced([one + 1 for one in gathered], "sum", [0, 0], group)
        return [total, most + 1, every, mine, first, swapped, *sums, *gathered, *(part * 2 for part in parts)]

    def fused(x):
        total = functional.all_reduce(x.sin() * 2, "sum", group)
        every = functional.all_gather_tensor(total[:3] + 1, 0, group)
        return [total, functional.reduce_scatter_tensor(every * 2, "sum", 0, group)]

    def in_place(x):
        total, every, mine = x.cos(), x.new_empty(2 * len(x), *x.shape[1:]), torch.empty_like(x[:2])
        dist.all_reduce(total, group=group)
        dist.all_gather_into_tensor(every, total + 1, group=group)
        dist.reduce_scatter_tensor(mine, total[:4] * 2, group=group)
        return [total, every, mine + 1]

    torch._dynamo.reset()
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(40 + rank))
    results = []
    for function, backend in ((calls, "aot_eager"), (in_place, "aot_eager"), (fused, "inductor")):  # whose kernels take seconds
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        results += [result.clone() for value in (x, x + 1) for result in compiled(value)]
    return results


def both(rank, function, *args):
    gloo = dist.new_group(backend="gloo")
    results = [function(rank, group, *args) for group in (gloo, dist.group.WORLD)]
    for i, (one, other) in enumerate(zip(*results, strict=True)):
        assert torch.equal(one, other), f"{function.__name__} {i}: {(one - other).abs().max()}"
    return True


class Compile(unittest.TestCase):
    def check(self, *args):
        self.assertEqual(ranks.run(2, both, *args, limit_s=LIMIT_S), [True, True])

    def test_ddp(self):
        for make in (perceptron, transformer):
            with self.subTest(make=make.__name__):
                self.check(trained, make)

    def test_functional_collectives(self):
        self.check(collectives)


if __name__ == "__main__":
    skips.main()
