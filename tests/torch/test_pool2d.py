"""Max, average and global average pooling compared with torch."""
import ctypes
import unittest

import numpy
import torch

import skips
import tern
from half import compare_half
from ops import Run, blocked, compare, gradient_check, thread_counts

DEVICES = [("cpu", "f", 1e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]
SHAPES = [(3, 7, 9, 11), (3, 16, 8, 7), (1, 48, 6, 6), (1, 1, 1, 1)]
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
        ("dilation", ctypes.c_int64 * 2),
        ("ceil_mode", ctypes.c_bool),
    ]


def pool(run, kind, x, kernel, stride, padding, count_pad=True, dilation=(1, 1), ceil_mode=False):
    opts = Opts(ctypes.sizeof(Opts), stride, padding, count_pad, dilation, ceil_mode)
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
        """Few different values, so that windows have equal maxima: the gradient goes to the first one."""
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

    def both(self, what, x, kernel, device="cpu", tolerance=1e-6, prepare=lambda run, a: a, **given):
        """Max and average pooling, compared with torch."""
        stride, padding = given.pop("stride", kernel), given.pop("padding", (0, 0))
        for kind in ("max", "avg"):
            if kind == "avg" and "dilation" in given:
                continue
            for count_pad in (True, False) if kind == "avg" else (True,):
                op = lambda run, a: pool(run, kind, prepare(run, a), kernel, stride, padding, count_pad, **given)
                more = dict(given, count_include_pad=count_pad) if kind == "avg" else given
                oracle = lambda a: getattr(torch.nn.functional, f"{kind}_pool2d")(a, kernel, stride, padding, **more)
                compare(f"{kind} {kernel} {stride} {padding} {given} {what}", op, oracle, [x], tolerance, device)

    def test_ceil_mode_and_dilation(self):
        for device, dtype, tolerance, shape, what, prepare in self.cases():
            x = self.rng.permutation(numpy.prod(shape)).reshape(shape).astype(dtype)
            for kernel, stride, padding in (((3, 2), (2, 3), (1, 1)), ((2, 2), (3, 3), (0, 1)), ((3, 3), (5, 4), (1, 1)), ((1, 3), (2, 2), (0, 1))):
                if fits(shape, kernel, padding):
                    self.both(what, x, kernel, device, tolerance, prepare, stride=stride, padding=padding, ceil_mode=True)
            for kernel, dilation, padding in (((2, 3), (3, 2), (1, 1)), ((3, 2), (2, 4), (0, 1)), ((3, 3), (2, 2), (1, 1))):
                if fits(shape, [d * (k - 1) + 1 for d, k in zip(dilation, kernel)], padding):
                    for ceil_mode in (False, True):
                        self.both(what, x, kernel, device, tolerance, prepare, stride=(2, 1), padding=padding, dilation=dilation, ceil_mode=ceil_mode)

    def test_windows_that_see_nothing(self):
        """Dilation can skip a small input entirely: torch's maximum is then -infinity, without a gradient."""
        for device, dtype, _ in DEVICES:
            for prepare, channels in ((lambda run, a: a, 3), (blocked, 16)):
                run = Run(device)
                x = run.parameter(numpy.ones((2, channels, 1, 1), dtype))
                y = pool(run, "max", prepare(run, x), (2, 2), (1, 1), (1, 1), dilation=(2, 2))
                numpy.testing.assert_array_equal(run.value(y), numpy.full((2, channels, 1, 1), -numpy.inf))
                run.backward(y, numpy.ones((2, channels, 1, 1), dtype))
                y = pool(run, "max", prepare(run, x), (2, 2), (1, 1), (1, 1), dilation=(2, 2))
                run.backward(y, numpy.ones((2, channels, 1, 1), dtype))  # again: nothing is cleared now
                numpy.testing.assert_array_equal(run.grad(x), 0 * numpy.ones((2, channels, 1, 1)))
                run.close()

    def test_large_planes(self):
        """Several strips of rows, which overlap in x; every thread has its own copies."""
        x = self.rng.standard_normal((2, 9, 110, 64)).astype("f")
        for kernel, stride, padding in (((3, 3), (2, 2), (1, 1)), ((7, 5), (1, 1), (3, 2)), ((2, 2), (3, 3), (0, 0))):
            self.both("large", x, kernel, stride=stride, padding=padding, ceil_mode=True)
        self.both("large", x, (5, 3), stride=(2, 2), padding=(2, 1), dilation=(4, 3))
        self.both("wide", self.rng.standard_normal((1, 2, 3, 9000)).astype("f"), (2, 2), stride=(1, 2))
        for dtype in ("f", "d"):
            seen = set()
            for threads in thread_counts(1, 2, 3):
                run = Run("cpu", threads)
                p = run.parameter(x.astype(dtype))
                for _ in range(2):  # the second gradient is written over the first
                    run.lib.tern_zero_grad(ctypes.byref(run.module))
                    y = pool(run, "avg", p, (3, 3), (2, 2), (1, 1))
                    run.backward(run.op("tern_sum", y))
                    seen.add(run.value(y).tobytes() + run.grad(p).tobytes())
                run.close()
            self.assertEqual(len(seen), 1)

    def test_views_with_gaps(self):
        for device, dtype, tolerance in DEVICES:
            x = self.rng.permutation(2 * 7 * 8 * 5).reshape(2, 7, 8, 5).astype(dtype)
            half = lambda run, a: run.op("tern_slice", run.op("tern_transpose", a, 1, 3), 2, *map(ctypes.c_int64, (1, 8, 2)))
            for kind in ("max", "avg"):
                oracle = lambda a: getattr(torch.nn.functional, f"{kind}_pool2d")(a.transpose(1, 3)[:, :, 1::2], 2, 1)
                compare(f"{kind} {device}", lambda run, a: pool(run, kind, half(run, a), (2, 2), (1, 1), (0, 0)), oracle, [x], tolerance, device)
            compare("global", lambda run, a: run.op("tern_global_avg_pool", half(run, a)), lambda a: a.transpose(1, 3)[:, :, 1::2].mean((2, 3)), [x], tolerance, device)

    def test_one_sample(self):
        """Without a batch dimension, like a blocked (N, C, L)."""
        for device, dtype, tolerance in DEVICES:
            for shape in ((3, 7, 9), (16, 8, 6)):
                x = self.rng.permutation(numpy.prod(shape)).reshape(shape).astype(dtype)
                self.both("one", x, (3, 2), device, tolerance, stride=(2, 1), padding=(1, 1))
                self.both("one", x, (2, 2), device, tolerance, ceil_mode=True)
        self.both("blocked", self.rng.permutation(3 * 32 * 6).reshape(3, 32, 6).astype("f"), (2, 3), prepare=blocked)

    def test_16_bits(self):
        """Integers up to 8, so that the maximum is the same in both dtypes."""
        x = self.rng.integers(-8, 9, (2, 5, 9, 8)).astype("f")
        for device in ("cpu", "cpu:reference"):
            for kind in ("max", "avg"):
                op = lambda run, a: pool(run, kind, a, (3, 3), (2, 2), (1, 1))
                compare_half(kind, op, lambda a: getattr(torch.nn.functional, f"{kind}_pool2d")(a, 3, 2, 1), [x], device)
            compare_half("global", lambda run, a: run.op("tern_global_avg_pool", a), lambda a: a.mean((2, 3)), [x], device)

    def test_empty_batches(self):
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            x = run.parameter(numpy.zeros((0, 3, 6, 5), "f"))
            for kind in ("max", "avg"):
                y = pool(run, kind, x, (2, 2), (2, 2), (0, 0))
                self.assertEqual(run.shape(y), (0, 3, 3, 2))
                run.backward(run.op("tern_sum", y))
                self.assertEqual(run.grad(x).shape, (0, 3, 6, 5))
            y = run.op("tern_global_avg_pool", x)
            self.assertEqual(run.shape(y), (0, 3))
            run.backward(run.op("tern_sum", y))
            self.assertEqual(run.grad(x).shape, (0, 3, 6, 5))
            self.assertEqual(run.shape(run.op("tern_global_avg_pool", run.constant(numpy.zeros((2, 0, 3, 3), "f")))), (2, 0))
            run.close()

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
        for device, dtype, _ in DEVICES:
            run = Run(device)
            p = run.parameter(x.astype(dtype))
            y = pool(run, "max", p, (3, 3), (2, 2), (1, 1))
            numpy.testing.assert_array_equal(run.value(y), want.detach().numpy())
            run.backward(y, dy.astype(dtype))
            numpy.testing.assert_allclose(run.grad(p), t.grad.numpy(), rtol=1e-6)
            run.close()

    def test_gradients_by_finite_differences(self):
        x = [self.rng.permutation(2 * 3 * 7 * 6).reshape(2, 3, 7, 6) / 10]
        gradient_check("max", lambda run, a: pool(run, "max", a, (3, 2), (2, 2), (1, 1)), x)
        gradient_check("avg", lambda run, a: pool(run, "avg", a, (3, 2), (2, 2), (1, 1), False), x)
        gradient_check("global", lambda run, a: run.op("tern_global_avg_pool", a), x)

    def test_errors_name_shapes(self):
        shape, dtype, out_of_range = -2, -3, -7
        one = numpy.zeros((1, 1, 4, 4), "f")
        cases = [
            (one, ("max", (5, 5), (1, 1), (0, 0)), {}, shape, "the kernel (5, 5) does not fit into input (1, 1, 4, 4) with padding (0, 0), dilation (1, 1)"),
            (one, ("max", (3, 3), (1, 1), (0, 0)), dict(dilation=(1, 2)), shape, "the kernel (3, 3) does not fit into input (1, 1, 4, 4) with padding (0, 0), dilation (1, 2)"),
            (one, ("avg", (2, 2), (1, 1), (2, 0)), {}, out_of_range, "padding of at most half the kernel"),
            (one, ("avg", (0, 2), (1, 1), (0, 0)), {}, out_of_range, "got kernel (0, 2), stride (1, 1), padding (0, 0), dilation (1, 1)"),
            (one, ("max", (2, 2), (1, -1), (0, 0)), {}, out_of_range, "stride (1, -1)"),
            (one, ("max", (2, 2), (1, 1), (0, 0)), dict(dilation=(0, 1)), out_of_range, "dilation (0, 1)"),
            (one, ("avg", (2, 2), (1, 1), (0, 0)), dict(dilation=(1, 2)), out_of_range, "(no dilation of averages)"),
            (one[0, 0], ("max", (2, 2), (1, 1), (0, 0)), {}, shape, "expected (N, C, H, W) or (C, H, W), empty at most in N, got (4, 4)"),
            (one[0, :, :0], ("max", (2, 2), (1, 1), (1, 1)), {}, shape, "got (1, 0, 4)"),
            (one[:, :0, 0], ("avg", (2, 2), (1, 1), (1, 1)), {}, shape, "got (1, 0, 4)"),
            (one[0], ("max", (5, 2), (1, 1), (0, 0)), {}, shape, "the kernel (5, 2) does not fit into input (1, 1, 4, 4)"),
            (one[:, :0], ("max", (2, 2), (1, 1), (0, 0)), {}, shape, "got (1, 0, 4, 4)"),
            (one[:, :, :0], ("max", (2, 2), (1, 1), (1, 1)), {}, shape, "got (1, 1, 0, 4)"),
            (one[:, :, :, :0], ("avg", (2, 2), (1, 1), (1, 1)), {}, shape, "got (1, 1, 4, 0)"),
            (one.astype("i4"), ("avg", (2, 2), (1, 1), (0, 0)), {}, dtype, "pooling: expected floating point, got i32"),
            (one.astype("i8"), ("max", (2, 2), (1, 1), (0, 0)), {}, dtype, "pooling: expected floating point, got i64"),
        ]
        for x, (kind, *sizes), given, code, text in cases:
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                pool(run, kind, run.constant(x), *sizes, **given)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
            run.end_failed()
            run.close()
        for x, code, text in ((one[:, :, :0], shape, "at least one position, got (1, 1, 0, 4)"), (one.astype("i8"), dtype, "global_avg_pool: expected floating point, got i64")):
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                run.op("tern_global_avg_pool", run.constant(x))
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
