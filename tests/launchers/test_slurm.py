"""srun starts tern programs without further settings, on a real slurmctld with two nodes on this machine."""
import os
import re
import shutil
import socket
import subprocess
import unittest

import skips
from docs import document
from launchers import slurm
from mpi import mpirun

BUILD = os.environ["TERN_BUILD"]
MEET = os.path.join(BUILD, "tests", "meet")
THREADS = os.path.join(BUILD, "tests", "threads")
TERN = os.path.join(BUILD, "tern")

if slurm.missing():
    skips.end(f"no {slurm.missing()}")


def has_name():
    try:
        return bool(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return False


def sums(ranks, places):
    """Returns what meet prints on ranks with these local ranks."""
    total = ranks * (ranks + 1) // 2
    return [f"rank {rank} of {ranks} ({place} here): {total}" for rank, place in enumerate(places)]


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = slurm.Cluster().__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def check(self, command, expected, **options):
        code, out, err = self.cluster.run(*command, **options)
        self.assertEqual((code, sorted(out.splitlines())), (0, expected), err)

    def batch(self, *lines, options=("-n", "2")):
        """Runs a script with sbatch and returns its output, without srun's messages about a step that waits
        for the previous one. sbatch's --wait polls every few seconds, so the script renames its output when
        it ends."""
        path = self.cluster.path("batch")
        with open(path + ".sh", "w") as file:
            file.write("\n".join(["#!/bin/sh", f"trap 'mv {path}.open {path}.out' EXIT", "set -e", *lines]) + "\n")
        code, _, err = self.cluster.run("sbatch", *options, "-o", path + ".open", path + ".sh")
        self.assertEqual(code, 0, err)
        slurm.until(lambda: os.path.exists(path + ".out"), "the script over", seconds=45)
        with open(path + ".out") as file:
            out = file.read()
        os.remove(path + ".out")
        return [line for line in out.splitlines() if not line.startswith("srun: ")]

    def test_srun(self):
        self.check(["srun", "-n", "2", MEET], sums(2, [0, 1]))

    def test_the_demo_prints_its_steps_once(self):
        code, out, err = self.cluster.run("srun", "-n", "2", os.path.join(BUILD, "examples", "05_basic"))
        self.assertEqual((code, len(out.splitlines())), (0, 10), err)

    def test_one_task(self):
        self.check(["srun", "-n", "1", MEET], sums(1, [0]))

    def test_tasks_share_the_cores(self):
        share = max(1, len(os.sched_getaffinity(0)) // 2)
        self.check(["srun", "-n", "2", "env", "-u", "OMP_NUM_THREADS", THREADS], 2 * [f"{share} before, {share} after"])

    def test_two_nodes(self):
        """The nodes' names do not resolve on this machine, so the test gives rank 0's address."""
        self.check(["srun", "-N", "2", "-n", "3", MEET], sums(3, [0, 1, 0]), env={"MASTER_ADDR": "127.0.0.1"})

    def test_with_a_secret(self):
        self.check(["srun", "-n", "2", MEET], sums(2, [0, 1]), env={"TERN_SECRET": os.urandom(32).hex()})

    def test_with_a_process_manager_of_mpi(self):
        """If srun uses one by default, programs without MPI have its variables, too."""
        self.check(["srun", "--mpi=pmi2", "-n", "2", MEET], sums(2, [0, 1]))

    def test_steps_at_the_same_time(self):
        command, options = ["srun", "-n", "2", MEET], {"env": self.cluster.env, "text": True, "stdout": subprocess.PIPE}
        steps = [subprocess.Popen(command, **options) for _ in range(3)]
        for step in steps:
            out = step.communicate(timeout=30)[0]
            self.assertEqual((step.returncode, sorted(out.splitlines())), (0, sums(2, [0, 1])))

    def test_sbatch_with_srun(self):
        out = self.batch(f"srun {MEET}", f"srun {MEET}")
        self.assertEqual(sorted(out), sorted(2 * sums(2, [0, 1])))

    def test_sbatch_without_srun(self):
        out = self.batch(f"{MEET} 2>&1")
        self.assertEqual(out, ["tern: warn: SLURM_NTASKS=2, but this process, which trains alone, was not started by a Slurm step: "
                               "inside sbatch or salloc, start it with srun", *sums(1, [0])])

    def test_interactive_step(self):
        """With use_interactive_step, salloc's shell is a step of its own, with the variables of one task."""
        for command, expected in (([MEET], sums(1, [0])), (["srun", "-n", "2", MEET], sums(2, [0, 1])),
                                  ([TERN, "run", "-n", "2", MEET], sums(2, [0, 1]))):
            code, out, err = self.cluster.run("salloc", "-n", "2", "srun", "--interactive", "--preserve-env", *command)
            self.assertEqual((code, sorted(line.removeprefix("[1] ") for line in out.splitlines())), (0, expected), err)

    def test_tern_run_inside_a_job(self):
        out = self.batch(f"{TERN} run -n 2 {MEET}")
        self.assertEqual(sorted(line.removeprefix("[1] ") for line in out), sums(2, [0, 1]))

    def test_tern_run_on_each_node(self):
        """The script of docs/cluster.md, but for what this machine has not: names of nodes, 32 cores."""
        script = next(text for _, text in document.blocks(document.read("docs/cluster.md")) if "SLURM_NODEID" in text)
        options = [word for word in re.search(r"^#SBATCH (.*)$", script, re.M).group(1).split() if "cpus" not in word]
        port = slurm.free_ports(1)[0]
        for here, there in (("$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)", "127.0.0.1"), ("tern run -n 8", f"{TERN} run -n 2"),
                            ("./train", f"--master-port {port} {MEET}")):
            self.assertEqual(script.count(here), 1)
            script = script.replace(here, there)
        out = self.batch(*script.splitlines()[1:], options=options)
        self.assertEqual(sorted(line.split("] ")[-1] for line in out), sums(4, [0, 1, 0, 1]))

    def test_the_first_node_is_named(self):
        """By the command of docs/cluster.md."""
        self.assertEqual(self.batch('scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1', options=("-N", "2")), ["n001"])

    def test_mpirun_inside_a_job(self):
        """Slurm's variables are set, too, but do not describe the ranks."""
        for mpi, launcher in mpirun.LAUNCHERS.items():
            with self.subTest(mpi):
                if not skips.has_part(mpi):
                    self.skipTest(f"this build has no {mpi}")
                if not shutil.which(launcher[0]):
                    self.skipTest(f"no {launcher[0]}")
                if mpirun.is_deaf(mpi):
                    self.skipTest(mpirun.DEAF.format(mpirun.TEXTS[mpi]))
                if mpi == "mpich" and not has_name():
                    self.skipTest("this machine's own name resolves to nothing, and Hydra waits for it in a job of Slurm")
                out = self.batch(f"{' '.join(launcher)} -n 3 {MEET}")
                self.assertEqual(sorted(out), sums(3, [0, 1, 2]))

    def test_info_says_who_started_it(self):
        code, out, err = self.cluster.run("srun", "-n", "2", "--label", TERN, "info")
        self.assertEqual(code, 0, err)
        for rank in (0, 1):
            self.assertRegex(out, rf"(?m)^{rank}: launcher +SLURM_PROCID, rank {rank} of 2, at 127\.0\.0\.1 port [23]\d{{4}}$")


if __name__ == "__main__":
    skips.main()
