"""What run.sh does: rounds of jobs, each by every peer that can do it, and the table."""
import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("TERN_BUILD", os.path.join(HERE, "..", "..", "build")))
TERN = os.path.join(BUILD, "tern")
DEBIAN_PYTHON = "/usr/bin/python3"
SIZES = {4: "4 B", 1 << 20: "1 MB", 25 << 20: "25 MB"}
STEPS = {"mlp": (64, 100), "resnet18": (32, 8)}  # batch a rank, steps that count

# A job is (what, *arguments); a row is one field of what a job's peers say: (label, unit, job, field).
MLP, RESNET, DEMO = ("step", "mlp"), ("step", "resnet18"), ("demo",)
ROWS = [
    ("MLP step, batch 64 x 2", "ms", MLP, "median_ms"),
    ("MLP first step after starting", "ms", MLP, "first_step_ms"),
    ("MLP peak memory of a rank", "MB", MLP, "peak_rss_mb"),
    ("ResNet-18 step, batch 32 x 2", "ms", RESNET, "median_ms"),
    ("ResNet-18 peak memory of a rank", "MB", RESNET, "peak_rss_mb"),
    *((f"all_reduce {name}, {ranks} ranks, {memory}", "us", ("all_reduce", ranks, memory), size)
      for ranks in (2, 8) for memory in ("window", "plain") for size, name in reversed(SIZES.items())),
]
BF16_ROWS = [
    ("MLP step in bf16", "ms", ("step", "mlp", "bf16"), "median_ms"),
    ("ResNet-18 step in bf16", "ms", ("step", "resnet18", "bf16"), "median_ms"),
    ("ResNet-18 peak memory of a rank in bf16", "MB", ("step", "resnet18", "bf16"), "peak_rss_mb"),
]
DEMO_ROW = ("demo, an epoch on 2 ranks", "s", DEMO, "epoch_s")


# ---- peers ----

def output(argv, **options):
    """What a command prints; its failure, or ten minutes without an end, ends the bench."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600,
                          **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def launched(ranks, *argv, **environment):
    """Under `tern run`, its own start included."""
    argv = [TERN, "run", "-n", str(ranks), *map(str, argv)]
    return output(argv, env={**os.environ, **environment, "TERN_STARTED_NS": str(time.monotonic_ns())})


def by_size(text):
    """An all_reduce's lines: bytes -> microseconds, and the ratio to the bound where one was measured."""
    lines = [json.loads(line) for line in text.splitlines()]
    bounds = {("bound", line["bytes"]): line["bound_ratio"] for line in lines if line.get("bound_ratio")}
    return {**{line["bytes"]: line["median_us"] for line in lines}, **bounds}


def epoch(text):
    return {"epoch_s": float(re.search(r"^epoch 1 .* ([\d.]+) s$", text, re.M).group(1))}


class Tern:
    name = "tern"

    def step(self, model, dtype="f32"):
        batch, steps = STEPS[model]
        return json.loads(launched(2, TERN, "bench", "step", "--model", model, "--batch", batch, "--steps", steps, "--dtype", dtype,
                                   "--json"))

    def all_reduce(self, ranks, memory):
        sizes = ",".join(map(str, SIZES))
        return by_size(launched(ranks, TERN, "bench", "all_reduce", "--sizes", sizes, "--memory", memory, "--json"))

    def demo(self):
        return epoch(launched(2, os.path.join(BUILD, "examples", "02_fashion"), 1))


