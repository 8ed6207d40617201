"""Implements run.sh: rounds of jobs, each by every peer that supports it, and the table."""
import argparse
import json
import os
import platform
import re
import statistics
import sys
import tempfile
from collections import namedtuple

from llmc import find_llmc
from peers import SIZES, TERN, find_peers, launched, output, step_options

# A job is (what, *arguments). A row shows one field of a job's results; `goal` is the wanted ratio of the best peer's median to tern's.
Row = namedtuple("Row", "label unit job field goal", defaults=[None])
MEMORY_GOAL = 1 / 0.6


def step_rows(title, model, dtype="f32", size=None, goal=None, memory_goal=None):
    """Returns the rows of a training step: its time, its CPU time (including busy waiting), its memory."""
    job = ("step", model, dtype, size)
    return [Row(f"{title}, a step", "ms", job, "median_ms", goal), Row(f"{title}, processor time", "ms", job, "cpu_ms"),
            Row(f"{title}, peak memory of a rank", "MB", job, "peak_rss_mb", memory_goal),
            Row(f"{title}, the same shared out (PSS)", "MB", job, "pss_mb")]


def language_rows(layers, width, heads, positions, batch, vocabulary, steps):
    """Returns the rows of a GPT-2 that one process trains on two threads."""
    title, job = f"GPT-2 of {layers} x {width}, batch {batch} of {positions}, 2 threads", ("language", layers, width, heads, positions, batch, vocabulary, steps)
    return [Row(f"{title}, a step", "ms", job, "median_ms", 5), Row(f"{title}, memory (PSS)", "MB", job, "pss_mb")]


def both_dtypes(name, title, model, size=None, goals=(None, None), memory_goal=None):
    return {name: step_rows(title, model, "f32", size, goals[0], memory_goal),
            f"{name}-bf16": step_rows(f"{title}, bf16", model, "bf16", size, goals[1])}


GROUPS = {
    **both_dtypes("mlp", "MLP, batch 64 x 2", "mlp"),
    **both_dtypes("fashion", "the demo's ResNet, batch 64 x 2 of 28x28", "fashion", None, (2.2, None)),
    **both_dtypes("resnet18", "ResNet-18, batch 32 x 2 of 32x32", "resnet18", None, (2, 1.3), MEMORY_GOAL),
    **both_dtypes("unet3d", "3-D U-Net, batch 1 x 2 of 32x64x64", "unet3d", None, (1.9, 1.3), MEMORY_GOAL),
    **both_dtypes("unet3d-160", "3-D U-Net, batch 1 x 2 of 32x160x160", "unet3d", "32x160x160"),
    **both_dtypes("resnet50", "ResNet-50, batch 4 x 2 of 257x257", "resnet50", None, (1.5, None)),
    **both_dtypes("deeplabv3", "DeepLabV3, batch 4 x 2 of 257x257", "deeplabv3", None, (1.5, None)),
    **both_dtypes("vit", "ViT-Ti/16, batch 8 x 2 of 224x224", "vit", None, (1.3, None)),
    **both_dtypes("gpt2", "GPT-2 of 4 x 256, batch 8 x 2 of 128", "gpt2", "128"),
    **both_dtypes("llama", "Llama of 4 x 256, batch 8 x 2 of 128", "llama", "128"),
    "llmc": [*language_rows(4, 128, 4, 128, 16, 256, 5), *language_rows(6, 384, 6, 256, 8, 256, 1), *language_rows(12, 768, 12, 64, 4, 50257, 1)],
    "start": [Row("MLP, first step after starting", "ms", ("step", "mlp", "f32", None), "first_step_ms")],
    "all_reduce": [Row(f"all_reduce {name}, {ranks} ranks, {memory}", "us", ("all_reduce", ranks, memory), size)
                   for ranks in (2, 8) for memory in ("window", "plain") for size, name in reversed(SIZES.items())],
    "demo": [Row("demo, 4 epochs on 2 ranks", "s", ("demo", 4), "training_s", 2)],
}
USUAL, LARGE = ["mlp", "start", "resnet18", "unet3d", "all_reduce"], ["unet3d-160", "resnet50", "deeplabv3", "vit", "gpt2", "llama"]


def only_names(args, groups, usual):
    """Returns the names of the groups in --only, or the usual ones."""
    names = args.only.split(",") if args.only else usual
    for name in names:
        if name not in groups:
            sys.exit(f"run.sh: --only: expected some of {','.join(groups)}, got {name!r}")
    return names


