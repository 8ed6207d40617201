"""Implements run.sh: rounds of steps by tern and PyTorch on one GPU, tern's kernels compared with copies, and the CUDA calls of a step."""
import argparse
import datetime
import glob
import json
import os
import re
import site
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../peers"))
from peers import BUILD, TERN, finished, output, torch_version  # noqa: E402
from run import Row, measure, table, summary  # noqa: E402

# name -> title, (model, batch, size, dtype, steps, warm-up steps in which an idle GPU reaches its clock rate), the goal: PyTorch's time divided
# by tern's
STEPS = {
    "resnet50": ("ResNet-50, batch 256 of 224x224, bf16", ("resnet50", 256, "224", "bf16", 30, 10), 1.0),
    "unet3d": ("3-D U-Net, batch 8 of 64x160x160, bf16", ("unet3d", 8, "64x160x160", "bf16", 20, 10), 1.0),
    "mlp": ("MLP, batch 64, f32", ("mlp", 64, None, "f32", 5000, 10000), 3.0),
}
# Steps with large calls of kernels that have only small calls above: cross entropy of a map, Dice.
LARGE = [("deeplabv3", 8, "513", "bf16", 5, 5), ("unet3d", 16, "64x160x160", "bf16", 5, 5)]
PARAMETERS = 100000000  # for the optimizers that are compared with a copy
# Kernels that are limited by memory, the goal for them in percent of a copy's bandwidth, and the bytes of a call that exceed every cache.
MEMORY_BOUND = ("batch_norm", "batch_norm_grad", "cross_entropy", "cross_entropy_grad", "dice_loss", "dice_loss_grad", "sgd", "adam")
COPY_GOAL, OUT_OF_CACHE = 85, 150e6
# Calls in which the CPU waits for the GPU; calls in which it may wait: copies from or to host memory that is not pinned, and allocating or freeing
# memory; and calls that query whether the GPU is done, which amount to waiting if they are repeated. Copies within the GPU and stream-ordered
# allocations do not wait.
WAITS = re.compile(r"cu(Ctx|Stream|Event)Synchronize|cuMemcpy(HtoD|DtoH|HtoA|AtoH|2D|2DUnaligned|3D)?(_v2)?$")
MAY_WAIT = re.compile(r"cuMemcpy(HtoD|DtoH|HtoA|AtoH|2D|3D)?Async|cuMem(Alloc|AllocHost|AllocPitch|Free|FreeHost|Unmap|Host\w+)(_v2)?$")
LOOKS = re.compile(r"cu(Stream|Event)Query")
# The calls per step of the bench's own clock.
CLOCK = {"cuEventCreate": 1, "cuEventRecord": 1, "cuEventSynchronize": 2, "cuEventElapsedTime": 1, "cuEventElapsedTime_v2": 1, "cuEventDestroy_v2": 1}
TRACED, TRACED_WARM_UP = (10, 30), 3
SHOWN = 24  # kernels of a profile
WAYS, COMPILED = ["graph", "compile", "eager", "autotune"], ["compile", "autotune"]  # all ways of PyTorch; those with torch.compile
LIMIT, LONG_LIMIT = 180, 1800  # seconds for a process, and for one in the way "autotune"


def say(text):
    print(text, flush=True)


def options(model, batch, size, dtype, steps, warm_up):
    return ["--model", model, "--batch", str(batch), "--dtype", dtype, "--steps", str(steps), "--warm-up", str(warm_up),
            *(["--size", size] if size else [])]


class Peer:
    """Returns its measurements, or None after a failure, which it prints: the other peers are still measured. A failed job is not tried again."""

    environment, limit = None, LIMIT

    def __init__(self, name):
        self.name, self.failed = name, []

    def step(self, *job):
        if job in self.failed:
            return None
        try:
            return json.loads(output(self.command(*job), env=self.environment, timeout=self.limit))
        except (SystemExit, ValueError, subprocess.TimeoutExpired) as failure:
            self.failed.append(job)
            say(f"FAILED: {self.name}: {failure}")
            return None


