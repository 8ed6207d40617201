"""tern_cifar_open on files in the binary format, written as its page describes it."""
import ctypes
import os

import numpy as np
import torch

import datasets
import skips
import tern
from folder import InFolder

DRAW = np.random.default_rng(34)


class CifarOpts(ctypes.Structure):
    """tern_cifar_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("classes", ctypes.c_int), ("test", ctypes.c_bool), ("coarse", ctypes.c_bool)]


lib = tern.Library()
lib.returns(CifarOpts, "tern_cifar_defaults")
lib.returns(ctypes.POINTER(datasets.Dataset), "tern_cifar_open")


class CifarTest(InFolder):
    def put(self, name, count, classes):
        labels = np.stack([DRAW.integers(0, n, count) for n in classes], 1).astype(np.uint8)
        pixels = DRAW.integers(0, 256, (count, 3, 32, 32)).astype(np.uint8)
        with open(os.path.join(self.folder, name), "wb") as file:
            for i in range(count):
                file.write(labels[i].tobytes() + pixels[i].tobytes())
        return pixels, labels

    def open(self, **options):
        opts = lib.tern_cifar_defaults()
        for name, value in options.items():
            setattr(opts, name, value)
        return lib.check("tern_cifar_open", self.folder.encode(), ctypes.byref(opts))

    def expect(self, pixels, labels, count, **options):
        dataset = self.open(**options)
        d = dataset.contents
        self.assertEqual((d.length, tuple(d.shape[:3]), d.classes), (len(pixels), (3, 32, 32), count))
        for i in range(d.length):
            x, y = np.empty((3, 32, 32), np.float32), ctypes.c_int64()
            self.assertEqual(d.get(dataset, 0, i, x.ctypes.data, ctypes.addressof(y), None), 0)
            np.testing.assert_array_equal(x, torch.from_numpy(pixels[i]).div(255).numpy())
            self.assertEqual(y.value, labels[i])
        lib.tern_dataset_free(dataset)

    def test_cifar10(self):
        parts = [self.put(f"data_batch_{i}.bin", 3 + i, (10,)) for i in range(1, 6)]
        self.expect(*(np.concatenate([p[k] for p in parts]) for k in range(2)), 10)
        pixels, labels = self.put("test_batch.bin", 4, (10,))
        self.expect(pixels, labels, 10, test=True)

    def test_cifar100(self):
        for name, test in (("train.bin", False), ("test.bin", True)):
            pixels, labels = self.put(name, 9, (20, 100))
            self.expect(pixels, labels[:, 1], 100, classes=100, test=test)
            self.expect(pixels, labels[:, 0], 20, classes=100, test=test, coarse=True)

    def refused(self, code, text, **options):
        with self.assertRaisesRegex(tern.TernError, text) as caught:
            self.open(**options)
        self.assertEqual(caught.exception.code, code)

    def test_what_is_wrong(self):
        self.refused(-5, "cannot open .*/data_batch_1.bin: No such file")
        path = os.path.join(self.folder, "test_batch.bin")
        for size in (0, 3072, 3 * 3073 - 1):
            self.put("test_batch.bin", 3, (10,))
            os.truncate(path, size)
            self.refused(-6, f"test_batch.bin has {size} bytes, expected a multiple of 3073", test=True)
        self.put("test_batch.bin", 3, (10,))
        with open(path, "r+b") as file:
            file.seek(2 * 3073)
            file.write(b"\x0a")
        self.refused(-7, r"test_batch.bin: record 2 has label 10, expected \[0, 9\]", test=True)
        self.refused(-7, "classes is 20, expected 10 or 100", classes=20)
        self.refused(-1, "CIFAR-10 has no coarse labels", coarse=True)


if __name__ == "__main__":
    skips.main()
