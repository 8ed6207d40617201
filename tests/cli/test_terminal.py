"""tern run as a job of an interactive shell: Ctrl-C, Ctrl-\\ and Ctrl-Z, fg and bg, and who reads the terminal."""
import os
import pty
import re
import select
import shlex
import shutil
import signal
import tempfile
import time
import unittest

import job
import skips

READY = job.Job.READY
SLEEP = job.SLEEP
COUNT = """
count = 0
def count_one(*_):
    global count
    count += 1
for number in (signal.SIGINT, signal.SIGQUIT): signal.signal(number, count_one)
""" + READY + """
while not count: time.sleep(0.01)
time.sleep(0.3)
print('counted', count, flush=True)
"""


@unittest.skipUnless(shutil.which("bash"), "no bash")
class Shell(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.text = folder.name, ""
        self.shell, self.terminal = pty.fork()
        if self.shell == 0:
            os.chdir(self.folder)
            os.environ["PS1"] = "the$ "
            os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
        self.addCleanup(self.end)
        self.read_until("the$ ")

    def end(self):
        os.kill(self.shell, signal.SIGKILL)
        os.waitpid(self.shell, 0)
        os.close(self.terminal)  # hangs up

    def read_until(self, what):
        """Reads until the terminal shows the text, and returns what came before it."""
        end = time.monotonic() + job.GIVE_UP
        while what not in self.text:
            self.assertTrue(select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0], f"no {what!r} in {self.text!r}")
            self.text += os.read(self.terminal, 65536).decode().replace("\r\n", "\n")
        before, _, self.text = self.text.partition(what)
        return before

    def type(self, text):
        os.write(self.terminal, text.encode())

    def start(self, ranks, code, wrap=False, after="", options=""):
        command = job.python(code)
        if wrap:
            command = ["sh", "-c", '"$@"; true', "sh", *command]
        with open(os.path.join(self.folder, "start"), "w") as file:
            file.write(f"exec {job.TERN} run -n {ranks} {options} {shlex.join(command)}\n")
        self.ranks = ranks
        self.type(f"sh start{after}\n")

    def pids(self):
        names = [os.path.join(self.folder, f"ready{rank}") for rank in range(self.ranks)]
        job.until(lambda: all(map(os.path.exists, names)), "all ranks ready")
        return [int(job.read(name)) for name in names]

    def launcher(self, pid):
        return int(re.search(r"PPid:\s+(\d+)", job.read(f"/proc/{os.getpgid(pid)}/status")).group(1))

    def until(self, pids, states):
        job.until(lambda: all(job.state(pid) in states for pid in pids), f"{pids} in {states}")

    def test_a_key_reaches_every_rank_once(self):
        for key, wrap in (("\x03", False), ("\x03", True), ("\x1c", False)):
            with self.subTest(key=key, wrap=wrap):
                self.start(3, COUNT, wrap)
                self.pids()
                self.type(key)
                before = self.read_until("the$ ")
                self.assertEqual(sorted(re.findall(r"(?:\[\d\] )?counted \d+", before)), ["[1] counted 1", "[2] counted 1", "counted 1"])
                for rank in range(3):
                    os.unlink(os.path.join(self.folder, f"ready{rank}"))

    def test_ctrl_c_twice_kills(self):
        for wrap in (False, True):
            self.start(2, "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + READY + SLEEP, wrap)
            pids = self.pids()
            self.type("\x03")
            self.read_until("a second one kills them")
            self.assertTrue(all(map(job.is_alive, pids)))
            self.type("\x03")
            self.until(pids, "ZX")
            self.read_until("the$ ")
            for rank in range(2):
                os.unlink(os.path.join(self.folder, f"ready{rank}"))

    def test_ctrl_c_reaches_all_after_rank_0_has_ended(self):
        self.start(3, "if rank == 0: os._exit(0)\n" + COUNT)
        job.until(lambda: all(os.path.exists(os.path.join(self.folder, f"ready{rank}")) for rank in (1, 2)), "both ready")
        time.sleep(0.1)
        self.type("\x03")
        self.assertEqual(sorted(re.findall(r"\[\d\] counted \d+", self.read_until("the$ "))), ["[1] counted 1", "[2] counted 1"])

    def test_rank_0_reads_the_terminal(self):
        """Also the wrapped one, where stdout is a pipe, in a later attempt, and from /dev/tty."""
        read = "if rank == 0: print('read', input(), flush=True)\n"
        again = "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)\n" + read
        device = "if rank == 0: print('read', open('/dev/tty').readline(), flush=True)\n"
        cases = ((read, {}), (read, {"wrap": True}), (read, {"after": " | cat"}), (again, {"options": "--max-restarts 1"}),
                 (device, {}), (device, {"after": " < /dev/null"}))
        for code, how in cases:
            with self.subTest(how=how):
                self.start(2, code, **how)
                self.type("some words\n")
                self.read_until("read some words")
                self.read_until("the$ ")

    def the_shell_answers(self):
        self.type("echo the shell $((40 + 2))\n")
        self.read_until("the shell 42")

    def to_the_foreground(self):
        """The shell shows the job's line before it gives the terminal away: a key that comes in between is the shell's own."""
        self.type("fg\n")
        self.read_until("sh start")
        job.until(lambda: os.tcgetpgrp(self.terminal) != self.shell, "the job in the foreground")

    def rank_0_reads_in_the_foreground(self):
        self.to_the_foreground()
        self.type("other words\n")
        self.read_until("read other words")

    def test_stopped_and_continued(self):
        """Ctrl-Z stops all, fg continues all, and rank 0 reads on."""
        for wrap in (False, True):
            with self.subTest(wrap=wrap):
                self.start(2, READY + "if rank == 0: print('read', input(), flush=True)\n", wrap)
                pids = self.pids()
                self.type("\x1a")
                self.read_until("Stopped")
                self.read_until("the$ ")
                self.until(pids[:1], "T")  # the program in the wrapper may stop later than that, and take what is typed until then
                self.the_shell_answers()
                self.rank_0_reads_in_the_foreground()
                self.read_until("the$ ")
                for rank in range(2):
                    os.unlink(os.path.join(self.folder, f"ready{rank}"))

    def test_every_rank_stops_and_continues(self):
        self.start(3, "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n" + READY + SLEEP, True)
        pids = self.pids()
        self.type("\x1a")
        self.read_until("Stopped")
        self.until(pids, "T")
        self.type("bg\n")
        self.read_until("sh start &")
        self.until(pids, "S")
        self.to_the_foreground()
        self.type("\x03")
        self.until(pids, "ZX")
        self.read_until("the$ ")

    def test_the_grace_does_not_pass_while_all_are_stopped(self):
        self.start(1, "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + READY + SLEEP, options="--grace 1.5")
        pids = self.pids()
        self.type("\x03")
        self.read_until("a second one kills them")
        self.type("\x1a")
        self.read_until("Stopped")
        time.sleep(1.6)
        self.type("fg\n")
        start = time.monotonic()
        self.until(pids, "ZX")
        self.assertGreater(time.monotonic() - start, 0.5)

    def test_in_the_background_it_takes_no_input_from_the_shell(self):
        self.start(2, READY + "if rank == 0: print('read', input(), flush=True)\n", after=" &")
        self.ranks = 1
        self.until([self.launcher(self.pids()[0])], "T")
        self.type("\n")
        self.read_until("Stopped")
        self.the_shell_answers()
        self.rank_0_reads_in_the_foreground()

    def test_the_shell_has_its_terminal_back_when_the_launcher_is_killed(self):
        self.start(2, READY + SLEEP, True)
        pids = self.pids()
        os.kill(self.launcher(pids[0]), signal.SIGKILL)
        self.until(pids, "ZX")
        self.the_shell_answers()

    def test_hangup_ends_wrapped_ranks(self):
        self.start(2, READY + SLEEP, True)
        pids = self.pids()
        os.kill(self.shell, signal.SIGHUP)
        self.until(pids, "ZX")


if __name__ == "__main__":
    skips.main()
