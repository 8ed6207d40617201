"""tern run when something is stuck: a held terminal, a terminal that is gone, a rank that cannot be reaped."""
import os
import pty
import signal
import subprocess
import sys
import time
import unittest

import job
import skips
from folder import InFolder

READY = job.Job.READY
SLEEP = job.SLEEP

# Traces a process and never waits for it: when killed, it stays a zombie that its parent cannot reap.
TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
print(libc.ptrace(0x4206, int(sys.argv[1]), None, None), flush=True)
time.sleep(60)
"""


def processor_ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))


class Case(InFolder):
    def pids(self, ranks):
        found = []
        for rank in range(ranks):
            path = os.path.join(self.folder, f"ready{rank}")
            job.until(lambda: os.path.exists(path), f"rank {rank} ready")
            with open(path) as file:
                found.append(int(file.read()))
        return found

    def until_dead(self, pids):
        job.until(lambda: not any(map(job.is_alive, pids)), f"all of {pids} dead")


class Terminal(Case):
    """The launcher leads the terminal's session, as under ssh -t or in a terminal window."""

    def start(self, ranks, code):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execv(job.TERN, [job.TERN, "run", "-n", str(ranks), *job.python(code)])
        self.addCleanup(self.end, pid)
        return pid

    def end(self, pid):
        """Kills the launcher unless it has ended already."""
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if self.terminal >= 0:
            os.close(self.terminal)

    def test_held_terminal_holds_nobody_alive(self):
        code = READY + """
while rank == 1: os.write(1, b'z' * 99 + b'\\n')
while rank == 2 and not os.path.exists('go'): time.sleep(0.01)
if rank == 2: os._exit(3)
""" + SLEEP
        launcher = self.start(3, code)
        pids = self.pids(3)
        # Rank 1 has filled its pipe, which the launcher does not read.
        job.until(lambda: job.state(pids[1]) == "S" and job.state(launcher) == "S", "the terminal full")
        before = processor_ticks(launcher)
        time.sleep(0.3)
        self.assertLessEqual(processor_ticks(launcher) - before, 2, "the launcher spins")
        start = time.monotonic()
        open(os.path.join(self.folder, "go"), "w").close()
        self.until_dead(pids)
        self.assertGreater(time.monotonic() - start, 0.99)

    def test_hangup_reaches_every_rank(self):
        code = """
def record(*_):
    open('hung%d' % rank, 'w').close()
    os._exit(0)
signal.signal(signal.SIGHUP, record)
""" + READY + SLEEP
        self.start(3, code)
        pids = self.pids(3)
        os.close(self.terminal)
        self.terminal = -1
        self.until_dead(pids)
        for rank in range(3):
            self.assertTrue(os.path.exists(os.path.join(self.folder, f"hung{rank}")), rank)


class Unreapable(Case):
    def trace(self, pid):
        tracer = subprocess.Popen([sys.executable, "-S", "-E", "-c", TRACER, str(pid)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(tracer.wait)
        self.addCleanup(tracer.stdout.close)
        self.addCleanup(tracer.kill)
        if tracer.stdout.readline().strip() != "0":
            self.skipTest("ptrace is not allowed here")

    def test_it_is_named_left_behind_and_a_failure(self):
        with job.Job(self.folder, 1, job.python(READY + SLEEP)) as run:
            pid = self.pids(1)[0]
            self.trace(pid)
            run.launcher.terminate()
            self.assertIn("passed on", run.launcher.stderr.readline())
            run.launcher.terminate()
            code, _, err = run.end()
        self.assertEqual(code, 137)
        self.assertEqual(err, f"tern run: rank 0 (pid {pid}) survived SIGKILL and is left behind\n")


class Options(unittest.TestCase):
    def test_a_mistake_in_joined_letters_names_their_word(self):
        for args in (["-xn", "2"], ["-n2", "-xn", "2"], ["--no-python", "-xn", "2"]):
            code, _, err = job.tern("run", *args, "true")
            self.assertEqual((code, err.splitlines()[0]), (2, 'tern run: unknown option "-xn"'), args)


if __name__ == "__main__":
    skips.main()