# PyTorch's oneDNN dies of an illegal instruction where a virtual machine has AMX but hides its sizes (CPUID's leaf 0x1d).
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def runs_bf16(python):
    product = "import torch; print(torch.nn.Linear(784, 1024).bfloat16()(torch.randn(64, 784).bfloat16()).sum())"
    return subprocess.run([python, "-c", product], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class Torch:
    def __init__(self, python, version, folder):
        self.python, self.name, self.folder = python, f"PyTorch {version}", folder
        self.environment = {} if runs_bf16(python) else WITHOUT_AMX

    def launched(self, ranks, script, *argv):
        meet = tempfile.mktemp(dir=self.folder)
        return launched(ranks, self.python, os.path.join(HERE, script), *argv, "--meet", meet, **self.environment)

    def step(self, model, dtype="f32"):
        batch, steps = STEPS[model]
        return json.loads(self.launched(2, "step.py", "--model", model, "--batch", batch, "--steps", steps, "--dtype", dtype))

    def all_reduce(self, ranks, memory):
        """Gloo knows no windows; both rows show the same."""
        return by_size(self.launched(ranks, "all_reduce.py", "--sizes", ",".join(map(str, SIZES)))) if memory == "plain" else None

    def demo(self):
        return epoch(self.launched(2, "fashion.py", "--epochs", 1))


class Mpi:
    def __init__(self, folder):
        self.program = os.path.join(folder, "all_reduce_mpi")
        output(["mpicc", "-O2", "-o", self.program, os.path.join(HERE, "all_reduce_mpi.c")])
        self.name = "Open MPI " + re.search(r"[\d.]+", output(["mpirun", "--version"])).group()

    def step(self, model, dtype="f32"):
        return None

    def all_reduce(self, ranks, memory):
        if memory != "plain":
            return None
        fits = ranks <= len(os.sched_getaffinity(0))
        binding = ["--bind-to", "core"] if fits else ["--oversubscribe", "--bind-to", "none"]
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        return by_size(output(["mpirun", *root, *binding, "-n", str(ranks), self.program, *map(str, SIZES)]))

    def demo(self):
        return None


def torch_version(python):
    """None where it has no torch."""
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__.split('+')[0])"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def find_peers(folder):
    """Those that are here, and a line for each that is not."""
    peers, absent = [Tern()], []
    for python in filter(None, (DEBIAN_PYTHON, os.environ.get("TORCH_PYTHON"))):
        version = torch_version(python)
        if version:
            peers.append(Torch(python, version, folder))
            if peers[-1].environment:
                absent.append(f"{peers[-1].name} without AMX, on which it dies here")
        else:
            absent.append(f"no PyTorch: {python} has no torch (./scripts/setup.sh bench)")
    if shutil.which("mpicc") and shutil.which("mpirun"):
        peers.append(Mpi(folder))
    else:
        absent.append("no Open MPI: mpicc or mpirun is missing (./scripts/setup.sh bench)")
    return peers, absent


# ---- the machine ----

def cpu_seconds():
    """Of all cores together: that passed, that were busy, that our own processes used."""
    with open("/proc/stat") as file:
        ticks = list(map(int, file.readline().split()[1:9]))
    own = os.times()
    scale = 1 / os.sysconf("SC_CLK_TCK")
    return sum(ticks) * scale, (sum(ticks) - ticks[3] - ticks[4]) * scale, sum(own[:4])


def others_percent(before, after):
    """How much of the cores was used by what is not ours."""
    passed, busy, own = (late - early for early, late in zip(before, after))
    return max(0.0, 100 * (busy - own) / max(passed, 1e-9))


def cpuinfo(key):
    """The first processor's value, "" where there is none."""
    with open("/proc/cpuinfo") as file:
        found = re.search(rf"^{key}\s*: (.*)$", file.read(), re.M)
    return found.group(1) if found else ""


def help_openblas():
    """Debian's OpenBLAS, which PyTorch multiplies with, takes a CPU newer than itself for one with SSE3 only, four times slower."""
    if "avx512f" in cpuinfo("flags").split():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


def machine():
    info = dict(line.split(None, 1) for line in output([TERN, "info"]).splitlines())
    return {"cpu": cpuinfo("model name") or platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "linux": platform.release(), "tern": info["tern"], "oneDNN": info["oneDNN"]}


# ---- rounds ----

def check_same_work(found):
    """The first step's loss tells that nets, weights and data are the same; in bf16 to its 8 bits."""
    losses = {peer: said["loss_first"] for peer, said in found.items() if "loss_first" in said}
    half = any(said.get("dtype") == "bf16" for said in found.values())
    if losses and max(losses.values()) - min(losses.values()) > (2e-2 if half else 1e-4):
        sys.exit(f"not the same work: the losses of the first step are {losses}")


def run_round(jobs, peers, values):
    """Each job by every peer in turn; appends to values[job][peer][field]."""
    for what, *arguments in jobs:
        found = {peer.name: getattr(peer, what)(*arguments) for peer in peers}
        found = {peer: said for peer, said in found.items() if said}
        check_same_work(found)
        for peer, said in found.items():
            fields = values.setdefault((what, *arguments), {}).setdefault(peer, {})
            for field, value in said.items():
                fields.setdefault(field, []).append(value)


