"""topk compared with torch: values, indices, gradients, every dimension and dtype, ties, NaN, errors."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from half import TYPES
from ops import Run, compare

DEVICES = ("cpu", "cpu:reference")


def topk(run, x, k, dim=-1, largest=True):
    """(values, indices)"""
    index = ctypes.c_void_p()
    values = run.op("tern_topk", x, ctypes.c_int64(k), dim, largest, ctypes.byref(index))
    return values, index


class TopkTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def distinct(self, shape, dtype):
        """Numbers that are all different, so that there is one right order."""
        return (self.rng.permutation(int(numpy.prod(shape))).reshape(shape) - int(numpy.prod(shape)) // 2).astype(dtype)

    def test_values_and_indices(self):
        for device, dtype in itertools.product(DEVICES, ("f", "d", "i8", "i4")):
            for shape, dim in (((1,), 0), ((9,), -1), ((4, 7), 1), ((4, 7), 0), ((2, 5, 6), 1), ((3, 200), 1), ((200, 3), 0)):
                x = self.distinct(shape, dtype)
                for k, largest in itertools.product(sorted({0, 1, 2, shape[dim] // 2, shape[dim] - 1, shape[dim]}), (True, False)):
                    if k > shape[dim]:
                        continue
                    run = Run(device)
                    values, index = topk(run, run.constant(x), k, dim, largest)
                    want = torch.topk(torch.tensor(x), k, dim, largest, True)
                    numpy.testing.assert_array_equal(run.value(values), want.values.numpy(), f"{device} {dtype} {shape} {dim} {k}")
                    numpy.testing.assert_array_equal(run.value(index), want.indices.numpy())
                    self.assertEqual(run.value(values).dtype, x.dtype)
                    run.close()

    def test_a_vocabulary(self):
        x = self.rng.standard_normal((3, 50257)).astype("f")
        run = Run()
        values, index = topk(run, run.constant(x), 50)
        want = torch.topk(torch.tensor(x), 50)
        numpy.testing.assert_array_equal(run.value(values), want.values.numpy())
        numpy.testing.assert_array_equal(numpy.take_along_axis(x, run.value(index), 1), want.values.numpy())
        run.close()

    def test_gradients(self):
        for device, dtype in itertools.product(DEVICES, "fd"):
            for (shape, dim), largest in itertools.product((((6,), 0), ((4, 7), 1), ((4, 7), 0), ((2, 5, 6), 1)), (True, False)):
                x = self.distinct(shape, dtype)
                op = lambda run, x: topk(run, x, 3, dim, largest)[0]
                compare(f"{device} {shape}", op, lambda x: x.topk(3, dim, largest)[0], [x], 0, device)
            compare("all", lambda run, x: topk(run, x, 7)[0], lambda x: x.topk(7)[0], [self.distinct((4, 7), dtype)], 0, device)

    def test_views_and_16_bits(self):
        for device in DEVICES:
            x = self.distinct((5, 6, 4), "f")
            op = lambda run, x: topk(run, run.op("tern_transpose", x, 0, 2), 2, 1)[0]
            compare("turned", op, lambda x: x.transpose(0, 2).topk(2, 1)[0], [x], 0, device)
            for dtype, kind in TYPES:
                run = Run(device)
                values, index = topk(run, run.op("tern_cast", run.constant(x), dtype), 3, 1)
                want = torch.topk(torch.tensor(x).to(kind).float(), 3, 1)
                numpy.testing.assert_array_equal(run.value(values), want.values.numpy())
                numpy.testing.assert_array_equal(run.value(index), want.indices.numpy())
                run.close()

    def test_ties(self):
        """Of equal elements the first comes first; -0 equals 0."""
        x = numpy.array([1, 0, 2, -0.0, 2, 1, 2], "f")
        for device in DEVICES:
            for largest, want in ((True, [2, 4, 6, 0, 5, 1, 3]), (False, [1, 3, 0, 5, 2, 4, 6])):
                run = Run(device)
                numpy.testing.assert_array_equal(run.value(topk(run, run.constant(x), 7, 0, largest)[1]), want)
                run.close()

    def test_no_numbers(self):
        """NaN is the largest, as in torch."""
        inf, nan = numpy.inf, numpy.nan
        x = numpy.array([[1, nan, -inf, inf, -5, 0], [inf, 3, nan, nan, -inf, 2]])
        for device, dtype, largest in itertools.product(DEVICES, "fd", (True, False)):
            for k in (1, 3, 6):
                run = Run(device)
                got = run.value(topk(run, run.constant(x.astype(dtype)), k, 1, largest)[0])
                numpy.testing.assert_array_equal(got, torch.topk(torch.tensor(x.astype(dtype)), k, 1, largest)[0].numpy(), f"{device} {largest}")
                run.close()

    def test_integers_beyond_f64(self):
        x = numpy.array([2**62, 2**62 + 1, -(2**63), 2**63 - 1, 2**62 - 1])
        for device, largest in itertools.product(DEVICES, (True, False)):
            run = Run(device)
            numpy.testing.assert_array_equal(run.value(topk(run, run.constant(x), 5, 0, largest)[0]), torch.topk(torch.tensor(x), 5, 0, largest)[0].numpy())
            run.close()

    def test_scalars_and_nothing(self):
        for device in DEVICES:
            run = Run(device)
            values, index = topk(run, run.constant(numpy.array(5.0, "f")), 1, 0)
            self.assertEqual((run.value(values), run.value(index)), (5, 0))
            self.assertEqual(run.shape(topk(run, run.constant(numpy.zeros((0, 4), "f")), 2)[0]), (0, 2))
            run.close()
            compare("none", lambda run, x: topk(run, x, 0)[0], lambda x: x.topk(0)[0], [self.distinct((2, 3), "f")], 0, device)

    def test_errors(self):
        run = Run()
        x = lambda: run.constant(numpy.ones((3, 4), "f"))
        for call, text in ((lambda: topk(run, x(), 5), "topk: expected a k in [0, 4] for dimension -1 of (3, 4), got 5"),
                           (lambda: topk(run, x(), -1, 0), "topk: expected a k in [0, 3] for dimension 0 of (3, 4), got -1"),
                           (lambda: topk(run, x(), 1, 2), "2")):
            with self.assertRaises(tern.TernError) as caught:
                call()
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, -7)
            run.end_failed()
        run.close()


if __name__ == "__main__":
    skips.main()
