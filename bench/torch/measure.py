"""Implements run.sh: a world of ranks for each back end, which measure in turn, and the table."""
import contextlib
import functools
import glob
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(HERE, "..", "peers"))
import run  # noqa: E402: bench/peers/run.py
from network import Hosts  # noqa: E402
from peers import BUILD  # noqa: E402
from run import Row  # noqa: E402

SIZES = {4: "4 B", 64 << 10: "64 KB", 1 << 20: "1 MB", 25 << 20: "25 MB"}
MEMORIES = {"plain": "ordinary tensors", "own": "the back end's memory"}


def all_reduce_rows(ranks, *sizes):
    job = ("world", ranks, "all_reduce", ",".join(map(str, sizes)))
    return [Row(f"all_reduce {SIZES[size]}, {ranks} ranks, {MEMORIES[kind]}", "us", job, f"{kind} {size}") for size in sizes for kind in MEMORIES]


def step_rows(title, *words):
    job = ("world", 2, *words)
    return [Row(f"{title}, a step", "ms", job, "median_ms"), Row(f"{title}, processor time of both ranks", "ms", job, "cpu_ms")]


GROUPS = {
    "small": all_reduce_rows(2, 4),
    "all_reduce": all_reduce_rows(2, 64 << 10, 1 << 20, 25 << 20),
    "all_reduce8": all_reduce_rows(8, 1 << 20, 25 << 20),
    "mlp": step_rows("DDP, MLP, batch 64 x 2", "ddp", "mlp", "--steps", "20"),
    "resnet18": step_rows("DDP, ResNet-18, batch 4 x 2 of 64x64", "ddp", "resnet18", "--steps", "3"),
    "transformer": step_rows("DDP, transformer, batch 2 x 2", "ddp", "transformer", "--steps", "5"),
    "fsdp": step_rows("FSDP2, transformer, batch 2 x 2", "fsdp", "transformer", "--steps", "5"),
}


# ---- PyTorch and the extension ----

FACTS = """
import importlib.util, json, torch, torch.distributed
has_fsdp2 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
has_floor = importlib.util.find_spec("torch.testing._internal.distributed.fake_pg") is not None
print(json.dumps({"version": torch.__version__, "has_mpi": torch.distributed.is_mpi_available(),
                  "has_floor": has_floor, "has_fsdp2": has_fsdp2}))
"""


@functools.cache
def torch_facts():
    done = subprocess.run([sys.executable, "-c", FACTS], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"run.sh: {sys.executable} has no PyTorch (scripts/peers.sh, or set PYTHON)")
    return json.loads(done.stdout)


def extension(version):
    """Returns the folder of torch_tern for this torch and build, which it builds if a source is newer."""
    python = os.path.join(HERE, "..", "..", "python")
    folder = os.path.join(BUILD, f"torch_tern-{version}")
    built = glob.glob(os.path.join(folder, "torch_tern", "_C*.so"))
    sources = glob.glob(os.path.join(python, "src", "*")) + glob.glob(os.path.join(python, "torch_tern", "*.py"))
    if built and os.path.getmtime(built[0]) > max(map(os.path.getmtime, sources)):
        return folder
    print(f"building {folder} ..", flush=True)
    with tempfile.TemporaryDirectory() as base:
        done = subprocess.run([sys.executable, "setup.py", "build", "--build-base", base, "--build-lib", folder], cwd=python, text=True,
                              env={**os.environ, "TERN_BUILD": BUILD}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"run.sh: cannot build python/ for {sys.executable}:\n{done.stdout}")
    return folder


# ---- the ranks ----

class World:
    """The ranks of one back end at one job. They stay, so that back ends can measure in turn without starting again."""

    interpreter = [sys.executable]  # tests replace it

    def __init__(self, backend, ranks, words, folder, path, hosts):
        meet = tempfile.mktemp(dir=folder)
        self.errors = f"{meet}-errors"
        self.ranks = []
        for rank in range(ranks):
            argv = [*self.interpreter, os.path.join(HERE, "rank.py"), "--backend", backend, "--meet", meet, *words]
            environment = {**os.environ, "PYTHONPATH": path, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
            if hosts:
                argv = hosts.command(rank, *argv)
                environment["GLOO_SOCKET_IFNAME"] = hosts.links[rank]
            with open(self.errors, "a") as errors:
                self.ranks.append(subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True))
        self.lines()

    def lines(self):
        """Returns the next line of every rank."""
        lines = [rank.stdout.readline() for rank in self.ranks]
        if not all(lines):
            self.close()
            with open(self.errors) as errors:
                sys.exit(f"run.sh: a rank has ended\n{errors.read()}")
        return lines

    def measure(self):
        for rank in self.ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        return together([json.loads(line) for line in self.lines()])

    def cpu_seconds(self):
        """Returns the seconds that the ranks have used so far, which os.times() says only of children that have ended."""
        ticks = 0
        for rank in self.ranks:
            with open(f"/proc/{rank.pid}/stat") as file:
                ticks += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self):
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


