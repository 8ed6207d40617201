"""The peers of run.sh: each runs a job and returns its measurements, or None if the job does not apply to it."""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("TERN_BUILD", os.path.join(HERE, "..", "..", "build")))
TERN = os.path.join(BUILD, "tern")
DEBIAN_PYTHON = "/usr/bin/python3"
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
NEWEST_PYTHON = os.path.join(os.environ.get("TERN_PEERS") or os.path.join(CACHE, "tern-peers"), "bin", "python")  # scripts/peers.sh
SIZES = {4: "4 B", 1 << 20: "1 MB", 25 << 20: "25 MB"}
# Batch per rank, timed steps.
STEPS = {"mlp": (64, 100), "fashion": (64, 40), "resnet18": (32, 8), "unet3d": (1, 8), "resnet50": (4, 4), "deeplabv3": (4, 2), "vit": (8, 6), "gpt2": (8, 10), "llama": (8, 10)}


def finished(argv, timeout=1800, **options):
    """Runs a command to its end; a failure, or a time-out of half an hour, ends the bench."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
                          **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def output(argv, **options):
    """Returns the output of a command."""
    return finished(argv, **options).stdout


def launched(ranks, *argv, **environment):
    """Runs a command under `tern run` and returns its output; start-up times include the launcher's."""
    argv = [TERN, "run", "-n", str(ranks), *map(str, argv)]
    return output(argv, env={**os.environ, **environment, "TERN_STARTED_NS": str(time.monotonic_ns())})


def step_options(model, dtype, size):
    batch, steps = STEPS[model]
    return ["--model", model, "--batch", batch, "--steps", steps, "--dtype", dtype, *(["--size", size] if size else [])]


def by_size(text):
    """Converts an all_reduce's lines to bytes -> microseconds, with the ratio to the bound if it was measured."""
    lines = [json.loads(line) for line in text.splitlines()]
    bounds = {("bound", line["bytes"]): line["bound_ratio"] for line in lines if line.get("bound_ratio")}
    return {**{line["bytes"]: line["median_us"] for line in lines}, **bounds}


def training(text):
    """Returns the total seconds of a demo's epochs, without its tests."""
    return {"training_s": sum(map(float, re.findall(r"(?m)^epoch \d+ .* ([\d.]+) s$", text)))}


class Peer:
    """One that has none of the jobs."""

    def step(self, model, dtype="f32", size=None):
        return None

    def language(self, layers, width, heads, positions, batch, vocabulary, steps):
        """GPT-2 in one process of two threads."""
        return None

    def all_reduce(self, ranks, memory):
        return None

    def demo(self, epochs):
        return None


class Tern(Peer):
    name = "tern"
    start = staticmethod(launched)  # hosts.py replaces it

    def step(self, model, dtype="f32", size=None):
        return json.loads(self.start(2, TERN, "bench", "step", *step_options(model, dtype, size), "--json"))

    def language(self, layers, width, heads, positions, batch, vocabulary, steps):
        numbers = {"layers": layers, "width": width, "heads": heads, "size": positions, "batch": batch, "vocabulary": vocabulary, "steps": steps, "warm-up": 1}
        options = [word for name, value in numbers.items() for word in (f"--{name}", value)]
        return json.loads(launched(1, TERN, "bench", "step", "--model", "gpt2", *options, "--json", OMP_NUM_THREADS="2"))

    def all_reduce(self, ranks, memory):
        sizes = ",".join(map(str, SIZES))
        return by_size(launched(ranks, TERN, "bench", "all_reduce", "--sizes", sizes, "--memory", memory, "--json"))

    def demo(self, epochs):
        with tempfile.TemporaryDirectory() as folder:  # for the files that it writes
            argv = [TERN, "run", "-n", "2", os.path.join(BUILD, "examples", "02_fashion"), str(epochs)]
            return training(output(argv, cwd=folder))


# PyTorch's oneDNN crashes with an illegal instruction on virtual machines that have AMX but hide its tile sizes (CPUID leaf 0x1d).
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}


FACTS = """import torch
print(torch.__version__.split('+')[0], flush=True)
torch.nn.Linear(784, 1024).bfloat16()(torch.randn(64, 784).bfloat16())
"""


