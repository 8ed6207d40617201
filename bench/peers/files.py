#!/usr/bin/python3
"""Compares tern_save and tern_load with torch.save and torch.load on the same states, in turn; prints the best time of each in milliseconds.

    TERN_BUILD=build-release ./bench/peers/files.py [FOLDER]

Writes to memory (/dev/shm), where a sync costs nothing, and to FOLDER (default /tmp), where tern_save waits for the disk and torch.save, which
does not, is followed by fsync."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("TERN_BUILD", os.path.join(HERE, "../../build-release"))
sys.path[:0] = [os.path.join(HERE, "../../tests"), os.path.join(HERE, "../../tests/torch")]

import torch  # noqa: E402

from files import Files  # noqa: E402

ROUNDS = 10
FILES = Files()


def resnet18():
    """Returns a state dict with the network's shapes."""
    shapes = {"conv1": (64, 3, 7, 7), "fc": (1000, 512)}
    width = 64
    for layer, out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            name = f"layer{layer + 1}.{block}"
            shapes.update({f"{name}.conv1": (out, width, 3, 3), f"{name}.conv2": (out, out, 3, 3)})
            width = out
            shapes.update({f"{name}.bn{i}.{part}": (out,) for i in (1, 2) for part in ("weight", "bias", "mean", "var")})
    return {name: torch.randn(shape) for name, shape in shapes.items()}


STATES = {"ResNet-18": resnet18(), "one of 50 MB": {"weight": torch.randn(12_500_000)},
          "2000 small": {f"layer.{i}": torch.randn(64) for i in range(2000)}}


def torch_save(state, path, sync):
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def tern_load(path):
    FILES.free(FILES.load_object(path))


def measure(state, folder, sync):
    """Returns the milliseconds of torch.save, tern_save, torch.load and tern_load."""
    theirs, ours = os.path.join(folder, "bench-theirs.pt"), os.path.join(folder, "bench-ours.pt")
    made = FILES.make(state)
    calls = (lambda: torch_save(state, theirs, sync), lambda: FILES.lib.check("tern_save", ours.encode(), made),
             lambda: torch.load(theirs), lambda: tern_load(ours))
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[i] = min(best[i], (time.perf_counter() - begin) * 1e3)
    FILES.free(made)
    os.unlink(theirs)
    os.unlink(ours)
    return best


for place, sync in (("/dev/shm", False), (sys.argv[1] if len(sys.argv) > 1 else "/tmp", True)):
    print(f"{place + (', synced' if sync else ''):20}  torch.save  tern_save  torch.load  tern_load")
    for name, state in STATES.items():
        save = measure(state, place, sync)
        print(f"{name:20}  {save[0]:10.2f}  {save[1]:9.2f}  {save[2]:10.2f}  {save[3]:9.2f}   {save[0] / save[1]:.1f}x, {save[2] / save[3]:.1f}x")
