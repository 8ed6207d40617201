"""Max and average pooling over depth, height and width compared with torch."""
import ctypes
import itertools
import unittest

import numpy
import torch
import torch.nn.functional as F

import skips
import tern
from half import compare_half
from ops import Run, blocked, compare, gradient_check, thread_counts

DEVICES = [("cpu", "f", 1e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]
SHAPES = [(2, 5, 5, 7, 6), (1, 32, 4, 5, 4), (1, 1, 1, 1, 1)]
WINDOWS = [  # kernel, stride, padding
    ((2, 2, 2), (0, 0, 0), (0, 0, 0)),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1)),
    ((2, 3, 1), (1, 2, 3), (1, 0, 0)),
    ((1, 2, 2), (2, 2, 2), (0, 1, 1)),
    ((4, 1, 3), (1, 1, 2), (2, 0, 1)),
    ((2, 2, 2), (3, 2, 4), (1, 1, 0)),
    ((7, 7, 7), (2, 1, 1), (3, 3, 3)),  # a place does not fit into a byte
]
LARGE = [  # without overlaps, and with overlaps along one axis and all
    ((2, 2, 2), (2, 2, 2), (0, 0, 0)),
    ((3, 2, 2), (2, 2, 2), (1, 0, 0)),
    ((2, 3, 2), (2, 2, 2), (0, 1, 0)),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1)),
]


