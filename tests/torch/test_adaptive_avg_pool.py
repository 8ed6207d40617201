"""Adaptive average pooling of planes and volumes against torch."""
import ctypes
import unittest

import numpy
import torch
import torch.nn.functional as F

import skips
import tern
from half import compare_half
from ops import Run, blocked, compare, gradient_check

DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
CASES = [  # shape, sizes
    ((2, 5, 9, 11), [(1, 1), (3, 3), (4, 7), (9, 11), (12, 5), (20, 23)]),
    ((3, 16, 6, 5), [(1, 1), (2, 3), (7, 4)]),
    ((1, 3, 40, 70), [(6, 6), (1, 64)]),
    ((2, 3, 4, 5, 7), [(1, 1, 1), (2, 2, 3), (4, 1, 9)]),
    ((1, 16, 3, 4, 5), [(1, 1, 1), (2, 3, 2), (5, 4, 6)]),
]


def pool(run, x, size):
    return run.op(f"tern_adaptive_avg_pool{len(size)}d", x, *map(ctypes.c_int64, size))


def oracle(x, size):
    return getattr(F, f"adaptive_avg_pool{len(size)}d")(x, size)


class AdaptiveAvgPoolTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype="f"):
        return self.rng.standard_normal(shape).astype(dtype)

    def test_values_and_gradients(self):
        for device, dtype, tolerance in DEVICES:
            for shape, sizes in CASES:
                for prepare in (lambda run, x: x,) + ((blocked,) if shape[1] % 16 == 0 else ()):
                    for size in sizes:
                        op = lambda run, x: pool(run, prepare(run, x), size)
                        compare(f"{shape} {size} {device} {prepare.__name__}", op, lambda x: oracle(x, size), [self.draw(shape, dtype)], tolerance, device)

    def test_random_sizes(self):
        for turn in range(20):
            axes = turn % 2 + 2
            shape = (1, (16, 5, 16, 3)[turn % 4], *map(int, self.rng.integers(1, 14, axes)))
            size = tuple(map(int, self.rng.integers(1, 14, axes)))
            prepare = blocked if shape[1] % 16 == 0 else lambda run, x: x
            compare(f"{shape} {size}", lambda run, x: pool(run, prepare(run, x), size), lambda x: oracle(x, size), [self.draw(shape)], 2e-6, threads=turn % 3 + 1)

    def test_one_sample(self):
        for device, dtype, tolerance in DEVICES:
            for shape, size in (((5, 9, 11), (4, 7)), ((16, 6, 5), (1, 1)), ((3, 4, 5, 7), (2, 2, 3))):
                compare(f"{shape} {size} {device}", lambda run, x: pool(run, x, size), lambda x: oracle(x, size), [self.draw(shape, dtype)], tolerance, device)

    def test_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            compare_half("planes", lambda run, x: pool(run, x, (4, 3)), lambda x: oracle(x, (4, 3)), [self.draw((2, 5, 9, 8))], device)
            compare_half("volumes", lambda run, x: pool(run, x, (2, 3, 4)), lambda x: oracle(x, (2, 3, 4)), [self.draw((1, 3, 4, 5, 6))], device)

    def test_gradients_by_finite_differences(self):
        gradient_check("planes", lambda run, x: pool(run, x, (3, 2)), [self.draw((2, 3, 5, 7), "d")])

    def test_modules(self):
        run = Run()
        for shape, size in (((2, 3, 7, 5), (3, 2)), ((2, 3, 4, 5, 6), (2, 1, 4))):
            x = self.draw(shape)
            layer = run.layer(f"tern_adaptive_avg_pool{len(size)}d_new", *map(ctypes.c_int64, size))
            numpy.testing.assert_allclose(run.value(run.forward(layer, run.constant(x))), oracle(torch.tensor(x), size).numpy(), rtol=1e-5, atol=1e-6)
        run.close()

    def test_errors(self):
        one = numpy.zeros((1, 1, 4, 4), "f")
        for x, size, code, text in (
            (one[0, 0], (2, 2), -2, "tern_adaptive_avg_pool2d: adaptive pooling: expected (N, C, H, W) or (C, H, W), empty at most in N, got (4, 4)"),
            (one[0], (2, 2, 2), -2, "expected (N, C, D, H, W) or (C, D, H, W), empty at most in N, got (1, 4, 4)"),
            (one[:, :, :0], (2, 2), -2, "got (1, 1, 0, 4)"),
            (one[0, :, :0], (2, 2), -2, "got (1, 0, 4)"),
            (one.astype("i8"), (2, 2), -3, "adaptive pooling: expected floating point, got i64"),
            (one, (2, 0), -7, "adaptive pooling: expected sizes of at least 1"),
            (one, (-1, 2), -7, "adaptive pooling: expected sizes of at least 1"),
            (one, (2**31 - 2, 2**31 - 2), -2, ""),
        ):
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                pool(run, run.constant(x), size)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
