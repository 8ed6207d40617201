"""One rank of a job of measure.py in torch.distributed. Measures once for each line on its standard input and prints the results as JSON.

    RANK=0 WORLD_SIZE=2 python3 bench/torch/rank.py --backend gloo --meet /tmp/meet all_reduce 4,1048576
"""
import argparse
import datetime
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import models

TIMEOUT = datetime.timedelta(minutes=5)
SAMPLE_BYTES = 32 << 20  # that a sample moves, if that is not more calls than the next
SAMPLE_CALLS = 1000
SAMPLES = 5


def open_world(backend, meet):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if backend == "nothing":
        # PyTorch's "fake" by another name: PyTorch treats it as it treats any back end that is not its own, such as tern.
        from torch.testing._internal.distributed.fake_pg import FakeStore

        fake = dist.Backend._plugins["FAKE"]
        dist.Backend.register_backend(backend, fake.creator_fn, extended_api=fake.extended_api, devices=["cpu"])
        dist.init_process_group(backend, store=FakeStore(), rank=rank, world_size=world)
        return
    if backend == "tern":
        import torch_tern  # noqa: F401: torch 1.13 does not import it by itself
    dist.init_process_group(backend, init_method=f"file://{meet}", rank=rank, world_size=world, timeout=TIMEOUT)


# ---- all_reduce ----

def own_memory(count):
    """Returns a tensor in the back end's memory, None if it has none."""
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group
    if not hasattr(backend, "supports_tensor_alloc") or not backend.supports_tensor_alloc(torch.device("cpu")):
        return None
    return backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu")).zero_()


def all_reduce_us(tensor, calls):
    """Returns the microseconds of a call."""
    dist.barrier()
    started = time.monotonic_ns()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return (time.monotonic_ns() - started) / calls * 1e-3


def all_reduce_job(sizes):
    """Returns the function that measures: {"plain 4": microseconds, .. "own 4": ..}."""
    tensors = {}
    for size in map(int, sizes.split(",")):
        kinds = {"plain": torch.zeros(size // 4), "own": own_memory(size // 4)}
        tensors.update({(kind, size): tensor for kind, tensor in kinds.items() if tensor is not None})

    def measure():
        found = {}
        for (kind, size), tensor in tensors.items():
            calls = max(1, min(SAMPLE_CALLS, SAMPLE_BYTES // size))
            all_reduce_us(tensor, max(1, calls // 10))
            found[f"{kind} {size}"] = statistics.median(all_reduce_us(tensor, calls) for _ in range(SAMPLES))
        return found

    return measure


# ---- steps ----

def cpu_ms():
    """Returns the CPU time of this process so far, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


def finished_hook(_, bucket):
    """A hook of DDP that only divides, as DDP does itself without a hook: the works of the back end that does nothing have no results."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer().div_(dist.get_world_size()))
    return future


def step_job(model, steps, parallel):
    """Returns the function that measures: the milliseconds of a step, its CPU time, and losses."""
    net, x, y, loss_of = models.make(model, dist.get_rank())
    if parallel == "fsdp":
        net = models.sharded(net)
    else:
        net = DistributedDataParallel(net)
        if dist.get_backend() == "nothing":
            net.register_comm_hook(None, finished_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def one():
        loss = loss_of(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    first = one()
    for _ in range(2):
        one()

    def measure():
        dist.barrier()
        times, used = [], cpu_ms()
        for _ in range(steps):
            started = time.monotonic_ns()
            last = one()
            times.append((time.monotonic_ns() - started) * 1e-6)
        return {"median_ms": statistics.median(times), "cpu_ms": (cpu_ms() - used) / steps, "loss_first": first, "loss_last": last}

    return measure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--meet", required=True, help="file in which the ranks meet")
    parser.add_argument("job", choices=["all_reduce", "ddp", "fsdp"])
    parser.add_argument("argument", help="sizes in bytes, or the model")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    open_world(args.backend, args.meet)
    measure = all_reduce_job(args.argument) if args.job == "all_reduce" else step_job(args.argument, args.steps, args.job)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)
    os._exit(0)  # with gloo's threads running, PyTorch 1.13 may hang in a normal shutdown


if __name__ == "__main__":
    main()
