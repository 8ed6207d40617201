"""A PyTorch program under tern run: torch.distributed meets at MASTER_PORT as under torchrun, also next to tern's own
group."""
import os
import socket
import subprocess
import tempfile
import unittest

import forked
import skips

PROGRAM = """
import ctypes, os, sys, torch, torch.distributed as dist
torch.set_num_threads(1)

def sum_by_torch(rank):
    dist.init_process_group("gloo")
    x = torch.full((1000,), float(rank + 1))
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x

def sum_by_tern(rank):
    import tern
    lib = tern.Library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    x = torch.full((1000,), float(rank + 1))
    lib.check("tern_all_reduce", group, ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(1000), 0, 0)
    lib.tern_group_close(group)
    return x

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for way in sys.argv[1:]:
    assert torch.equal({"torch": sum_by_torch, "tern": sum_by_tern}[way](rank), torch.full((1000,), world * (world + 1) / 2)), way
os.write(1, f"done {rank}{os.linesep}".encode())
"""


# Debian 13's PyTorch is built without libuv, which it wants unless told otherwise.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}


class TernRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        file = tempfile.NamedTemporaryFile("w", suffix=".py")
        cls.addClassCleanup(file.close)
        file.write(PROGRAM)
        file.flush()
        cls.program = [*forked.interpreter(), file.name]

    def check(self, ranks, *ways):
        command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *self.program, *ways]
        done = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(ranks):
            self.assertIn(f"done {rank}", done.stdout)

    def test_torch_over_two_launchers(self):
        """The launchers met at MASTER_PORT; after that torch uses it."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        env = {**ENVIRONMENT, "TERN_SECRET": "5e" * 32}
        command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "--nnodes", "2", "--master-port", str(port)]
        launchers = [subprocess.Popen(command + ["--node-rank", str(node), "-n", str(node + 1), *self.program, "torch"], env=env, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE) for node in (0, 1)]
        results = [launcher.communicate(timeout=60) for launcher in launchers]
        self.assertEqual([launcher.returncode for launcher in launchers], [0, 0], results)
        self.assertEqual(sorted(results[0][0].split() + results[1][0].split()), sorted("done 0 [1] done 1 [2] done 2".split()))

    def test_a_program_of_torch_alone(self):
        self.check(2, "torch")

    def test_torch_and_tern_in_one_job(self):
        self.check(2, "tern", "torch", "tern")


if __name__ == "__main__":
    skips.main()
