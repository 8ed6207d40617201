"""tern_ddp compared with torch's DistributedDataParallel on 2 and 3 ranks: losses, and rank 0's state dict after 20
steps."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips
from half import torch_sums_in_f32

HERE = os.path.dirname(os.path.abspath(__file__))


class Ddp(unittest.TestCase):
    def run_ranks(self, ranks, model, bucket_bytes, *more):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
            command += [os.path.join(HERE, "ddp_rank.py"), model, str(bucket_bytes), os.path.join(folder, "meeting"), *more]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("equal", done.stdout)

    def test_mlp(self):
        self.run_ranks(2, "mlp", 0)

    def test_mlp_small_buckets(self):
        self.run_ranks(3, "mlp", 4096)

    @unittest.skipUnless(torch_sums_in_f32(), "PyTorch sums products of bf16 in bf16 on this CPU")
    def test_autocast(self):
        self.run_ranks(2, "mlp", 0, "bf16")
        self.run_ranks(3, "mlp", 4096, "bf16")

    def test_resnet(self):
        self.run_ranks(2, "resnet", 0)

    def test_resnet_small_buckets(self):
        self.run_ranks(2, "resnet", 4096)


if __name__ == "__main__":
    skips.main()
