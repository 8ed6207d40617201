"""Ranks that nobody launches: each is told by an init_method, by hand, where it meets the others."""
import os
import socket
import subprocess
import tempfile
import unittest

MEET = os.path.join(os.environ["TERN_BUILD"], "tests", "meet")
SAID = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TERN_PORT", "TERN_SECRET")
ENV = {name: value for name, value in os.environ.items() if name not in SAID}


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def run(ranks):
    """[(exit code, stdout, stderr)] of processes that run together: each has the arguments of meet and its environment."""
    running = [subprocess.Popen([MEET, *map(str, args)], env={**ENV, **env}, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE) for args, env in ranks]
    ended = []
    try:
        for each in running:
            out, err = each.communicate(timeout=60)
            ended.append((each.returncode, out, err))
    finally:
        for each in running:
            each.kill()
            each.wait()
    return ended


class InitMethod(unittest.TestCase):
    def check(self, *ranks):
        total = len(ranks) * (len(ranks) + 1) // 2
        for rank, (code, out, err) in enumerate(run(ranks)):
            self.assertEqual((code, out, err), (0, f"rank {rank} of {len(ranks)} ({rank} here): {total}\n", ""))

    def test_tcp(self):
        for host in ("127.0.0.1", "localhost"):
            url = f"tcp://{host}:{free_port()}"
            self.check(*(([f"{url}?rank={rank}&world_size=3"], {}) for rank in range(3)))

    def test_tcp_with_rank_and_world_as_options(self):
        url = f"tcp://127.0.0.1:{free_port()}"
        self.check(*(([url, rank, 2], {}) for rank in range(2)))

    def test_file(self):
        with tempfile.TemporaryDirectory() as folder:
            url = f"file://{folder}/meet"
            for world in (1, 2, 3):
                self.check(*(([f"{url}?rank={rank}&world_size={world}"], {}) for rank in range(world)))
                self.assertEqual(os.listdir(folder), [])

    def test_env(self):
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        self.check((["env://?rank=0"], master), (["env://"], {**master, "RANK": "1"}))


if __name__ == "__main__":
    unittest.main()
