"""Two models, two ddps and two optimizers in turns, one frozen while the other learns, and an average that follows:
compared with one torch process on all ranks' samples."""
import os
import subprocess
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Gan(unittest.TestCase):
    def test_ranks(self):
        for ranks in (1, 2, 3):
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
            done = subprocess.run(command + [os.path.join(HERE, "gan_rank.py")], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("equal"), ranks, done.stdout)


if __name__ == "__main__":
    skips.main()