def chosen_groups(args):
    """Returns the names of the chosen groups, each once; --bf16 adds their bf16 variants."""
    names = only_names(args, GROUPS, USUAL + LARGE * args.large + ["demo"] * args.demo)
    names += [f"{name}-bf16" for name in names if args.bf16 and f"{name}-bf16" in GROUPS]
    return list(dict.fromkeys(names))


# ---- the machine ----

def cpu_seconds():
    """Returns seconds over all cores: elapsed, busy, and used by our own processes."""
    with open("/proc/stat") as file:
        ticks = list(map(int, file.readline().split()[1:9]))
    own = os.times()
    scale = 1 / os.sysconf("SC_CLK_TCK")
    return sum(ticks) * scale, (sum(ticks) - ticks[3] - ticks[4]) * scale, sum(own[:4])


def others_percent(before, after):
    """Returns the percentage of the cores' time that other processes used."""
    passed, busy, own = (late - early for early, late in zip(before, after))
    return max(0.0, 100 * (busy - own) / max(passed, 1e-9))


def cpuinfo(key):
    """Returns the first processor's value, "" if there is none."""
    with open("/proc/cpuinfo") as file:
        found = re.search(rf"^{key}\s*: (.*)$", file.read(), re.M)
    return found.group(1) if found else ""


def help_openblas():
    """Sets the CPU type for Debian's OpenBLAS, which PyTorch uses: on a CPU newer than itself it falls back to SSE3, which is four times slower."""
    if "avx512f" in cpuinfo("flags").split():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


def machine():
    info = dict(line.split(None, 1) for line in output([TERN, "info"]).splitlines())
    return {"cpu": cpuinfo("model name") or platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "linux": platform.release(), "tern": info["tern"], "oneDNN": info["oneDNN"]}


def check_build(who):
    if not os.access(TERN, os.X_OK):
        sys.exit(f"{who}: {TERN} does not exist: build first, or set TERN_BUILD to the build folder")


# ---- rounds ----

# The tolerance between losses of the same work, in f32 and in bf16, which has 8 bits. The first loss shows that networks, weights and data are
# the same; the last one shows that all have trained.
APART = {"loss_first": (1e-4, 2e-2), "loss_last": (1e-2, 1e-1)}


def other_work(found, field="loss_first"):
    """Returns a message if a loss shows that the peers did not do the same work, else None."""
    losses = {peer: said[field] for peer, said in found.items() if field in said}
    half = any(said.get("dtype") == "bf16" for said in found.values())
    if any(loss is None or loss != loss for loss in losses.values()):
        return f"{field} is not a number: {losses}"
    if losses and max(losses.values()) - min(losses.values()) > APART[field][half] * max(1, *losses.values()):
        return f"{field} is {losses}"
    return None


def run_round(jobs, peers, values, fields=("loss_first",)):
    """Runs each job on every peer in turn and appends to values[job][peer][field]. Returns messages where these losses differ."""
    complaints = []
    for what, *arguments in jobs:
        found = {peer.name: getattr(peer, what)(*arguments) for peer in peers}
        found = {peer: said for peer, said in found.items() if said}
        for peer, said in found.items():
            fields_of = values.setdefault((what, *arguments), {}).setdefault(peer, {})
            for field, value in said.items():
                fields_of.setdefault(field, []).append(value)
        complaints += filter(None, (other_work(found, field) for field in fields))
    return complaints


def measure(rows, peers, rounds, say, fields=("loss_first",), keep=lambda values, others: None, used=lambda: cpu_seconds()):
    """Returns the values, the load by other processes, and messages about differing work, which it also prints; calls `keep` after each round.
    `used` is another cpu_seconds, for peers that keep their processes."""
    jobs = list(dict.fromkeys(row.job for row in rows))
    values, others, complaints = {}, [], []
    for number in range(rounds):
        before = used()
        new = run_round(jobs, peers, values, fields)
        others.append(others_percent(before, used()))
        say(f"round {number + 1} of {rounds}: others used {others[-1]:.0f} % of the cores meanwhile")
        for text in new:
            say(f"NOT THE SAME WORK: {text}")
        complaints += new
        keep(values, others)
    return values, others, complaints


# ---- the table ----

def samples(values, job, peer, field):
    """Returns a peer's samples; for a peer without windows, those with plain memory."""
    what, *arguments = job
    plain = (what, arguments[0], "plain") if what == "all_reduce" else job
    own = values.get(job, {}).get(peer) or values.get(plain, {}).get(peer) or {}
    return own.get(field, [])


