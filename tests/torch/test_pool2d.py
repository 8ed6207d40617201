"""Max, average and global average pooling against torch."""
import ctypes
import unittest

import numpy
import torch

import tern
from ops import Run, blocked, compare, gradient_check

DEVICES = [("cpu", "f", 1e-6), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]
SHAPES = [(2, 5, 9, 11), (3, 16, 8, 7), (1, 48, 6, 6), (1, 1, 1, 1)]
WINDOWS = [  # kernel, stride, padding
    ((2, 2), (0, 0), (0, 0)),
    ((3, 3), (2, 2), (1, 1)),
    ((2, 3), (1, 2), (1, 0)),
    ((1, 1), (3, 2), (0, 0)),
    ((5, 4), (1, 1), (2, 2)),
    ((17, 17), (1, 1), (8, 8)),  # a place does not fit into a byte
]


class Opts(ctypes.Structure):
    """tern_pool2d_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("stride", ctypes.c_int64 * 2),
        ("padding", ctypes.c_int64 * 2),
        ("count_include_pad", ctypes.c_bool),
    ]


def pool(run, kind, x, kernel, stride, padding, count_pad=True):
    opts = Opts(ctypes.sizeof(Opts), stride, padding, count_pad)
    sizes = [ctypes.c_int64(k) for k in kernel]
    return run.op(f"tern_{kind}_pool2d", x, *sizes, ctypes.byref(opts))


def fits(shape, kernel, padding):
    return all(shape[2 + d] + 2 * padding[d] >= kernel[d] for d in (0, 1))


class Pool2dTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def cases(self):
        for device, dtype, tolerance in DEVICES:
            for shape in SHAPES[: 1 if (device, dtype) == ("cpu:reference", "f") else None]:
                layouts = [("plain", lambda run, x: x)] + ([("blocked", blocked)] if shape[1] % 16 == 0 else [])
                for layout, prepare in layouts:
                    yield device, dtype, tolerance, shape, f"{device} {dtype} {layout} {shape}", prepare

    def test_max(self):
        """On few different values, so that windows have equal maxima: the gradient goes to the first."""
        for device, dtype, tolerance, shape, what, prepare in self.cases():
            x = self.rng.integers(-2, 3, shape).astype(dtype)
            for kernel, stride, padding in WINDOWS:
                if not fits(shape, kernel, padding):
                    continue
                op = lambda run, a: pool(run, "max", prepare(run, a), kernel, stride, padding)
                oracle = lambda a: torch.nn.functional.max_pool2d(a, kernel, stride if stride[0] else None, padding)
                compare(f"max {kernel} {what}", op, oracle, [x], tolerance, device)

    def test_average(self):
        for device, dtype, tolerance, shape, what, prepare in self.cases():
            x = self.rng.standard_normal(shape).astype(dtype)
            for kernel, stride, padding in WINDOWS:
                if not fits(shape, kernel, padding):
                    continue
                for count_pad in (True, False):
                    op = lambda run, a: pool(run, "avg", prepare(run, a), kernel, stride, padding, count_pad)
                    strides = stride if stride[0] else None
                    oracle = lambda a: torch.nn.functional.avg_pool2d(a, kernel, strides, padding, count_include_pad=count_pad)
                    compare(f"avg {kernel} {what}", op, oracle, [x], tolerance, device)

    def test_global_average(self):
        for device, dtype, tolerance, shape, what, prepare in self.cases():
            x = self.rng.standard_normal(shape).astype(dtype) + 3
            compare(f"global {what}", lambda run, a: run.op("tern_global_avg_pool", prepare(run, a)), lambda a: a.mean((2, 3)), [x], tolerance, device)
        for shape in ((2, 3, 5), (2, 3, 2, 3, 4), (3, 7, 100, 101)):
            x = self.rng.standard_normal(shape).astype("f") + 3
            dims = tuple(range(2, len(shape)))
            compare(f"global {shape}", lambda run, a: run.op("tern_global_avg_pool", a), lambda a: a.mean(dims), [x], 1e-6)

    def test_max_of_nan_and_infinity(self):
        x = self.rng.standard_normal((2, 16, 6, 6)).astype("f")
        x[0, 3, 2, 2] = x[1, 5, 0, 0] = x[1, 5, 0, 1] = numpy.nan
        x[0, 0] = -numpy.inf
        t = torch.tensor(x, requires_grad=True)
        want = torch.nn.functional.max_pool2d(t, 3, 2, 1)
        dy = self.rng.standard_normal(tuple(want.shape)).astype("f")
        want.backward(torch.tensor(dy))
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            p = run.parameter(x)
            y = pool(run, "max", p, (3, 3), (2, 2), (1, 1))
            numpy.testing.assert_array_equal(run.value(y), want.detach().numpy())
            run.backward(y, dy)
            numpy.testing.assert_allclose(run.grad(p), t.grad.numpy(), rtol=1e-6)
            run.close()

    def test_gradients_by_finite_differences(self):
        x = [self.rng.permutation(2 * 3 * 7 * 6).reshape(2, 3, 7, 6) / 10]
        gradient_check("max", lambda run, a: pool(run, "max", a, (3, 2), (2, 2), (1, 1)), x)
        gradient_check("avg", lambda run, a: pool(run, "avg", a, (3, 2), (2, 2), (1, 1), False), x)
        gradient_check("global", lambda run, a: run.op("tern_global_avg_pool", a), x)

    def test_errors_name_shapes(self):
        run = Run("cpu")
        x = run.constant(numpy.zeros((1, 1, 4, 4), "f"))
        cases = [
            (lambda: pool(run, "max", x, (5, 5), (1, 1), (0, 0)), "the kernel (5, 5) does not fit into input (1, 1, 4, 4)"),
            (lambda: pool(run, "avg", x, (2, 2), (1, 1), (2, 0)), "padding of at most half the kernel"),
            (lambda: pool(run, "avg", x, (0, 2), (1, 1), (0, 0)), "kernel (0, 2)"),
            (lambda: pool(run, "max", run.constant(numpy.zeros((4, 4), "f")), (2, 2), (1, 1), (0, 0)), "expected (N, C, H, W), got (4, 4)"),
        ]
        for call, text in cases:
            with self.assertRaises(tern.TernError) as caught:
                call()
            self.assertIn(text, str(caught.exception))
            run.end_failed()
            x = run.constant(numpy.zeros((1, 1, 4, 4), "f"))
        run.close()


if __name__ == "__main__":
    unittest.main()
