"""cumsum, tril and triu compared with torch: values, gradients, every dimension, dtypes, strided and empty inputs."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from half import compare_half
from ops import Run, compare, gradient_check, thread_counts

DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-14), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-14)]
SHAPES = [(1,), (7,), (3, 5), (2, 3, 4), (5, 300), (300, 5), (3, 70, 33), (2, 3, 4, 5, 2)]
DIAGONALS = (0, 1, -1, 3, -2, 1000, -1000)


def cumsum(run, x, dim):
    return run.op("tern_cumsum", x, dim)


def triangle(run, name, x, diagonal):
    return run.op("tern_" + name, x, ctypes.c_int64(diagonal))


class CumsumTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def test_values_and_gradients(self):
        for (device, dtype, tolerance), shape in itertools.product(DEVICES, SHAPES):
            for dim in range(-len(shape), len(shape)):
                x = self.rng.standard_normal(shape).astype(dtype)
                compare(f"{device} {dtype} {shape} {dim}", lambda run, x: cumsum(run, x, dim), lambda x: x.cumsum(dim), [x], tolerance, device)

    def test_long(self):
        """The sum is made in double: what was added first is not lost."""
        x = numpy.full(1 << 20, 0.1, "f")
        run = Run()
        numpy.testing.assert_allclose(run.value(cumsum(run, run.constant(x), 0)), x.astype("d").cumsum(), 1e-7)
        run.close()

    def test_integers(self):
        """As i64, which wraps."""
        arrays = [numpy.array([2**63 - 1, 5, -7, 2**62]), self.rng.integers(-100, 100, (3, 5)).astype("i4"), self.rng.integers(0, 256, (4, 300)).astype("u1"),
                  numpy.array([True, False, True])]
        for device, x in itertools.product(("cpu", "cpu:reference"), arrays):
            run = Run(device)
            got, want = run.value(cumsum(run, run.constant(x), -1)), torch.tensor(x).cumsum(-1).numpy()
            numpy.testing.assert_array_equal(got, want)
            self.assertEqual(got.dtype, want.dtype)
            run.close()

    def test_strided(self):
        for device, dtype, tolerance in DEVICES:
            x = self.rng.standard_normal((4, 6, 5)).astype(dtype)
            op = lambda run, x: cumsum(run, run.op("tern_transpose", x, 0, 2), 1)
            compare(f"strided {device}", op, lambda x: x.transpose(0, 2).cumsum(1), [x], tolerance, device)

    def test_used_twice(self):
        """Gradients add up, and nothing that is still needed is overwritten."""
        x = self.rng.standard_normal((4, 6)).astype("f")
        op = lambda run, x: run.op("tern_mul", cumsum(run, x, 0), run.op("tern_tanh", run.op("tern_add", cumsum(run, x, 1), x)))
        for device in ("cpu", "cpu:reference"):
            compare("twice", op, lambda x: x.cumsum(0) * torch.tanh(x.cumsum(1) + x), [x], 3e-6, device)

    def test_16_bits(self):
        for device, dim in itertools.product(("cpu", "cpu:reference"), (0, 1)):
            compare_half("cumsum", lambda run, x: cumsum(run, x, dim), lambda x: x.cumsum(dim), [self.rng.standard_normal((20, 30)).astype("f")], device)

    def test_same_bits_for_any_number_of_threads(self):
        x, seen = self.rng.standard_normal((300, 400)).astype("f"), set()
        for threads in thread_counts(1, 2, 3):
            run = Run("cpu", threads)
            seen.add(b"".join(run.value(cumsum(run, run.constant(x), dim)).tobytes() for dim in (0, 1)))
            run.close()
        self.assertEqual(len(seen), 1)

    def test_scalars_and_nothing(self):
        for device in ("cpu", "cpu:reference"):
            compare("scalar", lambda run, x: cumsum(run, x, 0), lambda x: x.cumsum(0), [numpy.array(3.0, "f")], 0, device)
            for shape, dim in (((0,), 0), ((0, 3), 1), ((3, 0), 0)):
                compare(f"{shape}", lambda run, x: cumsum(run, x, dim), lambda x: x.cumsum(dim), [numpy.zeros(shape, "f")], 0, device)

    def test_finite_differences(self):
        gradient_check("cumsum", lambda run, x: cumsum(run, x, 1), [self.rng.standard_normal((3, 5))])

    def test_errors(self):
        run = Run()
        with self.assertRaises(tern.TernError) as caught:
            cumsum(run, run.constant(numpy.ones((3, 4), "f")), 2)
        self.assertEqual(caught.exception.code, -7)
        run.end_failed()
        run.close()


class TriangleTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(1)

    def test_values_and_gradients(self):
        for (device, dtype, _), shape, name in itertools.product(DEVICES, ((1, 1), (4, 4), (3, 7), (7, 3), (2, 3, 5, 4), (300, 200)), ("tril", "triu")):
            for diagonal in DIAGONALS:
                x = self.rng.standard_normal(shape).astype(dtype)
                op, oracle = lambda run, x: triangle(run, name, x, diagonal), lambda x: getattr(torch, name)(x, diagonal)
                compare(f"{device} {dtype} {name} {shape} {diagonal}", op, oracle, [x], 0, device)

    def test_any_dtype(self):
        for device, dtype, name in itertools.product(("cpu", "cpu:reference"), ("i8", "i4", "u1", "?", "i1", "i2", "e"), ("tril", "triu")):
            x = self.rng.integers(0, 100, (2, 5, 4)).astype(dtype)
            x.flat[0] = 2**63 - 1 if dtype == "i8" else x.flat[0]
            run = Run(device)
            got = run.value(triangle(run, name, run.constant(x), 1))
            numpy.testing.assert_array_equal(got, getattr(numpy, name)(x, 1))
            self.assertEqual(got.dtype, x.dtype)
            run.close()

    def test_strided_and_used_twice(self):
        x = self.rng.standard_normal((5, 4, 6)).astype("f")
        op = lambda run, x: run.op("tern_mul", triangle(run, "tril", run.op("tern_transpose", x, 0, 2), 0), run.op("tern_transpose", x, 0, 2))
        for device in ("cpu", "cpu:reference"):
            compare("twice", op, lambda x: x.transpose(0, 2).tril() * x.transpose(0, 2), [x], 1e-6, device)

    def test_nothing(self):
        for device, shape in itertools.product(("cpu", "cpu:reference"), ((0, 3), (3, 0), (0, 2, 2))):
            compare(f"{shape}", lambda run, x: triangle(run, "triu", x, 0), torch.triu, [numpy.zeros(shape, "f")], 0, device)

    def test_not_a_number(self):
        """What is left out is 0, whatever it was."""
        x = numpy.full((3, 3), numpy.nan, "f")
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            numpy.testing.assert_array_equal(run.value(triangle(run, "tril", run.constant(x), -1)), torch.tensor(x).tril(-1).numpy())
            run.close()

    def test_errors(self):
        run = Run()
        for name in ("tril", "triu"):
            with self.assertRaises(tern.TernError) as caught:
                triangle(run, name, run.constant(numpy.ones(3, "f")), 0)
            self.assertIn(f"{name}: expected at least 2 dimensions, got (3)", str(caught.exception))
            self.assertEqual(caught.exception.code, -2)
            run.end_failed()
        run.close()


if __name__ == "__main__":
    skips.main()
