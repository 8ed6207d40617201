"""tern_ddp_join compared with torch's DistributedDataParallel.join on 2 to 4 ranks with unequal numbers of batches."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Join(unittest.TestCase):
    def run_ranks(self, initial, bucket_bytes, batches):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(len(batches)), *forked.interpreter()]
            command += [os.path.join(HERE, "ddp_join_rank.py"), str(int(initial)), str(bucket_bytes), ",".join(map(str, batches))]
            done = subprocess.run(command + [os.path.join(folder, "meeting")], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), len(batches), done.stdout)

    def test_by_the_initial_number_of_ranks(self):
        self.run_ranks(True, 0, (5, 8))
        self.run_ranks(True, 64, (7, 4, 4))

    def test_by_the_ranks_that_are_left(self):
        self.run_ranks(False, 64, (8, 5))
        self.run_ranks(False, 0, (3, 6, 1, 6))

    def test_equally_many(self):
        self.run_ranks(False, 0, (4, 4))


if __name__ == "__main__":
    skips.main()
