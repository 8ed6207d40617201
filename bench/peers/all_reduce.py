"""The all_reduce of `tern bench all_reduce` in torch.distributed over gloo.

    tern run -n 2 /usr/bin/python3 bench/peers/all_reduce.py --sizes 4,1048576 --meet /tmp/meet

Prints one JSON object per size, with the keys of `tern bench all_reduce --json`.
"""
import argparse
import json
import statistics

import torch
import torch.distributed as dist

from world import leave_world, open_world, span_ns

BUDGET_NS = 1e9  # per size
SMALL_BYTES, SMALL_CALLS = 64 << 10, 200  # timed together
WARM_UP = 3
SAMPLES_MIN, SAMPLES_MAX = 5, 101


def measure(size):
    """Returns the microseconds of one call."""
    tensor = torch.zeros(size // 4)
    calls = SMALL_CALLS if size < SMALL_BYTES else 1

    def work():
        for _ in range(calls):
            dist.all_reduce(tensor)

    for _ in range(WARM_UP):
        trial = span_ns(work)
    samples = max(SAMPLES_MIN, min(SAMPLES_MAX, int(BUDGET_NS / trial)))
    return statistics.median(span_ns(work) for _ in range(samples)) / calls * 1e-3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="4,1048576,26214400", help="bytes per rank")
    parser.add_argument("--meet", required=True, help="file in which the ranks meet")
    args = parser.parse_args()
    open_world(args.meet)
    for size in map(int, args.sizes.split(",")):
        line = {"op": "all_reduce", "backend": "gloo", "memory": "plain", "ranks": dist.get_world_size(), "bytes": size,
                "median_us": measure(size)}
        if dist.get_rank() == 0:
            print(json.dumps(line), flush=True)
    leave_world()


if __name__ == "__main__":
    main()
