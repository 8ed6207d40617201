"""A test that forked.py runs ends as under an interpreter of its own, with the same output, and does not outlive it. The servers of these
tests import empty modules instead of torch, apart from one."""
import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import folder

TESTS = os.path.join(os.environ["TERN_SOURCE"], "tests")
FORKED = sys.executable, "-I", "-S", os.path.join(TESTS, "forked.py")
ENDINGS = {
    "passes": "import skips, unittest\nclass T(unittest.TestCase):\n def test(self): pass\nskips.main()",
    "fails": "import skips, unittest\nclass T(unittest.TestCase):\n def test(self): self.assertEqual(1, 2)\nskips.main()",
    "skips": "import skips\nskips.end('no sky')",
    "imports": "import no_such_module",
    "raises": "def f(): raise ValueError('x')\nf()",
    "syntax": "def f(:",
    "status": "import sys\nsys.exit(3)",
    "text": "import sys\nsys.exit('why')",
    "segfault": "import ctypes\nprint('before', flush=True)\nctypes.string_at(0)",
    "abort": "import os\nos.abort()",
    "killed": "import os\nos.kill(os.getpid(), 9)",
    "broken_pipe": "import os, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGPIPE)",
    "exit_handler": "import atexit, ctypes\natexit.register(print, 'at exit')\nctypes.CDLL(None).printf(b'in C\\n')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "around": "import os, sys\nprint(os.read(3, 9), os.read(9, 9), os.listdir('/proc/self/fd'), os.getcwd(), sorted(os.environ.items()), sys.argv, sys.path, sys.stdin.read(), __file__, __name__)",
}
IDLE = "import sys\nif hasattr(sys.modules['__main__'], 'IDLE'): sys.modules['__main__'].IDLE = "


