"""Implements run.sh: rounds of the same step started in every way, and the tables."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "peers"), os.path.join(HERE, "..")]
from peers import BUILD, DEBIAN_PYTHON, TERN, Torch, output, torch_version  # noqa: E402
from run import cell, check_build, cpu_seconds, help_openblas, machine, others_percent  # noqa: E402

from chart import save_bars  # noqa: E402

EXAMPLES = os.path.join(HERE, "..", "..", "examples")
# Title, batch per core, timed steps, samples per epoch (of MNIST and CIFAR-10).
MODELS = {"mlp": ("MLP", 64, 100, 60000), "resnet18": ("ResNet-18", 32, 8, 50000)}
FOREVER = 1 << 20  # steps


# ---- ways to run a step on `cores` cores ----

def command(model, batch, steps, *options):
    return [TERN, "bench", "step", "--model", model, "--batch", str(batch), "--steps", str(steps), "--json", *options]


def threads(count):
    return {**os.environ, "OMP_NUM_THREADS": str(count)}


def single(model, cores):
    """One process whose kernels use all cores."""
    _, batch, steps, _ = MODELS[model]
    return json.loads(output(command(model, batch * cores, steps), env=threads(cores)))


def data_parallel(model, cores):
    """One process with a replica on each core; the optimizer, between the passes, uses all cores."""
    _, batch, steps, _ = MODELS[model]
    said = json.loads(output(command(model, batch * cores, steps, "--data-parallel"), env=threads(cores)))
    return {**said, "pss_mb": said["pss_mb"] / said["replicas"]}


def ddp(model, cores, *options):
    """A rank on each core."""
    _, batch, steps, _ = MODELS[model]
    return json.loads(output([TERN, "run", "-n", str(cores), *command(model, batch, steps, *options)], env=threads(1)))


def mixed(model, cores):
    """DDP with matrix products in bf16, on the tile unit if there is one."""
    return ddp(model, cores, "--opt-level", "O1")


def sharded(model, cores):
    """DDP in which each rank keeps and updates its part of the optimizer."""
    return ddp(model, cores, "--shard")


def beside_copies(model, cores):
    """One rank, while an independent copy runs on each other core; samples/s is over all of them."""
    _, batch, steps, _ = MODELS[model]
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


def torch_step(torch, model, ranks, threads_each, batch):
    _, _, steps, _ = MODELS[model]
    return json.loads(torch.launched(ranks, "step.py", "--model", model, "--batch", batch, "--steps", steps, "--threads", threads_each))


WAYS = {"single": single, "DataParallel": data_parallel, "DDP": ddp, "DDP, O1": mixed, "DDP, sharded": sharded,
        "ranks apart": beside_copies}


def find_ways(folder):
    """Returns all ways, with PyTorch's if it is installed, and the version of PyTorch, or None."""
    help_openblas()
    version = torch_version(DEBIAN_PYTHON)
    if not version:
        return WAYS, None
    torch = Torch(DEBIAN_PYTHON, version, folder)
    return {**WAYS, "PyTorch single": lambda model, cores: torch_step(torch, model, 1, cores, MODELS[model][1] * cores),
            "PyTorch DDP": lambda model, cores: torch_step(torch, model, cores, 1, MODELS[model][1])}, version


def who(way, cores):
    """Returns processes x threads of each; a thread runs kernels, or a replica in DataParallel."""
    return f"1 x {cores}" if way.endswith("single") or way == "DataParallel" else f"{cores} x 1"


# ---- rounds ----

# Pairs of ways with the same first loss, and the tolerance. A split batch has the loss of the whole batch unless a batch norm sees only
# a part of it. Ranks draw different data.
SAME = [("single", "PyTorch single", 1e-4), ("DDP", "PyTorch DDP", 1e-4), ("DDP", "DDP, sharded", 0), ("DDP", "DDP, O1", 2e-2)]
SAME_MLP = [("single", "DataParallel", 1e-4)]


def check_same_work(found, pairs):
    for one, other, most in pairs:
        if one in found and other in found:
            losses = found[one]["loss_first"], found[other]["loss_first"]
            if not abs(losses[0] - losses[1]) <= most:
                sys.exit(f"not the same work: the first losses of {one} and {other} are {losses[0]} and {losses[1]}")


def fields_of(model, said):
    return {**{field: said[field] for field in ("median_ms", "samples_per_s", "pss_mb", "peak_rss_mb")},
            "epoch_s": MODELS[model][3] / said["samples_per_s"]}


