"""What run.sh does: rounds of steps by tern and by PyTorch on one GPU in turn, tern's kernels beside a copy, and what a step asks of CUDA."""
import argparse
import glob
import json
import os
import site
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../peers"))
from peers import TERN, output  # noqa: E402
from run import Row, measure, table, summary  # noqa: E402

# name -> title, (model, batch, size, dtype, steps), the least ratio to PyTorch that tern wants
STEPS = {
    "resnet50": ("ResNet-50, batch 256 of 224x224, bf16", ("resnet50", 256, "224", "bf16", 30), 1.0),
    "unet3d": ("3-D U-Net, batch 8 of 64x160x160, bf16", ("unet3d", 8, "64x160x160", "bf16", 20), 1.0),
    "mlp": ("MLP, batch 64, f32", ("mlp", 64, None, "f32", 500), 3.0),
}
# Kernels that only move memory, the least part of a copy's bandwidth that tern wants of them in percent, and bytes of a call that no cache holds.
MEMORY_BOUND = {"batch_norm", "batch_norm_grad", "cross_entropy", "cross_entropy_grad", "dice_loss", "dice_loss_grad", "sgd", "adam"}
COPY_GOAL, OUT_OF_CACHE = 85, 150e6
# Calls in which the processor waits for the GPU.
WAITS = ("cuStreamSynchronize", "cuCtxSynchronize", "cuCtxSynchronize_v2", "cuEventSynchronize", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpy")
# What the bench's own clock asks for in a step.
CLOCK = {"cuEventCreate": 1, "cuEventRecord": 1, "cuEventSynchronize": 2, "cuEventElapsedTime": 1, "cuEventElapsedTime_v2": 1, "cuEventDestroy_v2": 1}
TRACED = (10, 30)
SHOWN = 24  # kernels of a profile


def say(text):
    print(text, flush=True)


def options(model, batch, size, dtype, steps):
    return ["--model", model, "--batch", str(batch), "--dtype", dtype, "--steps", str(steps), *(["--size", size] if size else [])]


class Tern:
    name = "tern"

    def __init__(self):
        self.environment = {"TERN_GRAPHS": "1", **os.environ}

    def command(self, *job):
        return [TERN, "bench", "step", "--device", "cuda", *options(*job), "--json"]

    def step(self, *job):
        return json.loads(output(self.command(*job), env=self.environment))


class Torch:
    def __init__(self, python, way):
        self.python, self.way = python, way
        self.name = f"PyTorch {output([python, '-c', 'import torch; print(torch.__version__)']).strip()}, {way}"

    def step(self, *job):
        """None where it fails, which is said: tern is measured all the same."""
        try:
            return json.loads(output([self.python, os.path.join(HERE, "step.py"), *options(*job), "--way", self.way]))
        except (SystemExit, ValueError, subprocess.TimeoutExpired) as failure:
            say(f"{self.name}: {failure}")
            return None


# ---- tern's kernels ----

def profile(tern, job):
    said = json.loads(output([*tern.command(*job), "--profile=shapes"], env={**tern.environment, "TERN_GRAPHS": "0"}))["profile"]
    say(f"\ncopy {said['machine_copy_gbs']:.0f} GB/s, product {said['machine_gflops'] / 1e3:.0f} TFLOPS, a step {said['step_ms']:.3f} ms, "
        f"outside of kernels {said['outside_ms']:.3f} ms")
    say(f"{'kernel':24}{'calls':>8}{'ms':>10}{'% step':>8}{'TFLOPS':>9}{'GB/s':>9}{'% copy':>8}")
    for number, row in enumerate(said["rows"]):
        has_goal = row["kernel"] in MEMORY_BOUND and row["bytes_a_call"] >= OUT_OF_CACHE
        if number >= SHOWN and not has_goal:
            continue
        verdict = f"  goal {COPY_GOAL}: {'met' if row['copy_percent'] >= COPY_GOAL else 'not met'}" if has_goal else ""
        say(f"{row['kernel']:24}{row['calls']:8.0f}{row['ms']:10.3f}{row['step_percent']:8.1f}{row['gflops'] / 1e3:9.1f}{row['gbs']:9.0f}"
            f"{row['copy_percent']:8.1f}  {row['shapes']}{verdict}")
    return said


# ---- what a step asks of CUDA ----

def build_trace(folder):
    """By a toolkit's CUPTI, or by the one that PyTorch comes with, whose library has no name but its version's."""
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
    path = os.path.join(folder, "calls")
    output(tern.command(*job[:-1], steps), env={**tern.environment, "CUDA_INJECTION64_PATH": library, "TRACE_FILE": path})
    with open(path) as file:
        return {name: int(count) for count, name in map(str.split, file)}


def trace(tern, job, library, folder):
    """Of a warm step: what more steps ask for more often."""
    few, many = (calls(tern, job, steps, library, folder) for steps in TRACED)
    step = {name: (many[name] - few.get(name, 0)) / (TRACED[1] - TRACED[0]) - CLOCK.get(name, 0) for name in many}
    step = {name: count for name, count in sorted(step.items()) if count > 0.04}
    waits = sum(count for name, count in step.items() if name in WAITS)
    say(f"a step asks for {', '.join(f'{count:.4g} {name}' for name, count in step.items())}: {waits:g} waits")
    return step


def parse():
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--only", metavar="NAME,..", default=",".join(STEPS), help=f"some of {','.join(STEPS)}")
    parser.add_argument("--compile", action="store_true", help="torch.compile in its slowest mode too")
    parser.add_argument("--profile", action="store_true", help="what each of tern's kernels takes, and what a step asks of CUDA")
    parser.add_argument("--json", metavar="FILE", help="everything measured")
    args = parser.parse_args()
    args.names = args.only.split(",")
    for name in args.names:
        if name not in STEPS:
            parser.error(f"--only: expected some of {','.join(STEPS)}, got {name!r}")
    return args


def rows_of(name):
    title, job, goal = STEPS[name]
    return [Row(f"{title}, a step", "ms", ("step", *job), "median_ms", goal), Row(f"{title}, memory", "MB", ("step", *job), "tensor_mb")]


def compare(name, peers, rounds, found):
    rows = rows_of(name)
    values, others = measure(rows, peers, rounds, say)
    lines = summary(rows, [peer.name for peer in peers], values)
    found["rows"] += lines
    found["others_percent"] += others
    say(f"\n{table(lines)}\n")


def look_into(name, tern, found):
    found["profiles"][name] = profile(tern, STEPS[name][1])
    with tempfile.TemporaryDirectory() as folder:
        found["traces"][name] = trace(tern, STEPS[name][1], build_trace(folder), folder)


def attempt(what, *args):
    """One net's failure is not the end of the others'."""
    try:
        what(*args)
    except (Exception, SystemExit) as failure:
        say(f"FAILED: {type(failure).__name__}: {failure}")
        return False
    return True


def keep(path, found):
    if path:
        with open(path, "w") as file:
            json.dump(found, file, indent=1)


def main():
    args = parse()
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    tern = Tern()
    peers = [tern, *(Torch(python, way) for way in ["graph", "eager"] + ["compile"] * args.compile)]
    say(output([TERN, "info"]))
    found = {"others_percent": [], "rows": [], "profiles": {}, "traces": {}}
    is_well = True
    for name in args.names:
        say(STEPS[name][0])
        is_well &= attempt(compare, name, peers, args.rounds, found)
        keep(args.json, found)
        if args.profile:
            is_well &= attempt(look_into, name, tern, found)
            keep(args.json, found)
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
