"""Opens the ranks of a PyTorch peer over gloo, under any launcher that sets RANK and WORLD_SIZE."""
import os
import sys
import time

import torch
import torch.distributed as dist


def open_world(meet, threads=1):
    """Opens the group; `meet` is a file that must not exist yet."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(meet)}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))


def leave_world():
    """Exits without a normal shutdown: with gloo's threads running, PyTorch 1.13 may hang in it and 2.x may abort."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


# How a network is trained: in PyTorch's default layout, with channels last, or compiled (in the default layout).
WAYS = ("default", "channels_last", "compile")


def arranged(way, thing):
    """Converts a network or a batch to the layout of the way."""
    if way != "channels_last":
        return thing
    tensors = thing.parameters() if isinstance(thing, torch.nn.Module) else [thing]
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    dims = max(tensor.ndim for tensor in tensors)
    return thing.to(memory_format=layouts[dims]) if dims in layouts else thing


def compiled(way, net):
    return torch.compile(net) if way == "compile" else net


def mean(value):
    """Returns the mean over all ranks."""
    value = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def largest(value):
    """Returns the maximum over all ranks."""
    value = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.tolist()


def pss_mb():
    """Returns the proportional set size, as the mean over the ranks."""
    dist.barrier()
    with open("/proc/self/smaps_rollup") as file:
        (kb,) = (int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return mean(kb / 1024)


def span_ns(work):
    """Returns the nanoseconds from the first rank's start to the last rank's end."""
    dist.barrier()
    started = time.monotonic_ns()
    work()
    span = torch.tensor([-started, time.monotonic_ns()])
    dist.all_reduce(span, dist.ReduceOp.MAX)
    return span.sum().item()