def together(said):
    """Returns the results of a world from those of its ranks: of times the largest, of CPU times the sum, of losses the mean."""
    found = {}
    for field in said[0]:
        values = [one[field] for one in said]
        if field == "cpu_ms":
            found[field] = sum(values)
        elif field.startswith("loss"):
            found[field] = sum(values) / len(values)
        else:
            found[field] = max(values)
    return found


def with_own(found):
    """Adds ordinary tensors' times as those of the back end's memory, for one that has none."""
    plain = {field.replace("plain", "own"): value for field, value in found.items() if field.startswith("plain ")}
    return {**plain, **found}


class Backend:
    """A peer of bench/peers/run.py's rounds."""

    def __init__(self, name, folder, path, hosts):
        self.name, self.folder, self.path, self.hosts = name, folder, path, hosts
        self.worlds = {}

    def world(self, ranks, *words):
        if self.name == "nothing" and words != ("all_reduce", "4") and words[0] != "ddp":
            return None
        job = (ranks, *words)
        if job not in self.worlds:
            self.worlds[job] = World(self.name, ranks, words, self.folder, self.path, self.hosts)
        found = self.worlds[job].measure()
        if self.name == "nothing":  # its ranks part, so their losses say nothing
            found = {field: value for field, value in found.items() if not field.startswith("loss")}
        return found if self.name == "tern" else with_own(found)

    def cpu_seconds(self):
        return sum(world.cpu_seconds() for world in self.worlds.values())

    def close(self):
        for world in self.worlds.values():
            world.close()
        self.worlds = {}


def find_backends(facts, folder, hosts):
    """Returns the back ends, tern first, and a note for each that this PyTorch lacks."""
    names, absent = ["tern", "gloo"], []
    if facts["has_floor"]:
        names.append("nothing")
    else:
        absent.append("no floor: this PyTorch has no back end that does nothing")
    absent.append("no mpi: its ranks cannot be started here" if facts["has_mpi"] else "no mpi: this PyTorch was built without it")
    path = extension(facts["version"])
    return [Backend(name, folder, path, hosts) for name in names], absent


def measured(name, backends, rounds):
    """Measures a group; returns its lines of the table, the load of others, and signs that the work was not the same."""
    def cpu_seconds():
        passed, busy, own = run.cpu_seconds()
        return passed, busy, own + sum(backend.cpu_seconds() for backend in backends)

    try:
        for job in dict.fromkeys(row.job for row in GROUPS[name]):  # starts the worlds, and is their warm-up
            for backend in backends:
                backend.world(*job[1:])
        values, others, complaints = run.measure(GROUPS[name], backends, rounds, lambda text: print(f"{name}: {text}", flush=True),
                                                 ("loss_first", "loss_last"), used=cpu_seconds)
    finally:
        for backend in backends:
            backend.close()
    lines = run.summary(GROUPS[name], [backend.name for backend in backends], values)
    return [line for line in lines if line["samples"][backends[0].name]], others, complaints


# ---- the command ----

def chosen_groups(args):
    names = run.only_names(args, GROUPS, list(GROUPS))
    return [name for name in names if not args.hosts or name != "all_reduce8"]  # two hosts, a rank on each


NOTES = """
ratio: the back end's median divided by tern's, best first. A back end without memory of its own shows ordinary tensors there. "nothing" returns
without communicating: what is left is Python's and PyTorch's, which no back end can beat. One thread per rank; a time is the slowest rank's."""


def main():
    args = run.parse_rounds(GROUPS, 10, ("--hosts", dict(metavar="RATE", help="rate of the link between two hosts, as for tc; any: no limit")))
    names = chosen_groups(args)
    run.check_build("run.sh")
    facts = torch_facts()
    names = [name for name in names if name != "fsdp" or facts["has_fsdp2"]]
    run.help_openblas()
    where = {None: "on one host", "any": "between two hosts"}.get(args.hosts, f"between two hosts at {args.hosts}")
    lines, others, complaints = [], [], []
    with tempfile.TemporaryDirectory() as folder, Hosts(args.hosts) if args.hosts else contextlib.nullcontext() as hosts:
        backends, absent = find_backends(facts, folder, hosts)
        about = {**run.machine(), "PyTorch": facts["version"], "ranks": where}
        print("\n".join([", ".join(f"{name} {value}" for name, value in about.items()), *absent]), flush=True)
        for name in names:
            for found, one in zip((lines, others, complaints), measured(name, backends, args.rounds)):
                found += one
    print(f"\n{run.table(lines)}\n{NOTES}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"machine": about, "others_percent": others, "other_work": complaints, "rows": lines}, file, indent=1)
    if complaints:
        sys.exit(1)


if __name__ == "__main__":
    main()
