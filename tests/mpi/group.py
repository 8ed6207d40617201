"""tern_group_from_mpi in programs that initialise MPI themselves: split.c, built with each MPI, and
split.f90, which is built here."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import mpirun

HERE = os.path.dirname(os.path.abspath(__file__))


class Group(unittest.TestCase):
    def hold(self, what, level, *around):
        done = mpirun.run(5, *around, mpirun.program(f"mpi_split_{mpirun.NAME}"), what, level)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_part_of_the_world(self):
        """A group of some ranks, at every thread level."""
        for level in "single", "funneled", "serialized", "multiple":
            self.hold("split", level)

    def test_many_at_once(self):
        self.hold("many", "funneled")

    def test_a_failed_group(self):
        self.hold("fails", "single")

    def test_over_hosts(self):
        """MPI sends the messages between the hosts, beside the program's own messages."""
        for what in "many", "fails":
            self.hold(what, "single", *mpirun.hosts_of(2))

    def test_a_group_that_outlives_mpi(self):
        """The group's next call returns an error; MPI itself would end the program."""
        self.hold("early", "single", *mpirun.hosts_of(2))

    def test_handles(self):
        self.hold("handles", "single")

    def test_threads(self):
        for level in "single", "funneled", "serialized", "multiple":
            self.hold("thread", level)

    def test_a_program_that_leaves_it_to_tern(self):
        self.hold("world", "never")


class OtherLauncher(unittest.TestCase):
    """A program with this MPI that was not started by this MPI's mpirun: MPI tells each rank that it is
    alone."""

    def run_alone(self, *command, **more):
        """Starts two ranks with `command`. Returns its standard error and exit code."""
        done = subprocess.run([*command[:-2], mpirun.program(f"mpi_split_{mpirun.NAME}"), *command[-2:]], text=True, capture_output=True,
                              timeout=60, env=mpirun.environment(**more))
        return done.stderr, done.returncode

    def other(self):
        launcher = mpirun.LAUNCHERS["mpich" if mpirun.NAME == "openmpi" else "openmpi"]
        if not shutil.which(launcher[0]):
            self.skipTest(f"no {launcher[0]}")
        return launcher

    def test_a_group_of_all(self):
        """A group of all ranks that has one rank cannot be what the user wants: it is an error."""
        said, code = self.run_alone(*self.other(), "-n", "2", "world", "single")
        self.assertNotEqual(code, 0)
        self.assertRegex(said, rf"by its environment this is rank [01] of 2, but {mpirun.TEXT}, which this program uses, says 0 of 1")

    def hold_warned(self, variable, advice, *command, **more):
        said, code = self.run_alone(*command, "thread", "multiple", **more)
        self.assertEqual(code, 0, said)
        self.assertRegex(said, rf"{variable}=2, but {mpirun.TEXT}, which this program uses, knows only this process, .*: {advice}")

    def test_a_communicators_group(self):
        """A group of one rank from a communicator may be intended: it is a warning."""
        self.hold_warned("(OMPI_COMM_WORLD|PMI)_SIZE", "is that the mpirun of another MPI", *self.other(), "-n", "2")

    def test_an_mpirun_that_it_does_not_understand(self):
        """Ubuntu 24.04 builds MPICH without the protocol of its own mpirun, so a rank has only the variables."""
        if mpirun.NAME == "mpich":
            variables = dict(PMI_RANK="0", PMI_SIZE="2", MPI_LOCALNRANKS="2")
            said, code = self.run_alone("world", "single", **variables)
            self.assertNotEqual(code, 0)
            self.assertRegex(said, "rank 0 of 2, but MPICH, .*, says 0 of 1: .* Ubuntu 24.04's MPICH .* use Open MPI or tern run there")
            self.hold_warned("PMI_SIZE", "is that the mpirun .* Ubuntu 24.04's MPICH", **variables)
        said, code = self.run_alone(*self.other(), "-n", "2", "world", "single")
        self.assertNotIn("Ubuntu", said)

    def test_no_mpirun(self):
        self.hold_warned("SLURM_STEP_NUM_TASKS", "start it with srun --mpi=", SLURM_STEP_NUM_TASKS="2")
        self.hold_warned("WORLD_SIZE", "start it with that MPI's mpirun", WORLD_SIZE="2")

    def test_whoever_is_alone_is_told_nothing(self):
        for launched in self.run_alone("thread", "multiple"), self.run_alone(*mpirun.command(1), "thread", "multiple", WORLD_SIZE="2"):
            self.assertEqual(launched[1], 0, launched[0])
            self.assertNotIn("alone", launched[0])


class Fortran(unittest.TestCase):
    def test_trains(self):
        compiler = f"mpifort.{mpirun.NAME}"
        if not shutil.which(compiler) or not shutil.which("gfortran"):
            self.skipTest(f"no {compiler}")
        with tempfile.TemporaryDirectory() as folder:
            sources = [os.path.join(mpirun.SOURCE, "examples", "fortran", "tern.f90"), os.path.join(HERE, "split.f90")]
            sanitizer = [f"-fsanitize={os.environ['TERN_SANITIZE']}"] if os.environ.get("TERN_SANITIZE") else []
            built = subprocess.run([compiler, "-Wall", "-Werror", *sanitizer, *sources, "-o", "split", "-L" + mpirun.BUILD, "-ltern",
                                    "-Wl,-rpath," + mpirun.BUILD], cwd=folder, text=True, capture_output=True, timeout=120)
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            done = mpirun.run(4, os.path.join(folder, "split"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = sorted(re.findall(r"rank (\d) of (\d)  loss +(\S+)", done.stdout))
        self.assertEqual([line[:2] for line in lines], [("0", "3"), ("1", "3"), ("2", "3")])
        self.assertEqual(len({line[2] for line in lines}), 1)
        self.assertLess(float(lines[0][2]), 1e-3)


if __name__ == "__main__":
    mpirun.main()
