"""The collectives compared with torch's over gloo, on 2 and 3 ranks."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Collectives(unittest.TestCase):
    def run_ranks(self, ranks):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
            command += [os.path.join(HERE, "collectives_rank.py"), os.path.join(folder, "meeting")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), ranks)

    def test_beside_gloo(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                self.run_ranks(ranks)


if __name__ == "__main__":
    skips.main()
