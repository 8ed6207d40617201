"""bench/images: both ways are measured, and the table shows the results."""
import os
import sys
import tempfile
import unittest
from unittest import mock

import skips

import numpy as np

sys.path[:0] = [os.path.join(os.environ["TERN_SOURCE"], *parts) for parts in (("bench", "images"), ("tests", "torch"))]
import measure  # noqa: E402


class ImagesTest(unittest.TestCase):
    def test_table(self):
        text = measure.table({"a way": {"tern": [300, 200, 100], "torchvision": [90, 80, 100]}}).splitlines()
        self.assertEqual(text[2], "| a way | 200 | 90 | 2.22 |")

    def test_a_round(self):
        with tempfile.TemporaryDirectory() as root, mock.patch.object(measure, "COUNT", 2):
            os.mkdir(os.path.join(root, "class"))
            for i in range(2):
                measure.image(np.random.default_rng(i)).save(os.path.join(root, "class", f"{i}.jpg"))
            rates = measure.measure(root, 1)
        self.assertEqual(list(rates), list(measure.WAYS))
        for of in rates.values():
            self.assertTrue(all(len(of[name]) == 1 and of[name][0] > 0 for name in ("tern", "torchvision")), of)


if __name__ == "__main__":
    skips.main()