@functools.cache
def torch_facts(python):
    """Returns the version of PyTorch, None without it, and whether it can multiply bf16. One process says both: the import takes seconds."""
    done = subprocess.run([python, "-c", FACTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or None, done.returncode == 0


def torch_version(python):
    return torch_facts(python)[0]


def torch_environment(python):
    return {} if torch_facts(python)[1] else WITHOUT_AMX


class Torch(Peer):
    """One PyTorch in one way to train (world.py's WAYS)."""

    start = staticmethod(launched)

    def __init__(self, python, version, folder, way="default", environment=None):
        self.python, self.folder, self.way = python, folder, way
        self.name = f"PyTorch {version}" if way == "default" else f"PyTorch {version} {way}"
        self.environment = dict(torch_environment(python) if environment is None else environment)
        if way == "compile":  # compiles once per run, not in every round
            self.environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "compiled")

    def launched(self, ranks, script, *argv):
        meet = tempfile.mktemp(dir=self.folder)
        return self.start(ranks, self.python, os.path.join(HERE, script), *argv, "--meet", meet, **self.environment)

    def trained(self, script, *argv):
        """Runs a training script. A network that cannot be compiled gives None in the way "compile"."""
        try:
            return self.launched(2, script, *argv, "--way", self.way)
        except (SystemExit, subprocess.TimeoutExpired) as failure:
            if self.way != "compile":
                raise
            print(f"{self.name} {script} {' '.join(map(str, argv))}: {str(failure).strip().splitlines()[-1]}", flush=True)
            return None

    def step(self, model, dtype="f32", size=None):
        if model == "mlp" and self.way == "channels_last":
            return None
        text = self.trained("step.py", *step_options(model, dtype, size))
        return text and json.loads(text)

    def all_reduce(self, ranks, memory):
        """gloo has no windows, so both kinds of memory show the same measurement."""
        if memory != "plain" or self.way != "default":
            return None
        return by_size(self.launched(ranks, "all_reduce.py", "--sizes", ",".join(map(str, SIZES))))

    def demo(self, epochs):
        text = self.trained("fashion.py", "--epochs", epochs)
        return text and training(text)


class Mpi(Peer):
    """Open MPI or MPICH: Debian installs both under names of their own (mpicc.openmpi, mpicc.mpich)."""

    def __init__(self, folder, kind):
        self.run, self.program = f"mpirun.{kind}", os.path.join(folder, f"all_reduce_{kind}")
        output([f"mpicc.{kind}", "-O2", "-o", self.program, os.path.join(HERE, "all_reduce_mpi.c")])
        version = re.search(r"\d+\.\d[\d.]*", output([self.run, "--version"])).group()
        self.name = f"{'Open MPI' if kind == 'openmpi' else 'MPICH'} {version}"

    @staticmethod
    def is_here(kind):
        return shutil.which(f"mpicc.{kind}") and shutil.which(f"mpirun.{kind}")

    def binding(self, fits):
        if self.run == "mpirun.mpich":
            return ["-bind-to", "core"] if fits else []
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        return root + (["--bind-to", "core"] if fits else ["--oversubscribe", "--bind-to", "none"])

    def all_reduce(self, ranks, memory):
        if memory != "plain":
            return None
        binding = self.binding(ranks <= len(os.sched_getaffinity(0)))
        return by_size(output([self.run, *binding, "-n", str(ranks), self.program, *map(str, SIZES)]))


def find_torches(python, folder):
    """Returns a peer for each way that this PyTorch supports, and notes on what it lacks."""
    version = torch_version(python)
    if not version:
        return [], [f"no PyTorch: {python} has no torch (./scripts/setup.sh bench)"]
    environment = torch_environment(python)
    notes = [f"PyTorch {version} without AMX, on which it dies here"] if environment else []
    ways = ["default", "channels_last"]
    if int(version.split(".")[0]) >= 2:
        ways.append("compile")
    return [Torch(python, version, folder, way, environment) for way in ways], notes


def find_pythons():
    """Returns Debian's Python and that of a newer PyTorch: TORCH_PYTHON, or what scripts/peers.sh has installed."""
    newer = os.environ.get("TORCH_PYTHON") or (NEWEST_PYTHON if os.access(NEWEST_PYTHON, os.X_OK) else None)
    return [DEBIAN_PYTHON] + [newer] * bool(newer)


def find_peers(folder, words=()):
    """Returns the installed peers, limited to names that contain any of `words` if given, and a note for each that is missing."""
    peers, absent = [Tern()], []
    for python in find_pythons():
        torches, notes = find_torches(python, folder)
        peers += torches
        absent += notes
    for kind in ("openmpi", "mpich"):
        if Mpi.is_here(kind):
            peers.append(Mpi(folder, kind))
        else:
            absent.append(f"no {kind}: mpicc.{kind} or mpirun.{kind} is missing (./scripts/setup.sh bench)")
    return [peer for peer in peers if not words or peer.name == "tern" or any(word in peer.name for word in words)], absent
