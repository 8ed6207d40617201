"""A program that uses tern but not MPI, started by mpirun without further settings: its ranks and how they
end."""
import os
import re
import signal
import tempfile
import time
import unittest

import mpirun

RANK = mpirun.program("mpi_rank")
SOON = 50  # seconds; a limit against hangs only, since ranks wait for half an hour
LINE = r"rank (\d+) of (\d+), local (\d+), pid (\d+), (\S+)"


def ranks_of(text):
    return sorted(tuple(map(int, line[:3])) for line in re.findall(LINE, text))


def is_alive(pid):
    """Returns true if the process runs. A zombie counts as dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Launch(unittest.TestCase):
    def check(self, done, ranks, times=1):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(ranks_of(done.stdout), sorted(times * [(rank, ranks, rank) for rank in range(ranks)]))
        self.assertNotIn("finalize", done.stderr)

    def test_any_number(self):
        for ranks in 1, 2, 4:
            self.check(mpirun.run(ranks, RANK), ranks)

    def test_groups_one_after_the_other(self):
        """MPI is initialised once, with the first group, and finalised once, when the process exits."""
        self.check(mpirun.run(3, RANK, "twice"), 3, 2)

    def test_a_group_that_a_static_object_closes(self):
        """MPI is finalised after the program's own destructors."""
        if mpirun.NAME == "mpich" and mpirun.version() >= (4, 2):
            self.skipTest("since 4.2 an exit handler of MPICH's leaves the launcher before, which then kills the other ranks")
        for backend in "native", "mpi":
            self.check(mpirun.run(3, RANK, "keep", TERN_BACKEND=backend), 3)

    def check_threads(self, ranks, threads, *options, omp=()):
        done = mpirun.run(ranks, *options, "env", "-u", "OMP_NUM_THREADS", *omp, mpirun.program("threads"))
        self.assertEqual(done.stdout.splitlines(), ranks * [f"{threads} before, {threads} after"], done.stderr)

    def test_ranks_share_the_cores(self):
        """This holds if the ranks are not bound, if each is bound to one core, and if OpenMP binds
        threads."""
        cores, bind = len(os.sched_getaffinity(0)), {"openmpi": "--bind-to", "mpich": "-bind-to"}[mpirun.NAME]
        for ranks in 1, 2, 4:
            self.check_threads(ranks, max(1, cores // ranks), bind, "none")
        if cores > 1:
            self.check_threads(2, 1, bind, "hwthread")
            self.check_threads(2, 1, bind, "hwthread", omp=["OMP_PROC_BIND=true"])
        self.check_threads(1, cores, bind, "none", omp=["OMP_PROC_BIND=true"])
        self.check_threads(2, max(1, cores // 2), bind, "none", omp=["OMP_PROC_BIND=true"])

    def test_the_secret_may_be_the_users(self):
        self.check(mpirun.run(2, RANK, TERN_SECRET="00" * 32), 2)


class Hosts(unittest.TestCase):
    """Two ranks per host, simulated with TERN_HOST_ID: messages between hosts go over MPI, or all messages
    do."""

    def check(self, backend, name, ranks=4):
        more = {"TERN_BACKEND": backend} if backend else {}
        done = mpirun.run(ranks, *mpirun.hosts_of(2, RANK, "bits"), **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(ranks_of(done.stdout), [(rank, ranks, rank % 2) for rank in range(ranks)])
        self.assertEqual({line[4] for line in re.findall(LINE, done.stdout)}, {name})
        hashes = re.findall(r"hash (\w+)", done.stdout)
        self.assertEqual((len(hashes), len(set(hashes))), (ranks, 1), done.stdout)

    def test_back_ends(self):
        self.check(None, "native+mpi")
        self.check("native+mpi", "native+mpi", 3)
        self.check("mpi", "mpi")

    def test_windows_alone_do_not_reach(self):
        done = mpirun.run(4, *mpirun.hosts_of(2, RANK), TERN_BACKEND="native")
        self.assertNotEqual(done.returncode, 0)

    def test_all_by_mpi_on_one_host(self):
        done = mpirun.run(3, RANK, "bits", TERN_BACKEND="mpi")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual({line[4] for line in re.findall(LINE, done.stdout)}, {"mpi"})


class Failures(unittest.TestCase):
    def kill(self, *around, **more):
        """Kills rank 2. Checks that the job ends soon and leaves no process. Returns its exit code, and whether
        its output names the killed rank."""
        job = mpirun.start(4, *around, RANK, "work", **more)
        lines = [re.match(LINE, job.stdout.readline()) for _ in range(4)]
        pids = {int(line[1]): int(line[4]) for line in lines}
        os.kill(pids[2], signal.SIGKILL)
        begin = time.monotonic()
        out, err = job.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, SOON)
        while any(map(is_alive, pids.values())):
            self.assertLess(time.monotonic() - begin, SOON)
        return job.returncode, bool(re.search(rf"rank 2 \(\S+, pid {pids[2]}\) was lost", out + err))

    def check_kills(self, *around, **more):
        """MPICH's launcher kills the others within a millisecond, sometimes before they can name the killed
        rank."""
        tries = [self.kill(*around, **more) for _ in range(3 if mpirun.NAME == "mpich" else 1)]
        self.assertTrue(any(is_named for _, is_named in tries), (tries, more))
        enough = any if mpirun.TRIES_FOR_CODE > 1 else all
        self.assertTrue(enough(code != 0 for code, _ in tries), (tries, more))

    def test_a_killed_rank_ends_the_job(self):
        self.check_kills()

    def test_a_killed_rank_of_another_host(self):
        for backend in "native+mpi", "mpi":
            self.check_kills(*mpirun.hosts_of(2), TERN_BACKEND=backend)

    def test_a_rank_that_exits(self):
        """The rank exits with a nonzero code, or with a group still open. The others do not wait for it in
        MPI_Finalize."""
        for what in "exit", "leave":
            begin = time.monotonic()
            done = mpirun.run(3, RANK, what)
            self.assertNotEqual(done.returncode, 0, what)
            self.assertLess(time.monotonic() - begin, SOON, what)

    def test_a_process_that_is_no_rank(self):
        """One process exits with 0 before the others call MPI_Init, which would wait for it for ever. If they
        had called it before, Open MPI would end the job itself, not always with a reason: so they start when
        it is gone and the launcher has noticed."""
        script = """
            if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then echo $$ > "$1/new" && exec mv "$1/new" "$1/pid"; fi
            until [ -f "$1/pid" ] && ! [ -d /proc/$(cat "$1/pid") ]; do sleep 0.01; done
            exec "$0" impatient"""
        codes = []
        while not any(codes) and len(codes) < mpirun.TRIES_FOR_CODE:
            begin = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                done = mpirun.run(3, "sh", "-c", script, RANK, folder)
            codes.append(done.returncode)
            self.assertLess(time.monotonic() - begin, SOON)
            self.assertIn("not all ranks called MPI_Init within 1 s", done.stderr)
        self.assertTrue(any(codes), codes)

    def test_a_stopped_rank_that_has_not_come(self):
        """One rank of the host warns, and when the stopped one continues, the job goes on."""
        script = """
            if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then echo $$ > "$1/new"; mv "$1/new" "$1/pid"; kill -STOP $$; fi
            exec "$0" warn"""
        with tempfile.TemporaryDirectory() as folder:
            job = mpirun.start(3, "sh", "-c", script, RANK, folder)
            line = job.stderr.readline()
            with open(os.path.join(folder, "pid")) as file:
                os.kill(int(file.read()), signal.SIGCONT)
            out, err = job.communicate(timeout=60)
        self.assertRegex(line, r"this rank \(pid \d+\) has waited 4 s in MPI_Init for the other ranks")
        self.assertEqual((job.returncode, err, len(ranks_of(out))), (0, "", 3))


if __name__ == "__main__":
    mpirun.main()
