"""PyTorch's own distributed tests pass with tern in gloo's place (own.py)."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import extension

extension.enter()
import skips

HERE = os.path.dirname(os.path.abspath(__file__))
AT_LEAST = 80  # tests that are not skipped: they run


class Own(unittest.TestCase):
    def check(self, world):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("barrier", "test_dir", "init_dir"):
                os.mkdir(os.path.join(folder, name))
            env = {**os.environ, "BACKEND": "gloo", "TEMP_DIR": folder, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
            env.pop("CI", None)  # PyTorch's tests then write a report, with a package that Debian lacks
            command = [sys.executable, "-W", "ignore", os.path.join(HERE, "own.py")]
            done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=500)
        failed = re.findall(r"^(?:ERROR|FAIL|UNEXPECTED SUCCESS): \S+.*", done.stderr, re.M)
        last = done.stderr[-3000:]
        self.assertEqual(done.returncode, 0, "\n".join([*failed, last]))
        ran, skipped = re.search(r"^Ran (\d+) tests", done.stderr, re.M), re.search(r"skipped=(\d+)", last)
        self.assertGreater(int(ran[1]) - int(skipped[1]), AT_LEAST, last)

    def test_two_ranks(self):
        self.check(2)

    def test_more_ranks(self):
        """They take long, so beside Debian's PyTorch there are two."""
        for world in (3, 4) if extension.TORCH == "newest" else ():
            with self.subTest(world=world):
                self.check(world)


if __name__ == "__main__":
    skips.main()
