"""Gradients reduced in f16 compared with torch's fp16_compress_hook, on two ranks: compress_rank.py. (gloo has no
bf16.)"""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class Compress(unittest.TestCase):
    def test_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", "2", *forked.interpreter()]
            command += [os.path.join(HERE, "compress_rank.py"), os.path.join(folder, "meeting")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), 2)


if __name__ == "__main__":
    skips.main()
