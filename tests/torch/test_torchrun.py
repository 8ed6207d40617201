"""torchrun starts tern programs: both what its agent takes at MASTER_PORT (a store of its own) and what it leaves free."""
import os
import re
import socket
import subprocess
import sys
import unittest

# torchrun of PyTorch 1.13 itself ends with an AttributeError under Python 3.11, whose enums print otherwise: what it makes of
# --redirects is given here. Newer ones are as they are. Its ranks look for the agent by the machine's name, which not every machine
# can resolve.
TORCHRUN = """
import socket
try:
    socket.gethostbyname(socket.gethostname())
except OSError:
    socket.getfqdn = lambda *_: "127.0.0.1"
from torch.distributed import run
from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.multiprocessing import Std, api
if hasattr(multiprocessing, "to_map"):
    api.to_map = multiprocessing.to_map = lambda _, ranks: {rank: Std.NONE for rank in range(ranks)}
run.main()
"""


def free_port():
    """One that is free, and so is the next."""
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


class Torchrun(unittest.TestCase):
    def check(self, *options):
        program = os.path.join(os.environ["TERN_BUILD"], "examples", "05_basic")
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, "-c", TORCHRUN, "--nproc_per_node=2", *options, "--no_python", program]
        done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall(r"^step \d  loss \d\.\d{6}$", done.stdout, re.M)), 10, done.stdout)

    def test_with_a_store_of_the_agent(self):
        self.check("--master_addr=127.0.0.1", f"--master_port={free_port()}")

    def test_standalone(self):
        self.check("--standalone")


if __name__ == "__main__":
    unittest.main()
