"""Implements run.sh."""
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist

HERE = os.path.dirname(os.path.abspath(__file__))
TERN = os.path.join(os.environ.get("TERN_BUILD", os.path.join(HERE, "../../build")), "tern")
PAIRS = 4000
ONE, MANY = "one client", "each of 64"


def bench(*args):
    """Returns {ONE, MANY: pairs per second} of tern's client, and the median divided by the slowest of many clients."""
    command = [TERN, "bench", "store", "--json", "--rounds", "1", "--pairs", str(PAIRS), *args]
    lines = [json.loads(line) for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()]
    rates = {name: line["median_pairs_per_s"] for name, line in zip((ONE, MANY), lines)}
    return rates, lines[1]["median_pairs_per_s"] / lines[1]["slowest_pairs_per_s"]


def ask_torch(store):
    began = time.perf_counter()
    for i in range(PAIRS):
        store.set(f"k{i % 64}", f"value {i}")
        assert store.get(f"k{i % 64}") == f"value {i}".encode()
    return PAIRS / (time.perf_counter() - began)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    server = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=60))
    client = dist.TCPStore("127.0.0.1", server.port, None, False, datetime.timedelta(seconds=60))
    rates = {}
    spreads = {"tern": [], "PyTorch": []}
    for _ in range(rounds):
        for whose, args in (("tern", ()), ("PyTorch", ("--port", str(server.port)))):
            measured, spread = bench(*args)
            spreads[whose].append(spread)
            for count, rate in measured.items():
                rates.setdefault((count, "tern", whose), []).append(rate)
        rates.setdefault((ONE, f"PyTorch {torch.__version__}, Python", "PyTorch"), []).append(ask_torch(client))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print("| clients | client | server | pairs/s | tern's |\n| --- | --- | --- | ---: | ---: |")
    for (count, who, whose), rate in sorted(medians.items(), reverse=True):
        print(f"| {count} | {who} | {whose} | {rate:.0f} | {medians[count, 'tern', 'tern'] / rate:.2f} x |")
    for whose, values in spreads.items():
        print(f"\nThe slowest of 64 at {whose}'s server took {statistics.median(values):.2f} times the median.")


main()
