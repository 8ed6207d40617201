"""tern_ddp_stats compared with torch's DDP logging data for the same models on 2 and 3 ranks."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class DdpStats(unittest.TestCase):
    def run_ranks(self, ranks, model, bucket_bytes):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
            command += [os.path.join(HERE, "ddp_stats_rank.py"), model, str(bucket_bytes), os.path.join(folder, "meeting")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("equal", done.stdout)

    def test_mlp(self):
        self.run_ranks(3, "mlp", 4096)

    def test_resnet(self):
        self.run_ranks(2, "resnet", 16384)


if __name__ == "__main__":
    skips.main()
