"""Ranks without a launcher: each gets an init_method that says where it meets the others."""
import os
import re
import socket
import subprocess
import tempfile
import threading
import unittest

import skips

MEET, THREADS = (os.path.join(os.environ["TERN_BUILD"], "tests", name) for name in ("meet", "threads"))
SAID = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TERN_PORT", "TERN_SECRET",
        "OMP_NUM_THREADS")
ENV = {name: value for name, value in os.environ.items() if name not in SAID}


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def run(ranks, *program):
    """Runs processes at the same time, each with its own arguments and environment. Returns [(exit code,
    stdout, stderr)]."""
    running = [subprocess.Popen([*program, *map(str, args)], env={**ENV, **env}, text=True, stdout=subprocess.PIPE,
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
        for rank, (code, out, err) in enumerate(run(ranks, MEET)):
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

    def test_another_program_has_the_port(self):
        """The other program answers with as many bytes as tern would."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            def answer():
                self.connection = server.accept()[0]
                self.connection.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n" + 200 * b"x")

            for env, text in (({}, "it is not tern, or it has a secret and this job has none (TERN_SECRET)"),
                              ({"TERN_SECRET": "00" * 32}, "it does not know this job's secret")):
                thread = threading.Thread(target=answer)
                thread.start()
                [(code, out, err)] = run([([f"tcp://127.0.0.1:{server.getsockname()[1]}?rank=1&world_size=2"], env)], MEET)
                thread.join()
                self.connection.close()
                self.assertEqual((code, out), (1, ""))
                self.assertRegex(err, re.escape(text) + "\n$")

    def check_threads(self, expected, *ranks, around=()):
        for each in run(ranks, *around, THREADS):
            self.assertEqual(each, (0, expected + "\n", ""))

    def test_ranks_share_the_cores(self):
        """Once all have met, the ranks know which of them share the host; before that only the environment
        tells."""
        cores = int(run([([], {})], THREADS)[0][1].split()[0])
        master = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
        url, share = "tcp://127.0.0.1:", max(1, cores // 2)
        self.check_threads(f"{cores} before, {share} after", *(([f"{url}{port}?rank={rank}&world_size=2"], {})
                                                               for port in [free_port()] for rank in range(2)))
        self.check_threads(f"{cores} before, {share} after",
                           *(([], {**master, "MASTER_PORT": port, "RANK": str(rank)}) for port in [str(free_port())] for rank in range(2)))
        self.check_threads(f"{share} before, {share} after",
                           *(([], {**master, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"})
                             for port in [str(free_port())] for rank in range(2)))
        self.check_threads("3 before, 3 after", *(([f"{url}{port}?rank={rank}&world_size=2"], {"OMP_NUM_THREADS": "3"})
                                                  for port in [free_port()] for rank in range(2)))


if __name__ == "__main__":
    skips.main()
