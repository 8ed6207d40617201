"""tern run where a system call moves a few bytes of a stream at a time, buffers are the smallest, and signals interrupt it a thousand
times a second: tests/preload/partial.c."""
import os
import subprocess

import job
import skips
from folder import InFolder
import test_nodes

PARTIAL = os.path.join(os.environ["TERN_BUILD"], "tests", "partial.so")
MEET = os.path.join(os.environ["TERN_BUILD"], "tests", "meet")

# A rank that is not meant itself: its writes are whole.
WHOLE = ["env", "-u", "LD_PRELOAD"]


class Partial(InFolder):
    def setUp(self):
        super().setUp()
        self.env = {**os.environ, "LD_PRELOAD": PARTIAL, "TERN_PLUGIN_PATH": os.environ["TERN_BUILD"]}

    def test_the_relay(self):
        """Every line arrives whole, in order, in the file and on the console."""
        code = "for i in range(200): sys.stdout.write(str(i) * (1 + i * 7 % 90) + '\\n')\nsys.stderr.write('last words\\n')\n"
        expected = [str(i) * (1 + i * 7 % 90) for i in range(200)]
        status, out, err = job.tern("run", "-n", "3", "--tee", "1", "--log-dir", self.folder, *WHOLE, *job.python(code), env=self.env)
        self.assertEqual((status, sorted(err.splitlines()[1:])), (0, ["[1] last words", "[2] last words", "last words"]))
        for rank in range(3):
            prefix = f"[default{rank}]:"
            self.assertEqual([line[len(prefix):] for line in out.splitlines() if line.startswith(prefix)], expected)
            (run,) = os.listdir(self.folder)
            self.assertEqual(job.read(os.path.join(self.folder, run, "attempt_0", str(rank), "stdout.log")).splitlines(), expected)

    def launch(self, node, port, *command):
        env = {**self.env, "TERN_HOST_ID": f"host{node}", "TERN_SECRET": "5e" * 32}
        line = [job.TERN, "run", "-n", "2", "--nnodes", "2", "--node-rank", str(node), "--master-port", str(port), *command]
        launcher = subprocess.Popen(line, text=True, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(launcher.stdout.close)
        self.addCleanup(launcher.stderr.close)
        self.addCleanup(launcher.wait)
        self.addCleanup(launcher.kill)
        return launcher

    def end(self, launchers):
        return [(*launcher.communicate(timeout=job.GIVE_UP), launcher.returncode) for launcher in launchers]

    def test_launchers_and_ranks_meet(self):
        port = test_nodes.free_port()
        (second, err1, code1), (first, err0, code0) = self.end([self.launch(node, port, MEET) for node in (1, 0)])
        self.assertEqual((err0, err1, code0, code1), ("", "", 0, 0))
        lines = sorted(line.rpartition("] ")[2] for line in (first + second).splitlines())
        self.assertEqual(lines, [f"rank {rank} of 4 ({rank % 2} here): 10" for rank in range(4)])

    def test_a_failure_crosses_hosts(self):
        port = test_nodes.free_port()
        code = "if rank == 3: sys.exit(9)\ntime.sleep(60)\n"
        for _, err, status in self.end([self.launch(node, port, *WHOLE, *job.python(code)) for node in (1, 0)]):
            self.assertEqual(status, 9, err)
            self.assertRegex(err, r"rank 3 \(pid \d+\).* exited with code 9")


if __name__ == "__main__":
    if not os.path.exists(PARTIAL):
        skips.end("libraries are not preloaded under a sanitizer")
    skips.main()
