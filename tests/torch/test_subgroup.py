"""Groups made from the world compared with torch's new_group on 3 and 4 ranks, and a ddp on each of them."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Subgroup(unittest.TestCase):
    def run_ranks(self, ranks):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
            command += [os.path.join(HERE, "subgroup_rank.py"), os.path.join(folder, "meeting")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), ranks)

    def test_new_group(self):
        for ranks in (3, 4):
            with self.subTest(ranks=ranks):
                self.run_ranks(ranks)


if __name__ == "__main__":
    skips.main()
