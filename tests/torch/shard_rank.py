"""One rank of test_shard.py: 12 steps of a sharded optimizer compared with torch's ZeroRedundancyOptimizer over gloo
on the same samples; then both states, gathered on one rank. With "uneven", rank r makes 2 r more steps and then
joins.

    tern run -n N /usr/bin/python3 shard_rank.py KIND even|uneven MEETING_FILE
"""
import ctypes
import os
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import tern
from nets import Net, library
from optims import KINDS

STEPS, BATCH, SIZES, TOLERANCE = 12, 8, [20, 33, 17, 5], 1e-5
OPTIONS = {
    "sgd": dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": dict(lr=0.01, amsgrad=True),
    "adamw": dict(lr=0.01, weight_decay=0.1),
    "rmsprop": dict(lr=0.001, momentum=0.9, centered=True),
    "lamb": dict(lr=0.01, weight_decay=0.1),
}


StepFn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(tern.Error))


class JoinOpts(ctypes.Structure):
    """tern_join_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("throw_on_early_termination", ctypes.c_bool),
        ("after_backward", StepFn),
        ("ctx", ctypes.c_void_p),
    ]


class Entry(ctypes.Structure):
    """tern_optim_entry."""

    _fields_ = [("parameter", ctypes.c_char_p), ("name", ctypes.c_char_p), ("tensor", ctypes.c_void_p)]


def sharded_net(lib, kind, group):
    """The net with an optimizer of this kind instead of its own."""
    net = Net.mlp(lib, SIZES, seed=5, group=group)
    lib.tern_optim_free(net.optim)
    opts = getattr(lib, f"tern_{kind}_defaults")()
    for name, value in OPTIONS[kind].items():
        setattr(opts, name, value)
    net.optim = ctypes.c_void_p(lib.check(f"tern_{kind}_new", net.module, ctypes.byref(opts)))
    lib.check("tern_optim_shard", net.optim, group)
    return net


def torch_net():
    torch.manual_seed(5)
    layers = []
    for before, after in zip(SIZES, SIZES[1:]):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))


def gathered(lib, net, root):
    """{(parameter, name): array} on rank `root`, None elsewhere."""
    state = lib.check("tern_optim_state_gather", net.optim, root)
    if state is None:
        return None
    state = ctypes.c_void_p(state)
    entries = lib.tern_optim_state_entries(state)[: lib.tern_optim_state_count(state)]
    found = {(e.parameter.decode(), e.name.decode()): net.read(e.tensor) for e in entries}
    lib.tern_optim_state_free(state)
    return found


def check_close(ours, theirs, what):
    scale = max(1.0, float(numpy.abs(theirs).max()))
    worst = float(numpy.abs(ours - theirs).max())
    assert worst <= TOLERANCE * scale, f"{what}: {worst}"


def check_state(ours, theirs, names, kind):
    """torch numbers its parameters; its SGD stores no step."""
    count = 0
    for index, state in theirs["state"].items():
        for name, want in state.items():
            check_close(ours[names[index], name], numpy.asarray(want), f"{names[index]} {name}")
            count += 1
    assert count == len(ours) - (len(names) if kind == "sgd" else 0) > 0, (count, len(ours))


def join(lib, net):
    """Makes steps with the ranks that still have batches."""
    opts = lib.tern_join_defaults()
    opts.after_backward = StepFn(lambda arg, err: net.update() or lib.tern_scope_end(net.scope, err))
    lib.check("tern_ddp_join", net.ddp, ctypes.byref(opts))


def train(net, ddp, optimizer, rank, steps):
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        x, y = torch.randn((BATCH, SIZES[0]), generator=generator), torch.randint(0, SIZES[-1], (BATCH,), generator=generator)
        net.step(x.numpy(), y.numpy())
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        check_params(net, ddp, f"rank {rank} step {step}")


def check_params(net, ddp, what):
    for ours, (name, want) in zip(net.state().values(), ddp.module.state_dict().items()):
        check_close(ours, want.numpy(), f"{what} {name}")


def train_uneven(lib, net, ddp, optimizer, rank, steps):
    """torch's joined ranks have no gradients to step their slice with (its join_hook wants them "properly set"), so its
    optimizer is a plain one here: that of the last rank, which makes all steps, is right."""
    generator = torch.Generator().manual_seed(rank)
    batches = [
        (torch.randn((BATCH, SIZES[0]), generator=generator), torch.randint(0, SIZES[-1], (BATCH,), generator=generator))
        for _ in range(steps)
    ]
    for x, y in batches:
        net.step(x.numpy(), y.numpy())
    join(lib, net)
    with Join([ddp]):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
    check_params(net, ddp, f"rank {rank}, joined")


def main():
    kind, uneven, meeting = sys.argv[1], sys.argv[2] == "uneven", sys.argv[3]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    lib = library()
    for name in KINDS:
        lib.returns(KINDS[name][0], f"tern_{name}_defaults")
    lib.returns(JoinOpts, "tern_join_defaults")
    lib.returns(ctypes.POINTER(Entry), "tern_optim_state_entries")
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    net, ddp = sharded_net(lib, kind, group), torch_net()
    root = world - 1
    if uneven:
        optimizer = KINDS[kind][1](ddp.parameters(), **OPTIONS[kind])
        train_uneven(lib, net, ddp, optimizer, rank, STEPS + 2 * rank)
    elif kind == "lamb":  # a shard in torch knows only its own parameters' norms
        optimizer = KINDS[kind][1](ddp.parameters(), **OPTIONS[kind])
        train(net, ddp, optimizer, rank, STEPS)
    else:
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=KINDS[kind][1], **OPTIONS[kind])
        train(net, ddp, optimizer, rank, STEPS)
        optimizer.consolidate_state_dict(to=root)
    ours = gathered(lib, net, root)
    assert (ours is not None) == (rank == root)
    if rank == root:
        check_state(ours, optimizer.state_dict(), [name for name, _ in ddp.module.named_parameters()], kind)
        print("equal", flush=True)
    net.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
