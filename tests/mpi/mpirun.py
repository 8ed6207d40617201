"""Starts ranks with an MPI's own launcher. The script's first argument chooses it: "openmpi" or "mpich"."""
import os
import re
import shutil
import subprocess
import sys

import skips

BUILD, SOURCE = os.environ["TERN_BUILD"], os.environ["TERN_SOURCE"]
NAME = sys.argv.pop(1) if sys.argv[1:2] in (["openmpi"], ["mpich"]) else "openmpi"

# Tests run as root and with more ranks than cores, which Open MPI must be told.
LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"], "mpich": ["mpiexec.mpich"]}
TEXTS = {"openmpi": "Open MPI", "mpich": "MPICH"}
LIBRARIES = {"openmpi": "libmpi.so", "mpich": "libmpich.so"}
LAUNCHER, TEXT = LAUNCHERS[NAME], TEXTS[NAME]


def version():
    """Returns the launcher's major and minor version."""
    text = subprocess.run([LAUNCHER[0], "--version"], capture_output=True, text=True).stdout
    return tuple(map(int, re.search(r"(\d+)\.(\d+)", text).groups()))


# MPICH 4.2's mpiexec may exit with 0 although a rank was killed (after 4 of 40 jobs of a program without tern), or gave up in MPI_Init.
TRIES_FOR_CODE = 3 if NAME == "mpich" and shutil.which(LAUNCHER[0]) and version() >= (4, 2) else 1


def program(name):
    return os.path.join(BUILD, "tests", name)


def command(ranks, *what):
    return [*LAUNCHER, "-n", str(ranks), *what]


def hosts_of(ranks, *what):
    """Returns the command wrapped so that every `ranks` ranks count as one host."""
    script = f'TERN_HOST_ID=$((${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} / {ranks})) exec "$0" "$@"'
    return ["sh", "-c", script, *what]


def environment(**more):
    """Returns the environment without the variables of a job, plus `more`."""
    env = {name: value for name, value in os.environ.items()
           if name in ("OMPI_MCA_reachable", "OMPI_MCA_orte_tmpdir_base") or not name.startswith(("TERN_P", "OMPI_", "PMI", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        env.pop(name, None)
    return {**env, "OMP_NUM_THREADS": "1", **more}


def start(ranks, *what, **more):
    return subprocess.Popen(command(ranks, *what), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment(**more))


def run(ranks, *what, **more):
    """Runs the ranks to their end, for a minute at most. Returns the CompletedProcess."""
    return subprocess.run(command(ranks, *what), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env=environment(**more))


def is_deaf(name):
    """Returns true if ranks of that MPI do not understand its own launcher: each finds itself alone."""
    done = subprocess.run([*LAUNCHERS[name], "-n", "2", program(f"mpi_split_{name}"), "size", "single"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, env=environment())
    return done.stdout.split() == ["1", "1"]


DEAF = "{} does not understand its own mpirun, as Ubuntu 24.04's MPICH (Launchpad's bug 2072338)"


def main(missing=None):
    """Runs the script's tests. Skips them without the MPI, or if something else is `missing`."""
    if not skips.has_part(NAME):
        missing = f"this build has no {TEXT}"
    elif not shutil.which(LAUNCHER[0]):
        missing = f"no {LAUNCHER[0]}"
    elif is_deaf(NAME):
        missing = DEAF.format(TEXT)
    if missing:
        skips.end(missing)
    skips.main()
