"""Helpers for the tests of the command: they start real processes and wait for them with deadlines."""
import ctypes
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time

from busy import without_slow_ranks
from folder import InFolder

TERN = os.path.join(os.environ["TERN_BUILD"], "tern")
PARTS = os.path.join(os.environ["TERN_BUILD"], "bench_parts")

# Seconds after which a test gives up waiting. It is no measure of speed, as machines may be slow and busy. Whatever a test expects
# not to happen would take longer: ranks sleep for a minute, and grace periods are as long.
GIVE_UP = 30

# A rank's last line. Python runs no handler of a signal that comes just before a sleep until that sleep ends, so the sleeps are short.
SLEEP = "for _ in range(600): time.sleep(0.1)\n"

# Tests in the background or under nohup ignore signals. The launcher would inherit that and ignore them too, so restore the defaults.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def python(code, *args):
    """Returns the command line of a rank that runs `code`."""
    return [sys.executable, "-S", "-E", "-c", "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + code, *args]


def run(*command, **options):
    """Runs a command to its end and returns (exit code, stdout, stderr)."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": GIVE_UP, **options}
    done = subprocess.run(command, text=True, **options)
    return done.returncode, done.stdout, done.stderr


def tern(*args, **options):
    return run(TERN, *args, **options)


def bench(ranks, *command):
    """Returns the JSON lines that rank 0 of a bench prints; any other output fails the test, except a note on features that the CPU
    lacks."""
    launcher = [TERN, "run", "-n", str(ranks)] if ranks > 1 else []
    code, out, err = run(*launcher, *command, "--json", timeout=4 * GIVE_UP)  # it computes all the time, so it may take long
    err = re.sub(r"^tern: warn: autocast: this machine lacks .*\n", "", without_slow_ranks(err), flags=re.M)
    assert (code, err) == (0, ""), (code, out, err)
    return [json.loads(line) for line in out.splitlines()]


def refused(test, who, command, text):
    """The error begins with `who` and has the text."""
    code, out, err = run(*command)
    test.assertEqual((code, out), (2, ""))
    test.assertTrue(err.startswith(who), err)
    test.assertIn(text, err)


def forbid(number, native):
    """Makes a system call of this process and its children fail with an errno, as in an older kernel or a container that forbids it. Only
    from 424 on are numbers the same on all architectures."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | native), (0x06, 0, 0, 0x7fff0000)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(filters)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "cannot filter system calls")


def until(condition, what, seconds=GIVE_UP):
    """Polls until `condition()` is true and returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"after {seconds} s: not {what}")
        time.sleep(0.005)
    return time.monotonic() - start


def is_quick(seconds, attempt):
    """Does `attempt`, which returns its duration in seconds, ever take less than `seconds`? It gets several tries, since a busy
    machine may delay it; an attempt that waits for a time-out of `seconds` never takes less."""
    return any(attempt() < seconds for _ in range(10))


def state(pid):
    """Returns the state of a process: "S" sleeping, "Z" zombie, "X" if there is none."""
    try:
        return read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid):
    """Is the process alive? A zombie counts as dead, since the tests do not control who reaps an orphan."""
    return state(pid) not in "ZX"


def read(path):
    with open(path) as file:
        return file.read()


def screen(text, columns=80):
    """Returns the lines that a terminal of so many columns shows after it got the text, without blanks at their ends. It knows what
    tern writes: carriage returns, wrapping, erasing (J, K) and moving up (A)."""
    lines, row, column = [{}], 0, 0
    for found in re.finditer(r"\x1b\[(\d*)([AJK])|(.)", text, re.S):
        count, command, char = found.groups()
        if command == "A":
            row = max(0, row - int(count or 1))
        elif command:
            lines[row] = {at: sign for at, sign in lines[row].items() if at < column}
            if command == "J":
                del lines[row + 1:]
        elif char == "\r":
            column = 0
        else:
            if char == "\n" or column == columns:
                row, column = row + 1, 0 if char != "\n" else column
                lines += [{}] if row == len(lines) else []
            if char != "\n":
                lines[row][column] = char
                column += 1
    shown = ["".join(line.get(at, " ") for at in range(max(line, default=-1) + 1)).rstrip() for line in lines]
    return shown if shown[-1] else shown[:-1]


def ready_pids(folder, ranks):
    """Returns the pids of the ranks once all are ready."""
    names = [os.path.join(folder, f"ready{rank}") for rank in range(ranks)]
    until(lambda: all(map(os.path.exists, names)), "all ranks ready")
    return [int(read(name)) for name in names]


class Launchers(InFolder):
    """A test of several launchers in the background, whose ranks write into its folder."""

    def end(self, launcher):
        if launcher.poll() is None:
            launcher.kill()
        launcher.wait()
        launcher.stdout.close()
        launcher.stderr.close()

    def pids(self, ranks):
        return ready_pids(self.folder, ranks)


class Job:
    """A launcher in the background. A rank that is ready writes its pid into a file named after it."""

    def __init__(self, folder, ranks, command, options=(), **popen):
        self.folder, self.ranks = folder, ranks
        popen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        self.launcher = subprocess.Popen([TERN, "run", "-n", str(ranks), *options, *command], text=True, cwd=folder, **popen)

    READY = "with open('ready.tmp%d' % rank, 'w') as file: file.write(str(os.getpid()))\nos.rename('ready.tmp%d' % rank, 'ready%d' % rank)\n"

    def pids(self):
        return ready_pids(self.folder, self.ranks)

    def end(self):
        """Returns (exit code, stdout, stderr)."""
        out, err = self.launcher.communicate(timeout=GIVE_UP)
        return self.launcher.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.launcher.poll() is None:
            self.launcher.kill()
        for stream in (self.launcher.stdin, self.launcher.stdout, self.launcher.stderr):
            if stream:
                stream.close()
        self.launcher.wait()


def lines_of(rank, text):
    """Returns what ranks 1.. printed, without the prefix."""
    return [line[len(f"[{rank}] "):] for line in text.splitlines() if line.startswith(f"[{rank}] ")]


def named_failure(text):
    """Finds the launcher's line about a failing rank: (rank, what happened)."""
    found = re.findall(r"^tern run: rank (\d+) \(pid \d+\) (.*)$", text, re.M)
    assert len(found) == 1, text
    return int(found[0][0]), found[0][1]
