"""One epoch of the demo on 2 ranks, on few images: its output, its image, and whether it learns."""
import os
import re
import subprocess
import tempfile
import unittest

import skips
from busy import without_slow_ranks
from training import write_fashion

BUILD = os.environ["TERN_BUILD"]
# Convolution algorithms as for a user: rank 0 measures and the other rank follows.
USUAL = {**os.environ, "TERN_EXACT_CONV": "0", "TERN_DETERMINISTIC": "0", "TERN_CONV_CACHE": "off"}


class Demo(unittest.TestCase):
    def test_one_epoch(self):
        command = [os.path.join(BUILD, "tern"), "run", "-n", "2", os.path.join(BUILD, "examples", "02_fashion"), "1", "."]
        with tempfile.TemporaryDirectory() as folder:
            write_fashion(folder, 3840, 500)
            done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=580, cwd=folder, env=USUAL)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for line in without_slow_ranks(done.stderr).splitlines():  # without a terminal, progress is an occasional line
                self.assertRegex(line, r"^(epoch 1: +\d+% \d+/3840 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+img/s, loss=[\d.]+\]|(test|[12] ranks? x [12] threads?): .*)$")
            with open(os.path.join(folder, "predictions.png"), "rb") as picture:
                self.assertEqual(picture.read(8), b"\x89PNG\r\n\x1a\n")
            board = re.search(r"(?m)^  curves    tensorboard --logdir (runs/\S+_fashion)$", done.stdout).group(1)
            self.assertTrue(any("tfevents" in name for name in os.listdir(os.path.join(folder, board))))
        lines = done.stdout.splitlines()
        self.assertRegex(done.stdout, r"(?m)^  data      Fashion-MNIST, 3840 \+ 500 images, 1 epoch$")
        self.assertRegex(done.stdout, r"(?m)^  batch     64 x 2 = 128$")
        self.assertRegex(done.stdout, r"(?m)^  back end  native, 2 ranks$")
        epoch = r"(?m)^epoch 1  loss \d\.\d{4}  train \d+\.\d\d %  test \d+\.\d\d %  \d+ images/s  \d+\.\d s$"
        self.assertRegex(done.stdout, epoch)
        speeds = re.search(r"(?m)^measuring speed \.\.\nimages/s  1 rank x 1 thread: (\d+)   1 rank x 2 threads: (\d+)   2 ranks x 1 thread: (\d+)", done.stdout)
        self.assertTrue(all(int(speed) > 0 for speed in speeds.groups()))
        self.assertRegex(lines[-2], r"^weights identical on 2 ranks: [0-9a-f]{16}$")
        accuracy = re.fullmatch(r"test accuracy (\d+\.\d\d) %", lines[-1])
        self.assertGreater(float(accuracy.group(1)), 85)  # 10 % is chance


if __name__ == "__main__":
    skips.main()
