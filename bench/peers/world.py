"""The ranks of a PyTorch peer: gloo, one thread each, started by any launcher that sets RANK and WORLD_SIZE."""
import os
import sys
import time

import torch
import torch.distributed as dist


def open_world(meet):
    """`meet`: a file that must not exist yet."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(meet)}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))


def leave_world():
    """Ends the process: taken down with gloo's threads running, PyTorch 1.13 may hang and 2.x abort."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def largest(value):
    """Over all ranks."""
    value = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.tolist()


def span_ns(work):
    """Nanoseconds from the first rank's start to the last one's end."""
    dist.barrier()
    started = time.monotonic_ns()
    work()
    span = torch.tensor([-started, time.monotonic_ns()])
    dist.all_reduce(span, dist.ReduceOp.MAX)
    return span.sum().item()
