"""Implements hosts.sh: runs tern and PyTorch in turn for some rounds and prints a table of the medians."""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

from run import HERE, TERN, bytes_text, command, parse_sizes, us_text

TORCH = os.path.join(HERE, "..", "peers", "all_reduce.py")
PYTHONS = ["/usr/bin/python3"] + [python for python in [os.environ.get("TORCH_PYTHON")] if python]


def lines_of(words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, timeout=600, check=True)
    return {line["bytes"]: line["median_us"] for line in map(json.loads, done.stdout.splitlines())}


def tern(ranks, backend, memory, sizes, seconds):
    words = command(ranks, backend, memory, "+" in backend, False, ["--sizes", ",".join(map(str, sizes)), "--seconds", seconds])
    return lines_of(["all_reduce" if word == "collectives" else word for word in words])


def torch(python, ranks, sizes):
    with tempfile.TemporaryDirectory() as folder:
        meet = os.path.join(folder, "meet")
        return lines_of([TERN, "run", "-n", str(ranks), python, TORCH, "--sizes", ",".join(map(str, sizes)), "--meet", meet])


def version(python):
    return subprocess.run([python, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE, text=True).stdout.strip()


def ways(ranks, sizes, seconds):
    """Returns a dict from the name of a way to the function that measures it."""
    found = {f"tern, {backend}, {memory}": lambda backend=backend, memory=memory: tern(ranks, backend, memory, sizes, seconds)
             for backend in ["gloo"] + ["native+gloo"] * (ranks >= 4) for memory in ("window", "plain")}
    for python in PYTHONS:
        found[f"PyTorch {version(python)}, gloo"] = lambda python=python: torch(python, ranks, sizes)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default="4,1K,64K,1M,25M")
    parser.add_argument("--seconds", default="0.5", help="time per size")
    args = parser.parse_args()
    sizes = parse_sizes(args.sizes)
    for ranks in map(int, args.ranks.split(",")):
        todo = ways(ranks, sizes, args.seconds)
        rounds = [{name: measure() for name, measure in todo.items()} for _ in range(args.rounds)]
        print(f"| all_reduce, {ranks} ranks | " + " | ".join(map(bytes_text, sizes)) + " |\n| --- |" + " ---: |" * len(sizes))
        for name in todo:
            print(f"| {name} | " + " | ".join(us_text(statistics.median(r[name][size] for r in rounds)) for size in sizes) + " |")
        print(flush=True)


if __name__ == "__main__":
    main()
