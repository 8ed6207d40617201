"""Debian's Fashion-MNIST package through tern_idx_open compared with gzip and torch: every pixel, every label."""
import ctypes
import gzip
import os
import unittest

import numpy as np
import torch

import skips
import tern
from datasets import Dataset

FOLDER = "/usr/share/datasets/fashion-mnist"
MEAN, STD = 0.2860, 0.3530


class IdxOpts(ctypes.Structure):
    """tern_idx_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("classes", ctypes.c_int), ("mean", ctypes.c_float), ("std", ctypes.c_float)]


lib = tern.Library()
lib.returns(ctypes.POINTER(Dataset), "tern_idx_open")
lib.returns(IdxOpts, "tern_idx_defaults")


def paths(part):
    return [os.path.join(FOLDER, f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]


def unpacked(path, header):
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8)[header:]


def every_sample(dataset):
    """All samples: (length, 784) values and (length) labels."""
    length = dataset.contents.length
    x, y = np.empty((length, 784), np.float32), np.empty(length, np.int64)
    get, x_at, y_at = dataset.contents.get, x.ctypes.data, y.ctypes.data
    for i in range(length):
        if get(dataset, 0, i, x_at + i * 784 * 4, y_at + i * 8, None):
            raise RuntimeError(f"sample {i}")
    return x, y


@unittest.skipUnless(os.path.isdir(FOLDER), "no Fashion-MNIST (the package dataset-fashion-mnist)")
class FashionMnist(unittest.TestCase):
    def check(self, part, count, mean, std):
        opts = lib.tern_idx_defaults()
        opts.mean, opts.std = mean, std
        images, labels = paths(part)
        dataset = lib.check("tern_idx_open", images.encode(), labels.encode(), ctypes.byref(opts))
        self.assertEqual(dataset.contents.length, count)
        self.assertEqual(list(dataset.contents.shape)[: dataset.contents.ndim], [1, 28, 28])
        x, y = every_sample(dataset)
        lib.tern_dataset_free(dataset)
        pixels = torch.from_numpy(unpacked(images, 16).reshape(count, 784).copy())
        want = pixels.float().div(255).sub_(mean).div_(std)  # torchvision's ToTensor and Normalize
        self.assertTrue(np.array_equal(x.view(np.uint32), want.numpy().view(np.uint32)))
        self.assertTrue(np.array_equal(y, unpacked(labels, 8)))

    def test_training_set(self):
        self.check("train", 60000, MEAN, STD)

    def test_test_set(self):
        self.check("t10k", 10000, 0.0, 1.0)

    def test_files_swapped(self):
        images, labels = paths("t10k")
        with self.assertRaisesRegex(tern.TernError, "t10k-labels.*expected magic 0x00000803, got 0x00000801"):
            lib.check("tern_idx_open", labels.encode(), images.encode(), None)

    def test_counts_that_differ(self):
        with self.assertRaisesRegex(tern.TernError, "60000 images but .*t10k-labels.* has 10000 labels"):
            lib.check("tern_idx_open", paths("train")[0].encode(), paths("t10k")[1].encode(), None)


if __name__ == "__main__":
    skips.main()