def measure(rows, peers, rounds, say):
    jobs = list(dict.fromkeys(job for _, _, job, _ in rows))
    values, others = {}, []
    for number in range(rounds):
        before = cpu_seconds()
        run_round(jobs, peers, values)
        others.append(others_percent(before, cpu_seconds()))
        say(f"round {number + 1} of {rounds}: others used {others[-1]:.0f} % of the cores meanwhile")
    return values, others


# ---- the table ----

def samples(values, job, peer, field):
    """What a peer said; one without windows is compared by its ordinary memory."""
    what, *arguments = job
    plain = (what, arguments[0], "plain") if what == "all_reduce" else job
    own = values.get(job, {}).get(peer) or values.get(plain, {}).get(peer) or {}
    return own.get(field, [])


def summary(rows, names, values):
    """A row: label, unit, a list of samples a peer, the ratio of medians to tern's, tern's median ratio to its bound."""
    lines = []
    for label, unit, job, field in rows:
        found = {name: samples(values, job, name, field) for name in names}
        ours = statistics.median(found[names[0]])
        ratios = {name: statistics.median(one) / ours for name, one in found.items() if one}
        bound = samples(values, job, names[0], ("bound", field))
        lines.append({"row": label, "unit": unit, "samples": found, "ratio": ratios,
                      "bound_ratio": statistics.median(bound) if bound else None})
    return lines


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def cell(found):
    return f"{number(statistics.median(found))} ({number(min(found))}..{number(max(found))})" if found else "-"


def table(lines, names):
    """Text: medians with (lowest..highest), and above which ratio tern is the faster or smaller one."""
    head = ["median (lowest..highest)", "unit", names[0], "of bound"]
    for name in names[1:]:
        head += [name, "ratio"]
    text = [head]
    for line in lines:
        bound = line["bound_ratio"]
        one = [line["row"], line["unit"], cell(line["samples"][names[0]]), f"{bound:.2f}" if bound else ""]
        for name in names[1:]:
            one += [cell(line["samples"][name]), f"{line['ratio'][name]:.2f}" if name in line["ratio"] else ""]
        text.append(one)
    widths = [max(map(len, column)) for column in zip(*text)]
    return "\n".join("  ".join(part.ljust(width) for part, width in zip(one, widths)).rstrip() for one in text)


def profiles(*options):
    """What `tern bench step --profile` says of each model."""
    for model, (batch, steps) in STEPS.items():
        yield launched(2, TERN, "bench", "step", "--model", model, "--batch", batch, "--steps", steps, *options)


def main():
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--profile", action="store_true", help="what each kernel of tern's steps takes")
    parser.add_argument("--demo", action="store_true", help="an epoch of the demo's net too")
    parser.add_argument("--bf16", action="store_true", help="the steps in bf16 too")
    parser.add_argument("--json", metavar="FILE", help="everything measured")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("rounds: expected 1 or more")
    if not os.access(TERN, os.X_OK):
        sys.exit(f"run.sh: {TERN} is not there: build first, or say where the build is with TERN_BUILD")
    rows = ROWS + BF16_ROWS * args.bf16 + [DEMO_ROW] * args.demo
    help_openblas()
    with tempfile.TemporaryDirectory() as folder:
        peers, absent = find_peers(folder)
        names = [peer.name for peer in peers]
        about = machine()
        print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
        for line in absent:
            print(line, flush=True)
        values, others = measure(rows, peers, args.rounds, lambda text: print(text, flush=True))
    lines = summary(rows, names, values)
    print("\n" + table(lines, names))
    print("\nratio: the peer's median by tern's. of bound: tern's time by that of a read-add-write pass of all ranks at once.\n"
          "One thread a rank. Open MPI is bound to cores where the ranks fit on them, else --oversubscribe --bind-to none. "
          f"OPENBLAS_CORETYPE is {os.environ.get('OPENBLAS_CORETYPE', 'not set')}.")
    if args.profile:
        for text in profiles("--profile"):
            print(f"\n{text.strip()}")
    if args.json:
        found = {"machine": about, "others_percent": others, "rows": lines}
        if args.profile:
            found["profiles"] = list(map(json.loads, profiles("--profile=shapes", "--json")))
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
