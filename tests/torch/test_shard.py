"""Sharded optimizers compared with torch's ZeroRedundancyOptimizer on 1 to 3 ranks: every rank's parameters after
every step, and the state gathered on the last rank; ranks that run out of batches join."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Shard(unittest.TestCase):
    def run_ranks(self, ranks, kind, inputs="even"):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
            command += [os.path.join(HERE, "shard_rank.py"), kind, inputs, os.path.join(folder, "meeting")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("equal", done.stdout)

    def test_sgd(self):
        self.run_ranks(2, "sgd")

    def test_adam(self):
        self.run_ranks(3, "adam")

    def test_adamw(self):
        self.run_ranks(2, "adamw")

    def test_rmsprop(self):
        self.run_ranks(2, "rmsprop")

    def test_lamb(self):
        self.run_ranks(3, "lamb")

    def test_join(self):
        self.run_ranks(3, "adam", "uneven")

    def test_one_rank(self):
        self.run_ranks(1, "adam")


if __name__ == "__main__":
    skips.main()