class Opts(ctypes.Structure):
    """tern_pool3d_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("stride", ctypes.c_int64 * 3),
        ("padding", ctypes.c_int64 * 3),
        ("count_include_pad", ctypes.c_bool),
        ("dilation", ctypes.c_int64 * 3),
        ("ceil_mode", ctypes.c_bool),
    ]


def options(stride=(0, 0, 0), padding=(0, 0, 0), count_pad=True, dilation=(1, 1, 1), ceil_mode=False):
    return ctypes.byref(Opts(ctypes.sizeof(Opts), stride, padding, count_pad, dilation, ceil_mode))


def pool(run, kind, x, kernel, *args, **given):
    return run.op(f"tern_{kind}_pool3d", x, *map(ctypes.c_int64, kernel), options(*args, **given))


def fits(shape, kernel, padding, dilation=(1, 1, 1)):
    return all(shape[2 + d] + 2 * padding[d] >= dilation[d] * (kernel[d] - 1) + 1 for d in range(3))


class Pool3dTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def cases(self):
        for device, dtype, tolerance in DEVICES:
            for shape in SHAPES[: 1 if (device, dtype) == ("cpu:reference", "f") else None]:
                layouts = [("plain", lambda run, x: x)] + ([("blocked", blocked)] if shape[1] % 16 == 0 and device == "cpu" else [])
                for layout, prepare in layouts:
                    yield device, dtype, tolerance, shape, f"{device} {dtype} {layout} {shape}", prepare

    def compare_max(self, what, x, kernel, stride, padding, device="cpu", tolerance=1e-6, prepare=lambda run, x: x, threads=None, **given):
        strides = stride if stride[0] else None
        op = lambda run, a: pool(run, "max", prepare(run, a), kernel, stride, padding, **given)
        oracle = lambda a: F.max_pool3d(a, kernel, strides, padding, **given)
        compare(f"max {kernel} {stride} {padding} {given} {what}", op, oracle, [x], tolerance, device, threads=threads)

    def compare_avg(self, what, x, kernel, stride, padding, device="cpu", tolerance=1e-6, prepare=lambda run, x: x, threads=None, **given):
        """torch refuses kernels that fit only with their padding."""
        strides = stride if stride[0] else None
        for count_pad in (True, False) if fits(x.shape, kernel, (0, 0, 0)) else ():
            op = lambda run, a: pool(run, "avg", prepare(run, a), kernel, stride, padding, count_pad, **given)
            oracle = lambda a: F.avg_pool3d(a, kernel, strides, padding, count_include_pad=count_pad, **given)
            compare(f"avg {kernel} {stride} {padding} {count_pad} {given} {what}", op, oracle, [x], tolerance, device, threads=threads)

    def test_max(self):
        """Few different values, so that windows have equal maxima: the gradient goes to the first one."""
        for device, dtype, tolerance, shape, what, prepare in self.cases():
            x = self.rng.integers(-2, 3, shape).astype(dtype)
            for kernel, stride, padding in WINDOWS:
                if fits(shape, kernel, padding):
                    self.compare_max(what, x, kernel, stride, padding, device, tolerance, prepare)

    def test_one_sample(self):
        """Without a batch dimension."""
        for device, dtype, tolerance in DEVICES:
            x = self.rng.permutation(5 * 4 * 6 * 7).reshape(5, 4, 6, 7).astype(dtype)
            for kind in ("max", "avg"):
                op = lambda run, a: pool(run, kind, a, (2, 3, 2), (1, 2, 2), (1, 0, 1))
                oracle = lambda a: getattr(F, f"{kind}_pool3d")(a, (2, 3, 2), (1, 2, 2), (1, 0, 1))
                compare(f"{kind} {device}", op, oracle, [x], tolerance, device)

    def test_average(self):
        for device, dtype, tolerance, shape, what, prepare in self.cases():
            x = self.rng.standard_normal(shape).astype(dtype)
            for kernel, stride, padding in WINDOWS:
                if fits(shape, kernel, padding):
                    self.compare_avg(what, x, kernel, stride, padding, device, tolerance, prepare)

    def test_ceil_mode_and_dilation(self):
        for device, dtype, tolerance, shape, what, prepare in self.cases():
            x = self.rng.permutation(numpy.prod(shape)).reshape(shape).astype(dtype)
            for kernel, stride, padding in (((3, 2, 2), (2, 3, 3), (1, 1, 0)), ((2, 2, 2), (3, 3, 3), (0, 1, 0)), ((1, 3, 2), (2, 2, 2), (0, 1, 0))):
                if fits(shape, kernel, padding):
                    self.compare_max(what, x, kernel, stride, padding, device, tolerance, prepare, ceil_mode=True)
                    self.compare_avg(what, x, kernel, stride, padding, device, tolerance, prepare, ceil_mode=True)
            for kernel, dilation, padding in (((2, 3, 2), (3, 2, 1), (1, 1, 0)), ((3, 2, 1), (2, 4, 1), (0, 1, 0)), ((2, 2, 2), (2, 2, 2), (1, 1, 1))):
                if x.size > 1 and fits(shape, kernel, padding, dilation):
                    for ceil_mode in (False, True):
                        self.compare_max(what, x, kernel, (2, 1, 1), padding, device, tolerance, prepare, dilation=dilation, ceil_mode=ceil_mode)

    def test_random_windows(self):
        """Volumes, kernels, strides and padding of any size, with and without gaps and overlaps, on several threads."""
        for turn in range(24):
            shape = (int(self.rng.integers(1, 3)), (3, 16, 17, 32)[turn % 4], *map(int, self.rng.integers(1, 13, 3)))
            kernel = tuple(int(self.rng.integers(1, min(5, s) + 1)) for s in shape[2:])
            stride, padding = tuple(map(int, self.rng.integers(1, 5, 3))), tuple(int(self.rng.integers(0, k // 2 + 1)) for k in kernel)
            x = self.rng.permutation(numpy.prod(shape)).reshape(shape).astype("f")
            prepare = blocked if shape[1] % 16 == 0 else lambda run, a: a
            given = dict(prepare=prepare, threads=turn % 3 + 1, ceil_mode=turn % 2 == 0)
            for dtype, tolerance in (("f", 1e-6), ("d", 1e-13)):
                self.compare_max(shape, x.astype(dtype), kernel, stride, padding, tolerance=tolerance, **given)
                self.compare_avg(shape, x.astype(dtype), kernel, stride, padding, tolerance=tolerance, **given)

    def test_large_volumes(self):
        """More than one strip and part of a plane, in both layouts; the same bits for any number of threads, a second gradient written
        over the first."""
        for shape, prepare in (((1, 2, 4, 110, 65), lambda run, a: a), ((1, 16, 8, 40, 41), blocked)):
            x = self.rng.permutation(numpy.prod(shape)).reshape(shape).astype("f")
            for kernel, stride, padding in LARGE:
                self.compare_max("large", x, kernel, stride, padding, prepare=prepare)
                self.compare_avg("large", x, kernel, stride, padding, prepare=prepare)
                seen = set()
                for threads in thread_counts(1, 2, 3):
                    run = Run("cpu", threads)
                    p = run.parameter(x)
                    for kind in ("max", "avg") * 2:
                        run.lib.tern_zero_grad(ctypes.byref(run.module))
                        y = pool(run, kind, prepare(run, p), kernel, stride, padding)
                        run.backward(run.op("tern_sum", y))
                        seen.add(kind.encode() + run.value(y).tobytes() + run.grad(p).tobytes())
                    run.close()
                self.assertEqual(len(seen), 2)

    def test_windows_that_see_nothing(self):
        """Dilation can skip a small input entirely: torch's maximum is then -infinity, without a gradient."""
        for (device, dtype, _), (prepare, channels) in itertools.product(DEVICES, ((lambda run, a: a, 3), (blocked, 16))):
            run = Run(device)
            x = run.parameter(numpy.ones((2, channels, 1, 1, 1), dtype))
            for _ in range(2):  # the second time nothing is cleared
                y = pool(run, "max", prepare(run, x), (2, 2, 2), (1, 1, 1), (1, 1, 1), dilation=(2, 2, 2))
                numpy.testing.assert_array_equal(run.value(y), numpy.full((2, channels, 1, 1, 1), -numpy.inf))
                run.backward(y, numpy.ones((2, channels, 1, 1, 1), dtype))
                numpy.testing.assert_array_equal(run.grad(x), 0 * numpy.ones((2, channels, 1, 1, 1)))
            run.close()

    def test_views_with_gaps(self):
        for device, dtype, tolerance in DEVICES:
            x = self.rng.permutation(2 * 7 * 3 * 8 * 5).reshape(2, 7, 3, 8, 5).astype(dtype)
            half = lambda run, a: run.op("tern_slice", run.op("tern_transpose", a, 1, 4), 3, *map(ctypes.c_int64, (1, 8, 2)))
            for kind in ("max", "avg"):
                oracle = lambda a: getattr(F, f"{kind}_pool3d")(a.transpose(1, 4)[:, :, :, 1::2], 2, 1)
                compare(f"{kind} {device}", lambda run, a: pool(run, kind, half(run, a), (2, 2, 2), (1, 1, 1)), oracle, [x], tolerance, device)

    def test_16_bits(self):
        """Integers up to 8, so that the maximum is the same in both dtypes."""
        for shape, prepare in (((2, 5, 5, 9, 8), lambda run, a: a), ((1, 16, 5, 4, 6), lambda run, a: run.op("tern_cast", blocked(run, run.op("tern_cast", a, 0)), run.lib.tern_tensor_dtype(a)))):
            x = self.rng.integers(-8, 9, shape).astype("f")
            for device in ("cpu", "cpu:reference"):
                for kind, kernel, stride, padding in itertools.product(("max", "avg"), (2, 3), (2,), (0, 1)):
                    op = lambda run, a: pool(run, kind, prepare(run, a), (kernel,) * 3, (stride,) * 3, (padding,) * 3)
                    compare_half(kind, op, lambda a: getattr(F, f"{kind}_pool3d")(a, kernel, stride, padding), [x], device)

    def test_max_of_nan_and_infinity(self):
        x = self.rng.standard_normal((2, 16, 4, 6, 6)).astype("f")
        x[0, 3, 2, 2, 2] = x[1, 5, 0, 0, 0] = x[1, 5, 1, 0, 1] = numpy.nan
        x[0, 0] = -numpy.inf
        t = torch.tensor(x, requires_grad=True)
        want = F.max_pool3d(t, 3, 2, 1)
        dy = self.rng.standard_normal(tuple(want.shape)).astype("f")
        want.backward(torch.tensor(dy))
        for device, prepare in itertools.product(("cpu", "cpu:reference"), (lambda run, a: a,)):
            run = Run(device)
            p = run.parameter(x)
            y = pool(run, "max", prepare(run, p), (3, 3, 3), (2, 2, 2), (1, 1, 1))
            numpy.testing.assert_array_equal(run.value(y), want.detach().numpy())
            run.backward(y, dy)
            numpy.testing.assert_allclose(run.grad(p), t.grad.numpy(), rtol=1e-6)
            run.close()

    def test_gradients_by_finite_differences(self):
        x = [self.rng.permutation(2 * 3 * 4 * 7 * 6).reshape(2, 3, 4, 7, 6) / 10]
        gradient_check("max", lambda run, a: pool(run, "max", a, (2, 3, 2), (2, 2, 2), (1, 1, 1)), x)
        gradient_check("avg", lambda run, a: pool(run, "avg", a, (2, 3, 2), (2, 2, 2), (1, 1, 1), False), x)

    def test_modules(self):
        x = self.rng.standard_normal((2, 3, 6, 7, 8)).astype("f")
        run = Run()
        for kind, torch_s in (("max", F.max_pool3d), ("avg", F.avg_pool3d)):
            layer = run.layer(f"tern_{kind}_pool3d_new", *map(ctypes.c_int64, (2, 3, 2)), options((1, 2, 2), (1, 1, 0)))
            want = torch_s(torch.tensor(x), (2, 3, 2), (1, 2, 2), (1, 1, 0)).numpy()
            numpy.testing.assert_allclose(run.value(run.forward(layer, run.constant(x))), want, rtol=1e-5, atol=1e-6)
        run.close()

    def test_errors_name_shapes(self):
        shape, dtype, out_of_range = -2, -3, -7
        one = numpy.zeros((1, 1, 4, 4, 4), "f")
        cases = [
            (one, "max", (5, 1, 5), {}, shape, "the kernel (5, 1, 5) does not fit into input (1, 1, 4, 4, 4) with padding (0, 0, 0), dilation (1, 1, 1)"),
            (one, "max", (3, 3, 3), dict(dilation=(1, 2, 2)), shape, "with padding (0, 0, 0), dilation (1, 2, 2)"),
            (one, "avg", (2, 2, 2), dict(padding=(2, 0, 0)), out_of_range, "padding of at most half the kernel"),
            (one, "avg", (2, 2, 0), {}, out_of_range, "got kernel (2, 2, 0), stride (2, 2, 0), padding (0, 0, 0), dilation (1, 1, 1)"),
            (one, "avg", (2, 2, 2), dict(dilation=(1, 1, 2)), out_of_range, "(no dilation of averages)"),
            (one[0, 0], "max", (2, 2, 2), {}, shape, "expected (N, C, D, H, W) or (C, D, H, W), empty at most in N, got (4, 4, 4)"),
            (one[:, :, :, :0], "max", (2, 2, 2), {}, shape, "got (1, 1, 4, 0, 4)"),
            (one.astype("i8"), "max", (2, 2, 2), {}, dtype, "pooling: expected floating point, got i64"),
        ]
        for x, kind, kernel, given, code, text in cases:
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                pool(run, kind, run.constant(x), kernel, **given)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