class Forked(folder.InFolder):
    def setUp(self):
        super().setUp()
        modules = os.path.join(self.folder, "modules")
        os.mkdir(modules)
        for name in ("numpy", "torchvision"):
            open(os.path.join(modules, f"{name}.py"), "w", encoding="utf-8").close()
        self.environment = {**os.environ, "TERN_BUILD": self.folder, "TERN_TEST_SKIPS": os.devnull}
        self.environment["PYTHONPATH"] = os.pathsep.join((modules, TESTS))
        self.arguments = ()
        self.idle(0.5)

    def idle(self, seconds):
        with open(os.path.join(self.folder, "modules", "torch.py"), "w", encoding="utf-8") as file:
            file.write(f"{IDLE}{seconds}")

    def script(self, name, text):
        path = os.path.join(self.folder, f"test_{name}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run_script(self, path, interpreter=FORKED, **variables):
        around = {**self.environment, **variables}
        command = ["sh", "-c", '"$@" 3</etc/passwd 9</etc/group', "sh", *interpreter, path, *self.arguments]
        return subprocess.run(command, input="given\n", capture_output=True, text=True, env=around, cwd=self.folder)

    def test_ends_as_under_an_interpreter(self):
        for name, text in ENDINGS.items():
            with self.subTest(name):
                path = self.script(name, text)
                self.arguments = ("an argument", "") if name == "around" else ()
                got, want = self.run_script(path), self.run_script(path, (sys.executable,))
                without_time = [[re.sub(r"in [\d.]+s", "in a time", stream) for stream in (end.stdout, end.stderr)] for end in (got, want)]
                self.assertEqual(*without_time)
                self.assertEqual(got.returncode, want.returncode)
                self.assertTrue(name != "around" or got.returncode == 0, got.stderr)

    def test_a_server_serves_one_environment(self):
        self.idle(20)
        path = self.script("server", "import os\nprint(os.getppid(), os.environ.get('TERN_X'), os.environ.get('OMP_NUM_THREADS'))")
        around = {"TERN_X": "1"}, {"TERN_X": "2"}, {"OMP_NUM_THREADS": "3"}, {"LD_PRELOAD": ""}
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            runs = list(pool.map(lambda variables: self.run_script(path, **variables).stdout.split(), around * 3))
        self.assertEqual(len({server for server, *_ in runs}), 3)
        for i, (server, *values) in enumerate(runs):
            self.assertEqual(values, [str(around[i % 4].get(name, os.environ.get(name))) for name in ("TERN_X", "OMP_NUM_THREADS")])
            self.assertEqual(server, runs[max(1, i % 4)][0])

    def test_the_peers_python_has_a_server_of_its_own(self):
        self.idle(20)
        peers = os.path.join(self.folder, "peers")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", peers], check=True)
        text = "import peers\npeers.enter()\nimport os, sys\nprint(sys.prefix, sys.argv[1:], os.getppid())\nsys.exit(3)"
        path, self.arguments = self.script("peers", text), ("an argument", "")
        got = [self.run_script(path, TERN_PEERS=peers) for _ in range(2)]
        self.assertEqual([end.returncode for end in got], [3, 3], got[0].stderr)
        self.assertEqual(got[0].stdout, got[1].stdout)  # the same server
        alone = self.run_script(path, (sys.executable,), TERN_PEERS=peers)
        self.assertEqual(got[0].stdout.split()[:-1], alone.stdout.split()[:-1])
        self.assertEqual(len([name for name in os.listdir(self.folder) if name.startswith("forkserver-")]), 2)

    def becomes_true(self, condition):
        end = time.monotonic() + 20
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)
        return condition()

    def test_a_test_is_killed_with_its_client(self):
        path = self.script("long", "import os, time\nprint(os.getpid(), os.getppid(), flush=True)\ntime.sleep(60)")
        with subprocess.Popen([*FORKED, path], env=self.environment, stdout=subprocess.PIPE, text=True) as client:
            test, server = client.stdout.readline().split()
            client.send_signal(signal.SIGKILL)
            self.assertEqual(client.stdout.read(), "")  # which ends when nobody has the stream any more
        self.assertTrue(self.becomes_true(lambda: not os.path.exists(f"/proc/{test}")))
        self.assertEqual(self.run_script(self.script("passes", "print('here')")).stdout, "here\n")
        self.assertTrue(self.becomes_true(lambda: not os.path.exists(f"/proc/{server}")))
        self.assertTrue(self.becomes_true(lambda: not [name for name in os.listdir(self.folder) if "forkserver" in name]))

    def test_a_server_keeps_nothing_of_its_clients(self):
        self.idle(20)
        path = self.script("server", "import os\nprint(os.getppid())")
        fds = f"/proc/{self.run_script(path).stdout.strip()}/fd"
        want = sorted(["/dev/null", "/dev/null", self.folder, "socket"])

        def kept():
            with contextlib.suppress(FileNotFoundError):  # of one that it is about to close
                return sorted(os.readlink(os.path.join(fds, fd)).split(":")[0] for fd in os.listdir(fds))

        self.assertTrue(self.becomes_true(lambda: kept() == want), kept())

    def test_a_server_may_end_at_any_time(self):
        self.idle(0.02)
        path = self.script("passes", "print('here')")
        for i in range(20):
            self.assertEqual(self.run_script(path).stdout, "here\n")
            time.sleep(0.002 * i)

    def test_a_killed_server_fails_the_test(self):
        path = self.script("kill", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)")
        got = self.run_script(path)
        self.assertEqual((got.returncode, got.stderr), (1, "forked.py: the server has ended before the test\n"))
        self.assertEqual(self.run_script(self.script("passes", "print('here')")).stdout, "here\n")

    def test_a_folder_without_sockets(self):
        got = self.run_script(self.script("passes", "import sys\nprint(*sys.argv[1:])\nsys.exit(3)"), TERN_BUILD="/proc")
        self.assertEqual((got.returncode, got.stdout, got.stderr), (3, "\n", ""))

    def test_torch_leaves_no_thread(self):
        around = {"PYTHONPATH": TESTS, "OMP_NUM_THREADS": "2"}
        path = self.script("threads", "import os, sys\nprint(*(len(os.listdir(f'/proc/{pid}/task')) for pid in (os.getpid(), os.getppid())), 'torch' in sys.modules)")
        self.assertEqual(self.run_script(path, **around).stdout, f"1 1 {self.has_torch()}\n")

    def has_torch(self):
        return not subprocess.run([sys.executable, "-c", "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"]).returncode


if __name__ == "__main__":
    import skips

    skips.main()