def measure(cores, rounds, ways, say):
    """Returns {model: {way: {field: samples}}}."""
    values = {model: {way: {} for way in ways} for model in MODELS}
    for number in range(rounds):
        before = cpu_seconds()
        for model in MODELS:
            found = {way: run(model, cores) for way, run in ways.items()}
            check_same_work(found, SAME + (SAME_MLP if model == "mlp" else []))
            for way, said in found.items():
                for field, value in fields_of(model, said).items():
                    values[model][way].setdefault(field, []).append(value)
        say(f"round {number + 1} of {rounds}: others used {others_percent(before, cpu_seconds()):.0f} % of the cores meanwhile")
    return values


# ---- the tables ----

def lines_changed(name):
    """Returns how many lines are new or changed relative to examples/08_single.c."""
    done = subprocess.run(["diff", os.path.join(EXAMPLES, "08_single.c"), os.path.join(EXAMPLES, name)], stdout=subprocess.PIPE, text=True)
    return len(re.findall(r"^> ", done.stdout, re.M))


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(model, ways, cores):
    title, batch, _, epoch = MODELS[model]
    changed = {"single": "0", "DataParallel": str(lines_changed("09_data_parallel.c")), "DDP": str(lines_changed("10_ddp.c"))}
    rows = [[way, who(way, cores), cell(found["epoch_s"]), cell(found["median_ms"]), cell(found["pss_mb"]), changed.get(way, "")]
            for way, found in ways.items()]
    return markdown([f"{title}, batch {batch} x {cores}", "processes x threads", f"s an epoch of {epoch}", "ms a step", "MB a replica (PSS)", "lines changed"], rows)


def draw(path, values, cores, about):
    """Draws bars for the last model: the time of an epoch, and the memory of a rank or replica."""
    model = list(values)[-1]
    title, batch, _, epoch = MODELS[model]
    shown = {way: found for way, found in values[model].items() if way != "ranks apart"}
    panels = [(text, [(f"{way}, {who(way, cores)}", *(pick(found[field]) for pick in (statistics.median, min, max)), 4 if "PyTorch" in way else 1)
                      for way, found in shown.items()])
              for text, field in ((f"Seconds an epoch of {epoch} images of 32x32", "epoch_s"), ("MB a rank or replica (PSS)", "pss_mb"))]
    save_bars(BUILD, path, f"{title}, batch {batch} x {cores}: processes x threads on {cores} cores of {about['cpu']}", panels)


def ratio(ways, above, below, field):
    return statistics.median(ways[above][field]) / statistics.median(ways[below][field])


def aims(values):
    """Returns [(what, measured, aim)]."""
    found = []
    for model, apart in (("resnet18", 1.05), ("mlp", 1.2)):
        if model not in values:
            continue
        title, ways = MODELS[model][0], values[model]
        found += [(f"{title}: DDP's step / that of ranks apart", ratio(ways, "DDP", "ranks apart", "median_ms"), apart),
                  (f"{title}: DataParallel's step / DDP's", ratio(ways, "DataParallel", "DDP", "median_ms"), 1.05),
                  (f"{title}: DDP's memory of a rank / apart", ratio(ways, "DDP", "ranks apart", "pss_mb"), 1.05)]
    return found


def main():
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--cores", type=int, default=2, help="how many cores each way uses (default 2)")
    parser.add_argument("--json", metavar="FILE", help="write all measurements")
    parser.add_argument("--chart", metavar="FILE", help="draw the last table as a PNG")
    args = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    if args.rounds < 1:
        parser.error("rounds: expected 1 or more")
    if not 1 <= args.cores <= len(usable):
        parser.error(f"--cores: expected 1 to {len(usable)}, the cores that this process may use")
    check_build("run.sh")
    about = machine()
    os.sched_setaffinity(0, usable[:args.cores])
    with tempfile.TemporaryDirectory() as folder:
        ways, version = find_ways(folder)
        about["PyTorch"] = version or f"none: {DEBIAN_PYTHON} has no torch"
        print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
        values = measure(args.cores, args.rounds, ways, lambda text: print(text, flush=True))
    for model in MODELS:
        print("\n" + table(model, values[model], args.cores))
    print("\n" + markdown(["ratio of medians", "measured", "at most"], [[what, f"{got:.2f}", f"{aim:.2f}"] for what, got, aim in aims(values)]))
    print("\nMedian (lowest..highest). Ranks apart: one independent process per core. PSS: pages that several processes map\n"
          f"are split between them. OPENBLAS_CORETYPE is {os.environ.get('OPENBLAS_CORETYPE', 'not set')}.")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"machine": about, "cores": args.cores, "rounds": args.rounds, "values": values, "aims": aims(values)}, file, indent=1)
    if args.chart:
        draw(args.chart, values, args.cores, about)


if __name__ == "__main__":
    main()
