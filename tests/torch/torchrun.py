"""torchrun starts tern programs, with its agents' stores or without: the tests for both PyTorchs, Debian's and the
newest. Importing PyTorch takes most of an agent's time, so it is imported once and agents are forked."""
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback

import libuv

libuv.do_without()

from torch.distributed import run  # noqa: E402
from torch.distributed.elastic import multiprocessing  # noqa: E402
from torch.distributed.elastic.multiprocessing import Std, api  # noqa: E402

# torchrun of PyTorch 1.13 itself ends with an AttributeError under Python 3.11, whose enums print otherwise: what it makes of
# --redirects is given here. Newer ones are as they are.
if hasattr(multiprocessing, "to_map"):
    api.to_map = multiprocessing.to_map = lambda _, ranks: {rank: Std.NONE for rank in range(ranks)}

# Ranks look up the agent by the machine's name, which not every machine can resolve.
try:
    socket.gethostbyname(socket.gethostname())
except OSError:
    socket.getfqdn = lambda *_: "127.0.0.1"

BUILD = os.environ["TERN_BUILD"]
MEET = os.path.join(BUILD, "tests", "meet")
DEMO = os.path.join(BUILD, "examples", "05_basic")


def free_port():
    """A free port whose successor is also free."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue
    raise AssertionError("no two free ports side by side")


def sums(ranks, local_ranks):
    """The output of the program meet for ranks with these local ranks."""
    total = ranks * (ranks + 1) // 2
    return [f"rank {rank} of {ranks} ({local} here): {total}" for rank, local in enumerate(local_ranks)]


class Agent:
    """torchrun with these arguments in its own process; its output and that of its ranks goes to files."""

    def __init__(self, *args):
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self.run(args))

    def run(self, args):
        os.dup2(self.out.fileno(), 1)
        os.dup2(self.err.fileno(), 2)
        os.environ.pop("LD_PRELOAD", None)
        try:
            run.main(args)
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    def end(self, seconds=60):
        """(exit code, stdout, stderr)"""
        deadline = time.monotonic() + seconds
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGTERM)
                deadline += seconds
            time.sleep(0.01)
        with self.out, self.err:
            self.out.seek(0)
            self.err.seek(0)
            return os.waitstatus_to_exitcode(ended[1]), self.out.read(), self.err.read()


class Torchrun:
    def start(self, *options, command=(MEET,)):
        return Agent("--nproc_per_node=2", "--monitor_interval=0.1", *options, "--no_python", *command)

    def end(self, agent):
        code, out, err = agent.end()
        self.assertEqual(code, 0, err)
        return out

    def check(self, options, expected, **command):
        """Compares the output of agents with these options, in any order."""
        agents = [self.start(*each, **command) for each in options]
        lines = [line for agent in agents for line in self.end(agent).splitlines()]
        self.assertEqual(sorted(lines), sorted(expected))

    def master(self):
        return ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]

    def test_the_demo(self):
        out = self.end(self.start("--standalone", command=[DEMO]))
        self.assertEqual(len(re.findall(r"^step \d  loss \d\.\d{6}$", out, re.M)), 10, out)

    def test_standalone(self):
        self.check([["--standalone"]], sums(2, [0, 1]))

    def test_a_master(self):
        self.check([self.master()], sums(2, [0, 1]))

    def test_two_agents(self):
        master = ["--nnodes=2", *self.master()]
        self.check([[*master, "--node_rank=0"], [*master, "--node_rank=1"]], sums(4, [0, 1, 0, 1]))

    def test_two_agents_that_meet_by_themselves(self):
        rdzv = ["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}", "--rdzv_id=tern"]
        self.check([rdzv, rdzv], sums(4, [0, 1, 0, 1]))

    def test_a_restart_after_the_meeting(self):
        script = f"{MEET} && test $TORCHELASTIC_RESTART_COUNT = 1"
        self.check([["--standalone", "--max_restarts=1"]], 2 * sums(2, [0, 1]), command=["sh", "-c", script])

    def test_a_restart_in_the_meeting(self):
        """Rank 0 had published its address when it restarted; the next attempt uses another one."""
        script = f"test $TORCHELASTIC_RESTART_COUNT$RANK != 01 && exec {MEET}"
        self.check([["--max_restarts=1", *self.master()]], sums(2, [0, 1]), command=["sh", "-c", script])