class Tern(Peer):
    def __init__(self):
        super().__init__("tern")
        self.environment = {"TERN_GRAPHS": "1", **os.environ}

    def command(self, *job):
        return [TERN, "bench", "step", "--device", "cuda", *options(*job), "--json"]

    def profile(self, job):
        environment = {**self.environment, "TERN_GRAPHS": "0"}
        return json.loads(output([*self.command(*job), "--profile=shapes"], env=environment, timeout=LIMIT))["profile"]


class Torch(Peer):
    def __init__(self, python, version, way):
        super().__init__(f"PyTorch {version}, {way}")
        self.python, self.way = python, way
        self.limit = LONG_LIMIT if way == "autotune" else LIMIT

    def command(self, *job):
        return [self.python, os.path.join(HERE, "step.py"), *options(*job), "--way", self.way]


def find_torches(python, ways):
    """Returns a peer for each of the ways that this PyTorch supports, and a note on what it lacks, or None."""
    version = torch_version(python)
    if not version:
        return [], f"no PyTorch: {python} cannot import torch, so tern is measured alone (TORCH_PYTHON says which python3 can)"
    note = None
    if subprocess.run([python, "-c", "import triton"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        ways = [way for way in ways if way not in COMPILED]
        note = f"no torch.compile, PyTorch's fastest way: {python} has no triton"
    return [Torch(python, version, way) for way in ways], note


# ---- tern's kernels ----

def is_large(row):
    return row["kernel"] in MEMORY_BOUND and row["bytes_a_call"] >= OUT_OF_CACHE


def verdict(row):
    return f"  goal {COPY_GOAL}: {'met' if row['copy_percent'] >= COPY_GOAL else 'not met'}" if is_large(row) else ""


def say_profile(title, said):
    say(f"\n{title}: copies {said['machine_copy_gbs']:.0f} GB/s, products {said['machine_gflops'] / 1e3:.0f} TFLOPS, a step {said['step_ms']:.3f} ms, "
        f"outside of kernels {said['outside_ms']:.3f} ms")
    say("% copy: relative to a copy of as many bytes, timed call by call, launch included. % once: the same, but operands that a second pass of a "
        "batch norm\nreads again count once.")
    say(f"{'kernel':24}{'calls':>8}{'ms':>10}{'% step':>8}{'TFLOPS':>9}{'MB':>9}{'GB/s':>9}{'% copy':>8}{'% once':>8}")
    for number, row in enumerate(said["rows"]):
        if number >= SHOWN and not is_large(row):
            continue
        say(f"{row['kernel']:24}{row['calls']:8.0f}{row['ms']:10.3f}{row['step_percent']:8.1f}{row['gflops'] / 1e3:9.1f}{row['bytes_a_call'] / 1e6:9.1f}"
            f"{row['gbs']:9.0f}{row['copy_percent']:8.1f}{row['once_percent']:8.1f}  {row['shapes']}{verdict(row)}")


def profile(title, tern, job):
    said = tern.profile(job)
    say_profile(title, said)
    return said


def optimizers(tern):
    """Measures the optimizers and returns rows as of a profile."""
    argv = [os.path.join(BUILD, "bench_parts"), "optimizer", "--elements", str(PARAMETERS), "--json"]
    text = output(argv, env={**os.environ, "TERN_GRAPHS": "0", "TERN_DEVICE": "cuda"}, timeout=LIMIT)
    rows = [{"kernel": line["optimizer"], "shapes": str(line["elements"]), "ms": line["median_ms"], "gbs": line["gbs"],
             "bytes_a_call": line["gbs"] * line["median_ms"] * 1e6, "copy_gbs": line["copy_gbs"],
             "copy_percent": 100 * line["gbs"] / line["copy_gbs"]} for line in map(json.loads, text.splitlines())]
    for row in rows:
        say(f"{row['kernel']} of {row['shapes']} parameters: {row['ms']:.3f} ms, {row['gbs']:.0f} GB/s, {row['copy_percent']:.1f} % of a copy's{verdict(row)}")
    return rows


def say_goals(found):
    """Prints the result for each kernel with a goal, over all profiles."""
    rows = [row for net in found["nets"].values() for row in net.get("profile", {}).get("rows", [])] + found["kernels"]
    say("")
    for kernel in MEMORY_BOUND:
        percents = [row["copy_percent"] for row in rows if row["kernel"] == kernel and is_large(row)]
        if percents:
            say(f"{kernel}: {min(percents):.0f} to {max(percents):.0f} % of a copy, goal {COPY_GOAL}: {'met' if min(percents) >= COPY_GOAL else 'not met'}")
        else:
            say(f"{kernel}: no call large enough to judge (--only kernels has some)")


# ---- the CUDA calls of a step ----

def build_trace(folder):
    """Builds trace.c with a toolkit's CUPTI, or with PyTorch's, whose library file exists only under its versioned name."""
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    homes = [cuda, f"{cuda}/extras/CUPTI"] + [home for packages in site.getsitepackages() for home in glob.glob(f"{packages}/nvidia/*")]
    found = [library for home in homes for lib in ("lib64", "lib") for library in glob.glob(f"{home}/{lib}/libcupti.so*")]
    if not found:
        sys.exit(f"no libcupti.so in {', '.join(homes)}: CUDA_HOME says where there is one")
    library = os.path.join(folder, "libtrace.so")
    output(["cc", "-shared", "-fPIC", *(f"-I{home}/include" for home in homes), os.path.join(HERE, "trace.c"), "-o", library, found[0],
            f"-Wl,-rpath,{os.path.dirname(found[0])}"])
    return library


def calls(tern, job, steps, library, folder):
    path = os.path.join(folder, f"calls{steps}")
    done = finished(tern.command(*job[:4], steps, TRACED_WARM_UP), env={**tern.environment, "CUDA_INJECTION64_PATH": library, "TRACE_FILE": path},
                    timeout=LIMIT)
    if not os.path.exists(path):
        sys.exit(f"nothing was counted: {done.stderr.strip() or 'the driver has not loaded ' + library}")
    with open(path) as file:
        return {name: int(count) for count, name in map(str.split, file)}


def step_calls(few, many):
    """Returns the calls of a warm step, without the clock's: the difference between many and few steps, per step."""
    step = {name: (many[name] - few.get(name, 0)) / (TRACED[1] - TRACED[0]) - CLOCK.get(name, 0) for name in many}
    return {name: count for name, count in sorted(step.items()) if count > 0.04}


def told(step, kind):
    counts = {name: count for name, count in step.items() if kind.match(name)}
    return f"{sum(counts.values()):.4g}" + (f" ({', '.join(counts)})" if counts else "")


def trace(tern, job, library, folder):
    step = step_calls(*(calls(tern, job, steps, library, folder) for steps in TRACED))
    say(f"a step asks for {', '.join(f'{count:.4g} {name}' for name, count in step.items())}")
    say(f"in which it waits for the GPU: {told(step, WAITS)}, may wait: {told(step, MAY_WAIT)}, looks whether it is through: {told(step, LOOKS)}")
    return step


def check_graphs(tern, step):
    if tern.environment["TERN_GRAPHS"] == "1" and not any(name.startswith("cuGraphLaunch") for name in step):
        sys.exit("TERN_GRAPHS=1 and no graph was launched")


# ---- the program ----

def some_of(names):
    def read(text):
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(f"expected some of {','.join(names)}, got {name!r}")
        return text.split(",")
    return read


def parse():
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--only", metavar="NAME,..", type=some_of([*STEPS, "kernels"]), default=[*STEPS], help="some of resnet50, unet3d, mlp and kernels")
    parser.add_argument("--ways", metavar="WAY,..", type=some_of(WAYS), default=WAYS[:3], help="how PyTorch runs its steps")
    parser.add_argument("--profile", action="store_true", help="profile tern's kernels and count the CUDA calls of a step")
    parser.add_argument("--json", metavar="FILE", help="write all measurements after each round")
    return parser.parse_args()


def rows_of(name):
    title, job, goal = STEPS[name]
    return [Row(f"{title}, a step", "ms", ("step", *job), "median_ms", goal), Row(f"{title}, memory", "MB", ("step", *job), "tensor_mb")]


def clocks():
    """Returns the GPU's current clock rates; None without nvidia-smi."""
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw"
    try:
        return output(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], timeout=LIMIT).strip()
    except (SystemExit, OSError, subprocess.TimeoutExpired):
        return None


class Bench:
    """Runs the measurements and saves each result at once."""

    def __init__(self, path, tern, peers):
        self.path, self.tern, self.peers, self.is_well = path, tern, peers, True
        self.found = {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "info": output([TERN, "info"]),
                      "clocks": [clocks()], "nets": {}, "kernels": []}

    def keep(self):
        if self.path:
            with open(self.path, "w") as file:
                json.dump(self.found, file, indent=1)

    def attempt(self, what, *args):
        """Runs a measurement; a failure does not end the others."""
        try:
            what(*args)
        except (Exception, SystemExit) as failure:
            say(f"FAILED: {type(failure).__name__}: {failure}")
            self.is_well = False
        self.keep()

    def compare(self, name, rounds):
        rows, names, net = rows_of(name), [peer.name for peer in self.peers], self.found["nets"][name]

        def keep(values, others):
            net.update(rows=summary(rows, names, values), others_percent=others)
            self.keep()

        complaints = measure(rows, self.peers, rounds, say, ("loss_first", "loss_last"), keep)[2]
        net["other_work"] = complaints
        self.found["clocks"].append(clocks())
        self.is_well &= not complaints and not self.tern.failed
        say(f"{self.found['clocks'][-1] or 'nvidia-smi says no clocks'}\n\n{table(net['rows'])}\n")

    def look_into(self, name):
        self.found["nets"][name]["profile"] = profile(STEPS[name][0], self.tern, STEPS[name][1])

    def look_at_calls(self, name):
        with tempfile.TemporaryDirectory() as folder:
            step = trace(self.tern, STEPS[name][1], build_trace(folder), folder)
        self.found["nets"][name]["trace"] = step
        check_graphs(self.tern, step)

    def look_at_large(self, job):
        self.found["kernels"] += profile(" ".join(map(str, job[:4])), self.tern, job)["rows"]

    def look_at_optimizers(self):
        self.found["kernels"] += optimizers(self.tern)

    def net(self, name, rounds, profiles):
        say(STEPS[name][0])
        self.found["nets"][name] = {}
        self.attempt(self.compare, name, rounds)
        if profiles:
            self.attempt(self.look_into, name)
            self.attempt(self.look_at_calls, name)

    def kernels(self):
        self.attempt(self.look_at_optimizers)
        for job in LARGE:
            self.attempt(self.look_at_large, job)


def main():
    args = parse()
    tern = Tern()
    torches, note = find_torches(os.environ.get("TORCH_PYTHON", sys.executable), args.ways)
    bench = Bench(args.json, tern, [tern, *torches])
    say("\n".join(filter(None, [bench.found["date"], bench.found["info"].strip(), bench.found["clocks"][0], note])))
    for name in args.only:
        bench.kernels() if name == "kernels" else bench.net(name, args.rounds, args.profile)
    if args.profile or "kernels" in args.only:
        say_goals(bench.found)
    bench.keep()
    sys.exit(not bench.is_well)


if __name__ == "__main__":
    main()
