"""The training step of `tern bench step` in PyTorch, on several ranks DistributedDataParallel over gloo: the same nets, weights, data and optimizer.

    tern run -n 2 /usr/bin/python3 bench/peers/step.py --model mlp --batch 64 --steps 20 --meet /tmp/meet

Prints one JSON object with the names that `tern bench step --json` has.
"""
import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from fashion import Block
from world import largest, leave_world, open_world, pss_mb

WARM_UP = 3
CLASSES = 10


def mlp():
    sizes = [784, 1024, 1024, CLASSES]
    layers = [part for pair in zip(sizes, sizes[1:]) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), (784,)


def resnet18():
    """torchvision's, with the stem for images of 32x32."""
    net = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    inputs = 64
    for outputs in (64, 128, 256, 512):
        net.append(nn.Sequential(Block(inputs, outputs, 1 if outputs == inputs else 2), Block(outputs, outputs, 1)))
        inputs = outputs
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)])
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net, (3, 32, 32)


def mean(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["mlp", "resnet18"], default="mlp")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: in an autocast region")
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--meet", required=True, help="file in which the ranks meet")
    args = parser.parse_args()
    open_world(args.meet, args.threads)
    torch.manual_seed(0)
    net, shape = mlp() if args.model == "mlp" else resnet18()
    ddp = DistributedDataParallel(net) if dist.get_world_size() > 1 else net
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(dist.get_rank() + 1)
    x, y = torch.randn(args.batch, *shape), torch.arange(args.batch) % CLASSES
    started = int(os.environ.get("TERN_STARTED_NS", time.monotonic_ns()))
    times = []
    for step in range(WARM_UP + args.steps):
        begin = time.monotonic_ns()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = F.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append((time.monotonic_ns() - begin) * 1e-6)
        if step == 0:
            first_step_ms = largest((time.monotonic_ns() - started) * 1e-6)
            loss_first = mean(loss)
    peak_rss_mb = largest(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    median_ms = statistics.median(times[WARM_UP:])
    line = {"model": args.model, "ranks": dist.get_world_size(), "batch": args.batch, "dtype": args.dtype, "steps": args.steps,
            "median_ms": median_ms, "min_ms": min(times[WARM_UP:]),
            "samples_per_s": args.batch * dist.get_world_size() / median_ms * 1e3, "peak_rss_mb": peak_rss_mb, "pss_mb": pss_mb(),
            "first_step_ms": first_step_ms, "loss_first": loss_first, "loss_last": mean(loss)}
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)
    leave_world()


if __name__ == "__main__":
    main()