def summary(rows, names, values):
    """Returns for each row: label, unit, samples per peer, ratios of the medians to tern's, the best peer, tern's median ratio to its bound."""
    lines = []
    for row in rows:
        found = {name: samples(values, row.job, name, row.field) for name in names}
        ours = found[names[0]]
        ratios = {name: statistics.median(one) / statistics.median(ours) for name, one in found.items() if one and ours}
        bound = samples(values, row.job, names[0], ("bound", row.field))
        lines.append({"row": row.label, "unit": row.unit, "samples": found, "ratio": ratios, "goal": row.goal,
                      "best": min(names[1:], key=lambda name: ratios.get(name, float("inf"))) if len(ratios) > 1 else None,
                      "bound_ratio": statistics.median(bound) if bound else None})
    return lines


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def cell(found):
    return f"{number(statistics.median(found))} ({number(min(found))}..{number(max(found))})" if found else "-"


def verdict(line):
    if line["bound_ratio"]:
        return f"{line['bound_ratio']:.2f} of the bound"
    if not line["goal"] or not line["best"]:
        return ""
    met = line["ratio"][line["best"]] >= line["goal"]
    return f"goal {line['goal']:.2f}: {'met' if met else 'not met'}"


def table(lines):
    """Returns a text with a line for tern and each peer, best first. A ratio above 1 means that tern is faster or smaller."""
    text = []
    for line in lines:
        ours, *names = line["samples"]
        names = sorted((name for name in names if line["samples"][name]), key=lambda name: line["ratio"].get(name, 0))
        text.append([f"{line['row']} [{line['unit']}]", ours, cell(line["samples"][ours]), "", verdict(line)])
        text += [["", name, cell(line["samples"][name]), f"{line['ratio'][name]:.2f}" if line["ratio"] else "", ""] for name in names]
    widths = [max(map(len, column)) for column in zip(*text)]
    return "\n".join("  ".join(part.ljust(width) for part, width in zip(one, widths)).rstrip() for one in text)


def profiles(rows, *options):
    """Yields the output of `tern bench step --profile` for each step in the rows."""
    for what, *arguments in dict.fromkeys(row.job for row in rows):
        if what == "step":
            yield launched(2, TERN, "bench", "step", *step_options(*arguments), *options)


def parse_rounds(groups, rounds, *own):
    """Reads the options of a run.sh that measures groups in rounds; `own` are options of its own, (name, keywords) each."""
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=rounds)
    parser.add_argument("--only", metavar="NAME,..", help=f"some of {','.join(groups)}")
    for name, keywords in own:
        parser.add_argument(name, **keywords)
    parser.add_argument("--json", metavar="FILE", help="write all measurements")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("rounds: expected 1 or more")
    return args


def parse():
    return parse_rounds(GROUPS, 3, ("--peers", dict(metavar="WORD,..", help="peers whose names contain any of these: 1.13,compile")),
                        ("--large", dict(action="store_true", help="also steps that take seconds")),
                        ("--demo", dict(action="store_true", help="also the demo's 4 epochs")),
                        ("--bf16", dict(action="store_true", help="also the steps in bf16")),
                        ("--profile", dict(action="store_true", help="profile the kernels of tern's steps")))


NOTES = """
ratio: the peer's median divided by tern's, best peer first. The bound is a read-add-write pass of all ranks at the same time. One thread per
rank. MPI ranks are bound to cores if there are enough; otherwise Open MPI runs with --oversubscribe --bind-to none."""


def main():
    args = parse()
    check_build("run.sh")
    names = chosen_groups(args)
    rows = [row for name in names for row in GROUPS[name]]
    help_openblas()
    with tempfile.TemporaryDirectory() as folder:
        llmc = find_llmc(folder) if "llmc" in names else []
        peers, absent = find_peers(folder, args.peers.split(",") if args.peers else ())
        peers += llmc
        about = machine()
        print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
        for line in absent:
            print(line, flush=True)
        values, others, complaints = measure(rows, peers, args.rounds, lambda text: print(text, flush=True))
    lines = summary(rows, [peer.name for peer in peers], values)
    print(f"\n{table(lines)}\n{NOTES} OPENBLAS_CORETYPE is {os.environ.get('OPENBLAS_CORETYPE', 'not set')}.")
    if args.profile:
        for text in profiles(rows, "--profile"):
            print(f"\n{text.strip()}")
    if args.json:
        found = {"machine": about, "others_percent": others, "other_work": complaints, "rows": lines}
        if args.profile:
            found["profiles"] = list(map(json.loads, profiles(rows, "--profile=shapes", "--json")))
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)
    if complaints:
        sys.exit(1)


if __name__ == "__main__":
    main()
