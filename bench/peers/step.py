"""The training step of `tern bench step` in PyTorch, with DistributedDataParallel over gloo on several ranks: the same networks, weights, data and optimizer.

    tern run -n 2 /usr/bin/python3 bench/peers/step.py --model mlp --steps 20 --meet /tmp/meet

Prints one JSON object with the keys of `tern bench step --json`.
"""
import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import nets
from world import WAYS, arranged, compiled, largest, leave_world, mean, open_world, pss_mb

WARM_UP = 3


def cpu_ms():
    """Returns the CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=[*nets.NETS, *nets.LANGUAGE_NETS], default="mlp")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", help="size of images or volumes, as tern's; default: the model's")
    numbers = ("layers", "width", "heads", "vocabulary", "patch")
    for name in numbers:
        parser.add_argument(f"--{name}", type=int, help="of a transformer, as tern's; default: the model's")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16 uses an autocast region")
    parser.add_argument("--way", choices=WAYS, default="default")
    parser.add_argument("--threads", type=int, default=1, help="threads per rank")
    parser.add_argument("--meet", required=True, help="file in which the ranks meet")
    args = parser.parse_args()
    open_world(args.meet, args.threads)
    net, x, y, loss_of = nets.make(args.model, args.batch, args.size, dist.get_rank(), **{name: getattr(args, name) for name in numbers})
    net, x = arranged(args.way, net), arranged(args.way, x)
    ddp = DistributedDataParallel(net) if dist.get_world_size() > 1 else net
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    forward = compiled(args.way, ddp)
    started = int(os.environ.get("TERN_STARTED_NS", time.monotonic_ns()))
    times = []
    for step in range(WARM_UP + args.steps):
        begin = time.monotonic_ns()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = loss_of(forward(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append((time.monotonic_ns() - begin) * 1e-6)
        if step == 0:
            first_step_ms = largest((time.monotonic_ns() - started) * 1e-6)
            loss_first = mean(loss.item())
        if step == WARM_UP - 1:
            used = cpu_ms()
    used = cpu_ms() - used
    peak_rss_mb = largest(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    median_ms = statistics.median(times[WARM_UP:])
    line = {"model": args.model, "ranks": dist.get_world_size(), "batch": args.batch, "dtype": args.dtype, "steps": args.steps,
            "median_ms": median_ms, "min_ms": min(times[WARM_UP:]), "cpu_ms": mean(used / args.steps),
            "samples_per_s": args.batch * dist.get_world_size() / median_ms * 1e3, "peak_rss_mb": peak_rss_mb, "pss_mb": pss_mb(),
            "first_step_ms": first_step_ms, "loss_first": loss_first, "loss_last": mean(loss.item())}
    if args.model in nets.LANGUAGE_NETS:
        line["tokens_per_s"] = line["samples_per_s"] * x.shape[1]
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)
    leave_world()


if __name__ == "__main__":
    main()
