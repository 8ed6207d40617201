"""Ranks leave out other parameters in every step: tern_ddp compared with torch with find_unused_parameters=True."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Unused(unittest.TestCase):
    def run_ranks(self, ranks, bucket_bytes):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
            command += [os.path.join(HERE, "ddp_unused_rank.py"), str(bucket_bytes), os.path.join(folder, "meeting")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), ranks, done.stdout)

    def test_ranks(self):
        for ranks, bucket_bytes in ((1, 0), (2, 64), (3, 0), (4, 300)):
            self.run_ranks(ranks, bucket_bytes)


if __name__ == "__main__":
    skips.main()
