"""What run.sh does: rounds of the same step started in every way, and the tables."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "peers"))
from run import TERN, cell, cpu_seconds, machine, others_percent, output  # noqa: E402

EXAMPLES = os.path.join(HERE, "..", "..", "examples")
MODELS = {"mlp": ("MLP", 64, 100), "resnet18": ("ResNet-18", 32, 8)}  # title, batch of a core, steps that count
FOREVER = 1 << 20  # steps


# ---- ways to run a step on `cores` cores ----

def command(model, batch, steps, *options):
    return [TERN, "bench", "step", "--model", model, "--batch", str(batch), "--steps", str(steps), "--json", *options]


def threads(count):
    return {**os.environ, "OMP_NUM_THREADS": str(count)}


def single(model, cores):
    """One process whose kernels have all cores."""
    _, batch, steps = MODELS[model]
    return json.loads(output(command(model, batch * cores, steps), env=threads(cores)))


def data_parallel(model, cores):
    """One process with a replica on each core; the optimizer, between two passes, has all of them."""
    _, batch, steps = MODELS[model]
    said = json.loads(output(command(model, batch * cores, steps, "--data-parallel"), env=threads(cores)))
    return {**said, "pss_mb": said["pss_mb"] / said["replicas"]}


def ddp(model, cores):
    """A rank on each core."""
    _, batch, steps = MODELS[model]
    return json.loads(output([TERN, "run", "-n", str(cores), *command(model, batch, steps)], env=threads(1)))


def beside_copies(model, cores):
    """One rank while the other cores do the same for themselves; samples/s is of all together."""
    _, batch, steps = MODELS[model]
    copies = [subprocess.Popen(command(model, batch, FOREVER), env=threads(1), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
              for _ in range(cores - 1)]
    try:
        said = json.loads(output(command(model, batch, steps), env=threads(1)))
        if any(copy.poll() is not None for copy in copies):
            sys.exit(f"{model}: a copy of the rank has failed")
    finally:
        for copy in copies:
            copy.kill()
            copy.wait()
    return {**said, "samples_per_s": said["samples_per_s"] * cores}


WAYS = {"single": single, "DataParallel": data_parallel, "DDP": ddp, "ranks apart": beside_copies}


# ---- rounds ----

def check_same_work(found):
    """A split batch has the loss of the whole one, where no batch norm sees only its own part."""
    whole, split = (found[way]["loss_first"] for way in ("single", "DataParallel"))
    if abs(whole - split) > 1e-4:
        sys.exit(f"not the same work: the losses of the MLP's first step are {whole} and {split}")


def measure(cores, rounds, say):
    """{model: {way: {field: samples}}}"""
    values = {model: {way: {} for way in WAYS} for model in MODELS}
    for number in range(rounds):
        before = cpu_seconds()
        for model in MODELS:
            found = {way: run(model, cores) for way, run in WAYS.items()}
            if model == "mlp":
                check_same_work(found)
            for way, said in found.items():
                for field in ("median_ms", "samples_per_s", "pss_mb"):
                    values[model][way].setdefault(field, []).append(said[field])
        say(f"round {number + 1} of {rounds}: others used {others_percent(before, cpu_seconds()):.0f} % of the cores meanwhile")
    return values


# ---- the tables ----

def lines_changed(name):
    """From examples/08_single.c: lines that are new or other ones."""
    done = subprocess.run(["diff", os.path.join(EXAMPLES, "08_single.c"), os.path.join(EXAMPLES, name)], stdout=subprocess.PIPE, text=True)
    return len(re.findall(r"^> ", done.stdout, re.M))


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(model, ways, cores):
    title, batch, _ = MODELS[model]
    changed = {"single": "0", "DataParallel": str(lines_changed("09_data_parallel.c")), "DDP": str(lines_changed("10_ddp.c"))}
    rows = [[way, cell(found["samples_per_s"]), cell(found["median_ms"]), cell(found["pss_mb"]), changed.get(way, "")]
            for way, found in ways.items()]
    return markdown([f"{title}, batch {batch} x {cores}", "samples/s", "ms a step", "MB a replica (PSS)", "lines changed"], rows)


def ratio(ways, above, below, field):
    return statistics.median(ways[above][field]) / statistics.median(ways[below][field])


def aims(values):
    """[(what, measured, aim)]"""
    found = []
    for model, apart in (("resnet18", 1.05), ("mlp", 1.2)):
        title, ways = MODELS[model][0], values[model]
        found += [(f"{title}: DDP's step / that of ranks apart", ratio(ways, "DDP", "ranks apart", "median_ms"), apart),
                  (f"{title}: DataParallel's step / DDP's", ratio(ways, "DataParallel", "DDP", "median_ms"), 1.05),
                  (f"{title}: DDP's memory of a rank / apart", ratio(ways, "DDP", "ranks apart", "pss_mb"), 1.05)]
    return found


def main():
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--cores", type=int, default=2, help="how many of the machine's are used, each way (default 2)")
    parser.add_argument("--json", metavar="FILE", help="everything measured")
    args = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    if args.rounds < 1:
        parser.error("rounds: expected 1 or more")
    if not 1 <= args.cores <= len(usable):
        parser.error(f"--cores: expected 1 to {len(usable)}, which this process may use")
    if not os.access(TERN, os.X_OK):
        sys.exit(f"run.sh: {TERN} is not there: build first, or say where the build is with TERN_BUILD")
    about = machine()
    os.sched_setaffinity(0, usable[:args.cores])
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    values = measure(args.cores, args.rounds, lambda text: print(text, flush=True))
    for model in MODELS:
        print("\n" + table(model, values[model], args.cores))
    print("\n" + markdown(["ratio of medians", "measured", "at most"], [[what, f"{got:.2f}", f"{aim:.2f}"] for what, got, aim in aims(values)]))
    print("\nMedian (lowest..highest). Ranks apart: as many processes as cores that do not know of each other.")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"machine": about, "values": values, "aims": aims(values)}, file, indent=1)


if __name__ == "__main__":
    main()
