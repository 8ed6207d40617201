"""The demo's network and schedule in PyTorch DistributedDataParallel over gloo, for comparison with examples/02_fashion.

Start it with a launcher that sets RANK and WORLD_SIZE (tern run, torchrun); the ranks meet in a file that must not exist yet:

    tern run -n 2 /usr/bin/python3 bench/peers/fashion.py --epochs 4 --meet /tmp/meet

Rank 0 prints one line per epoch: loss, test accuracy, images per second and seconds of training.
"""
import argparse
import gzip
import math
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from world import WAYS, arranged, compiled, leave_world, open_world

DATA = "/usr/share/datasets/fashion-mnist/"
BATCH = 64
PEAK_LR = 0.2


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        downsample = None  # created first and registered last, as in torchvision
        if stride != 1 or inputs != outputs:
            downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample

    def forward(self, x):
        same = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + same)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2))
        self.layer3 = nn.Sequential(Block(32, 64, 2))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def read_set(name):
    with gzip.open(f"{DATA}{name}-images-idx3-ubyte.gz") as f:
        images = np.frombuffer(f.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(f"{DATA}{name}-labels-idx1-ubyte.gz") as f:
        labels = np.frombuffer(f.read(), np.uint8, offset=8)
    x = (torch.from_numpy(images.astype(np.float32)) / 255 - 0.2860) / 0.3530
    return x, torch.from_numpy(labels.astype(np.int64))


def learning_rate(step, steps):
    warm = max(1, round(0.05 * steps))
    if step < warm:
        return PEAK_LR * (step + 1) / warm
    return 0.5 * PEAK_LR * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--schedule-epochs", type=int, default=0, help="length of the schedule (default: --epochs)")
    parser.add_argument("--way", choices=WAYS, default="default")
    parser.add_argument("--meet", required=True, help="file in which the ranks meet")
    args = parser.parse_args()
    open_world(args.meet)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = read_set("train")
    test_x, test_y = read_set("t10k")
    net = DistributedDataParallel(arranged(args.way, Net()))
    forward = compiled(args.way, net)
    sampler = DistributedSampler(range(len(x)), world, rank, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    per_epoch = len(sampler) // BATCH
    steps = per_epoch * (args.schedule_epochs or args.epochs)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler))
        net.train()
        dist.barrier()
        started = time.time()
        total = 0.0
        for i in range(per_epoch):
            index = order[i * BATCH:(i + 1) * BATCH]
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            loss = F.cross_entropy(forward(arranged(args.way, x[index])), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
        dist.barrier()
        seconds = time.time() - started
        net.eval()
        with torch.no_grad():
            right = sum((net.module(test_x[i:i + 250]).argmax(1) == test_y[i:i + 250]).sum()
                        for i in range(rank * 250, len(test_x), world * 250))
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {total / per_epoch:.4f}  test {100 * right.item() / len(test_x):.2f} %  "
                  f"{per_epoch * BATCH * world / seconds:.0f} images/s  {seconds:.1f} s", flush=True)
    leave_world()


if __name__ == "__main__":
    main()
