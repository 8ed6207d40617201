"""DistributedDataParallel on a group of tern: bit-equal to gloo on two ranks, over 20 steps."""
import contextlib
import unittest

import extension

extension.enter()
import ranks
import skips
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

with contextlib.suppress(ImportError):  # of torch 1.13; it does not work with Python 3.11
    from torch.nn.parallel._replicated_tensor_ddp_utils import _set_ddp_with_replicated_tensor

    _set_ddp_with_replicated_tensor(False)
with contextlib.suppress(ImportError):  # of torch 1.13; DDP imports it, which takes seconds: once here, not in every rank
    import torch._dynamo

STEPS = 20


class Branches(nn.Module):
    """A step uses one of two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.one, self.other = nn.Linear(13, 17), nn.Linear(17, 3), nn.Linear(17, 3)
        self.step = 0

    def forward(self, x):
        self.step += 1
        return (self.one if self.step % 3 else self.other)(self.first(x).relu())


def perceptron():
    return nn.Sequential(nn.Linear(13, 101), nn.ReLU(), nn.Linear(101, 55), nn.Tanh(), nn.Linear(55, 3))


def conv_net():
    return nn.Sequential(nn.Unflatten(1, (1, 13)), nn.Conv1d(1, 5, 3), nn.BatchNorm1d(5), nn.ReLU(), nn.Flatten(), nn.Linear(55, 3))


def trained(rank, group, make, options, hook=None, skips_sync=False, is_uneven=False):
    """The parameters and buffers after the training."""
    torch.manual_seed(3)
    options = {"bucket_cap_mb": 0.01, **options}
    model = DistributedDataParallel(make(), process_group=group, **options)
    if hook == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    if hook == "power":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    values = torch.Generator().manual_seed(40 + rank)
    with Join([model]) if is_uneven else contextlib.nullcontext():
        for step in range(STEPS - (5 * rank if is_uneven else 0)):
            if not (skips_sync and step % 2):
                optimizer.zero_grad()
            with model.no_sync() if skips_sync and step % 2 == 0 else contextlib.nullcontext():
                model(torch.randn(8, 13, generator=values)).square().mean().backward()
            if not (skips_sync and step % 2 == 0):
                optimizer.step()
    return [value.detach().clone() for value in model.module.state_dict().values()]


def both(rank, name):
    make, options, more = CASES[name]
    gloo = dist.new_group(backend="gloo")
    results = [trained(rank, group, make, options, **more) for group in (gloo, dist.group.WORLD)]
    for one, other in zip(*results):
        assert torch.equal(one, other), f"{name}: {(one - other).abs().max()}"
    first = [value.clone() for value in results[1]]
    for value in first:
        dist.broadcast(value, 0)
    if not more.get("is_uneven"):
        assert all(torch.equal(one, other) for one, other in zip(first, results[1]) if one.is_floating_point() and make is not conv_net)
    return True


CASES = {
    "perceptron": (perceptron, {}, {}),
    "conv_net": (conv_net, {}, {}),
    "unused": (Branches, {"find_unused_parameters": True}, {}),
    "static_graph": (perceptron, {"static_graph": True}, {}),
    "bucket_view": (perceptron, {"gradient_as_bucket_view": True}, {}),
    "no_sync": (perceptron, {}, {"skips_sync": True}),
    "join": (perceptron, {}, {"is_uneven": True}),
    "fp16": (perceptron, {}, {"hook": "fp16"}),
    "power_sgd": (perceptron, {"bucket_cap_mb": 25}, {"hook": "power"}),  # with more buckets its callbacks hold all of gloo's threads
}


class DDP(unittest.TestCase):
    pass


for case in CASES:
    setattr(DDP, f"test_{case}", lambda self, case=case: self.assertEqual(ranks.run(2, both, case), [True, True]))

if __name__ == "__main__":
    skips.main()
