"""Opt levels O0 to O3 compared with apex's arithmetic in PyTorch, on 1 and 2 ranks, with forced overflows:
amp_rank.py."""
import os
import subprocess
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Amp(unittest.TestCase):
    def run_ranks(self, ranks, model, *levels):
        command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
        command += [os.path.join(HERE, "amp_rank.py"), model, *map(str, levels)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), ranks)

    def test_mlp(self):
        self.run_ranks(2, "mlp", 0, 1, 2, 3)

    def test_mlp_alone(self):
        self.run_ranks(1, "mlp", 2)

    def test_resnet(self):
        self.run_ranks(1, "resnet", 1, 3)

    def test_resnet_of_two_ranks(self):
        self.run_ranks(2, "resnet", 0, 2)


if __name__ == "__main__":
    skips.main()
