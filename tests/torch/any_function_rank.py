"""One rank of test_any_function.py: tern_ddp trains a model by a second function. Compares torch's
DistributedDataParallel, which does not average such gradients, and a wrapper that makes torch do the same.

    tern run -n N /usr/bin/python3 any_function_rank.py MEETING_FILE
"""
import ctypes
import os
import sys

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nets import Net, library

STEPS, ROWS, FEATURES, TOLERANCE = 12, 5, 6, 1e-5
SGD = dict(lr=0.1, momentum=0.9)


class Model(torch.nn.Module):
    """Its forward is classify(encode(x))."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(FEATURES, 8)
        self.classifier = torch.nn.Linear(8, 3)

    def encode(self, x):
        return torch.tanh(self.encoder(x))

    def forward(self, x):
        return self.classifier(self.encode(x))


class Dispatch(torch.nn.Module):
    """torch's workaround: one forward that dispatches to all functions."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, function, x):
        return getattr(self.model, function)(x)


def batch(step, rank):
    return torch.randn((ROWS, FEATURES), generator=torch.Generator().manual_seed(100 * step + rank))


def torch_refuses(world):
    """The wrapped module lacks the second function. Through `.module` it exists, but its gradients are not averaged."""
    torch.manual_seed(3)
    ddp = DistributedDataParallel(Model())
    try:
        ddp.encode(batch(0, dist.get_rank()))
        raise AssertionError("torch has the function now")
    except AttributeError as error:
        assert "has no attribute 'encode'" in str(error), error
    ddp.module.encode(batch(0, dist.get_rank())).square().mean().backward()
    grad = ddp.module.encoder.weight.grad
    everybody = [torch.empty_like(grad) for _ in range(world)]
    dist.all_gather(everybody, grad)
    assert all(not torch.equal(everybody[0], other) for other in everybody[1:]), "torch averages it now"


def new_net(lib, group):
    """Returns tern's model and its encoder."""
    parts = {}

    def make(rng):
        model = ctypes.c_void_p(lib.check("tern_sequential_new"))
        for name, sizes in (("encoder", (FEATURES, 8)), ("classifier", (8, 3))):
            layer = lib.check("tern_linear_new", *map(ctypes.c_int64, sizes), None, rng)
            parts[name] = ctypes.c_void_p(lib.check("tern_module_add", model, name.encode(), ctypes.c_void_p(layer)))
        return model.value

    return Net(lib, make, seed=3, group=group, **SGD), parts["encoder"]


def encode_step(net, encoder, x):
    """One step on the mean square of the code."""
    lib, scope = net.lib, net.scope
    code = ctypes.c_void_p(lib.tern_tanh(scope, ctypes.c_void_p(lib.tern_forward(encoder, scope, net.tensor(x)))))
    loss = ctypes.c_void_p(lib.tern_mean(scope, ctypes.c_void_p(lib.tern_mul(scope, code, code))))
    lib.tern_backward(scope, loss)
    lib.tern_optim_step(net.optim, scope)
    net.raise_error()
    value = lib.tern_item(loss)
    lib.check("tern_scope_end", scope)
    return value


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)
    torch_refuses(world)
    lib = library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    net, encoder = new_net(lib, group)
    torch.manual_seed(3)
    model = Model()
    ddp = DistributedDataParallel(Dispatch(model), find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)
    for step in range(STEPS):
        x = batch(step, rank)
        ours = encode_step(net, encoder, x.numpy())
        loss = ddp("encode", x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        assert abs(ours - loss.item()) <= TOLERANCE, f"rank {rank} step {step}: {ours} {loss.item()}"
    for name, want in model.state_dict().items():
        worst = numpy.abs(net.state()[name] - want.numpy()).max()
        assert worst <= TOLERANCE, f"rank {rank}: {name}: {worst}"
    print("equal", flush=True)
    net.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
