"""Nearest and linear interpolation in 1 to 3 dimensions compared with torch."""
import ctypes
import unittest

import numpy
import torch
import torch.nn.functional as F

import skips
import tern
from half import compare_half
from ops import Run, blocked, compare, gradient_check, thread_counts

DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-12), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-12)]
NEAREST, LINEAR = 0, 1
NAMES = {1: "linear", 2: "bilinear", 3: "trilinear"}
# Shapes with sizes that they get, or scales.
CASES = [
    ((2, 3, 7), [(14,), (3,), (7,), (1,), (100,)], [(2,), (1.5,), (0.5,), (1.1,), (0.9,), (2.7,)]),
    ((1, 1, 1), [(1,), (5,)], [(3,)]),
    ((2, 3, 9, 11), [(18, 22), (4, 30), (9, 11), (1, 1), (30, 67)], [(2, 2), (0.4, 3.3), (1.05, 2)]),
    ((1, 5, 17, 33), [(33, 65)], [(0.25, 0.75)]),
    ((2, 16, 5, 4), [(10, 8), (3, 9)], [(2, 2), (1.7, 0.8)]),
    ((1, 32, 1, 6), [(4, 6)], [(3, 1.2)]),
    ((2, 3, 4, 5, 6), [(8, 10, 12), (1, 1, 3)], [(1.3, 0.7, 2.2)]),
    ((1, 16, 3, 4, 5), [(6, 8, 10), (5, 2, 7)], [(2, 2, 2), (0.7, 1.9, 1)]),
    ((1, 2, 3, 2, 40), [(5, 4, 81), (3, 2, 39)], [(1, 2, 0.3)]),
]


class Opts(ctypes.Structure):
    """tern_interpolate_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("mode", ctypes.c_int),
        ("align_corners", ctypes.c_bool),
        ("shape", ctypes.c_int64 * 3),
        ("scale", ctypes.c_double * 3),
    ]


def options(mode, align=False, size=(), scale=()):
    return ctypes.byref(Opts(ctypes.sizeof(Opts), mode, align, size, scale))


def interpolate(run, x, *args, **given):
    return run.op("tern_interpolate", x, options(*args, **given))


def oracle(x, mode, align=False, **given):
    given = {name: tuple(values) for name, values in given.items()}
    if mode == NEAREST:
        return F.interpolate(x, **{"size" if name == "size" else "scale_factor": v for name, v in given.items()})
    name = NAMES[x.ndim - 2]
    return F.interpolate(x, size=given.get("size"), scale_factor=given.get("scale"), mode=name, align_corners=align)


def layouts(shape, device="cpu"):
    yield "plain", lambda run, x: x
    if shape[1] % 16 == 0 and len(shape) > 3 and device == "cpu":
        yield "blocked", blocked


class InterpolateTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype="f"):
        return self.rng.standard_normal(shape).astype(dtype)

    def targets(self, sizes, scales):
        return [dict(size=s) for s in sizes] + [dict(scale=s) for s in scales]

    def test_linear(self):
        for device, dtype, tolerance in DEVICES:
            for shape, sizes, scales in CASES:
                for layout, prepare in layouts(shape, device):
                    for target in self.targets(sizes, scales):
                        for align in (False, True):
                            op = lambda run, x: interpolate(run, prepare(run, x), LINEAR, align, **target)
                            want = lambda x: oracle(x, LINEAR, align, **target)
                            compare(f"{shape} {layout} {target} {align} {device}", op, want, [self.draw(shape, dtype)], tolerance, device)

    def test_nearest(self):
        """Compared with torch in the same dtype, since rounding can decide which element is the nearest. If a scale
        keeps the size, torch's forward uses the scale and its backward does not; tern's gradient matches the forward."""
        for device, dtype, _ in DEVICES:
            for shape, sizes, scales in CASES:
                for layout, prepare in layouts(shape, device):
                    for target in self.targets(sizes, scales):
                        x = self.draw(shape, dtype)
                        theirs = torch.tensor(x, requires_grad=True)
                        want = oracle(theirs, NEAREST, **target)
                        dy = self.draw(tuple(want.shape), dtype)
                        run = Run(device)
                        mine = run.parameter(x)
                        y = interpolate(run, prepare(run, mine), NEAREST, **target)
                        what = f"{shape} {layout} {target} {device}"
                        stays = [i for i in range(2, x.ndim) if want.shape[i] == x.shape[i] and target.get("scale", (1,) * 3)[i - 2] != 1]
                        if not stays or torch.__version__ < "2":
                            numpy.testing.assert_array_equal(run.value(y), want.detach().numpy(), what)
                        run.backward(y, dy)
                        if not stays:
                            want.backward(torch.tensor(dy))
                            numpy.testing.assert_allclose(run.grad(mine), theirs.grad.numpy(), 1e-5, 1e-5, err_msg=what)
                        run.close()

    def test_nearest_rounds_as_torch(self):
        for device, dtype, _ in DEVICES:
            run = Run(device)
            for n in (1, 3, 7, 10, 49, 63):
                x = numpy.arange(n, dtype=dtype).reshape(1, 1, n)
                for size in range(1, 200, 7):
                    got = run.value(interpolate(run, run.constant(x), NEAREST, size=(size,)))
                    numpy.testing.assert_array_equal(got, F.interpolate(torch.tensor(x), size=size).numpy())
                run.end()
            run.close()

    def test_random_sizes(self):
        """Up and down, on any number of threads, from and to rows shorter and longer than a vector."""
        for turn in range(18):
            axes = turn % 3 + 1
            shape = (int(self.rng.integers(1, 3)), (3, 16, 5)[turn % 3], *map(int, self.rng.integers(1, 40 if axes < 3 else 12, axes)))
            size = tuple(map(int, self.rng.integers(1, 70 if axes < 3 else 25, axes)))
            for layout, prepare in layouts(shape):
                for align in (False, True):
                    op = lambda run, x: interpolate(run, prepare(run, x), LINEAR, align, size)
                    for dtype, tolerance in (("f", 2e-6), ("d", 1e-12)):
                        x = self.draw(shape, dtype)
                        compare(f"{shape} {size} {layout}", op, lambda x: oracle(x, LINEAR, align, size=size), [x], tolerance, threads=turn % 4 + 1)

    def test_same_bits_for_any_number_of_threads(self):
        for shape, prepare, dtype in (((1, 19, 33, 33), lambda run, x: x, "f"), ((1, 16, 9, 20, 21), blocked, "f"), ((1, 19, 33, 33), lambda run, x: x, "d")):
            x, seen = self.draw(shape, dtype), set()
            for threads in thread_counts(1, 2, 3):
                run = Run("cpu", threads)
                p = run.parameter(x)
                for _ in range(2):  # the second gradient is written over the first
                    run.lib.tern_zero_grad(ctypes.byref(run.module))
                    y = interpolate(run, prepare(run, p), LINEAR, scale=(3, 2.2))
                    run.backward(run.op("tern_sum", run.op("tern_mul", y, y)))
                    seen.add(run.value(y).tobytes() + run.grad(p).tobytes())
                run.close()
            self.assertEqual(len(seen), 1)

    def test_views_with_gaps(self):
        for device, dtype, tolerance in DEVICES:
            half = lambda run, a: run.op("tern_slice", run.op("tern_transpose", a, 1, 3), 2, *map(ctypes.c_int64, (1, 8, 2)))
            op = lambda run, a: interpolate(run, half(run, a), LINEAR, size=(9, 5))
            want = lambda a: oracle(a.transpose(1, 3)[:, :, 1::2], LINEAR, size=(9, 5))
            compare(f"gaps {device}", op, want, [self.draw((2, 7, 8, 5), dtype)], tolerance, device)

    def test_16_bits(self):
        """The result is rounded once; the gradient's sum is rounded once."""
        turned = lambda run, a: run.op("tern_cast", blocked(run, run.op("tern_cast", a, 0)), run.lib.tern_tensor_dtype(a))
        for device in ("cpu", "cpu:reference"):
            for shape, prepare, size in (
                ((2, 3, 7), lambda run, a: a, (20,)),
                ((2, 5, 9, 21), lambda run, a: a, (20, 33)),
                ((1, 16, 5, 6), turned, (11, 4)),
                ((1, 3, 3, 4, 18), lambda run, a: a, (6, 5, 40)),
                ((1, 16, 3, 4, 5), turned, (6, 8, 10)),
            ):
                for mode in (NEAREST, LINEAR):
                    op = lambda run, a: interpolate(run, prepare(run, a), mode, size=size)
                    compare_half(f"{shape} {mode}", op, lambda a: oracle(a, mode, size=size), [self.draw(shape)], device)

    def test_infinities_stay_where_they_are_seen(self):
        """Elements with weight 0 are not multiplied, so no NaN results."""
        for device, dtype, _ in DEVICES:
            run = Run(device)
            x = numpy.arange(7, dtype=dtype).reshape(1, 1, 7)
            x[0, 0, 3] = numpy.inf
            got = run.value(interpolate(run, run.constant(x), LINEAR, True, size=(13,))).ravel()
            numpy.testing.assert_array_equal(numpy.isinf(got), [i in (5, 6, 7) for i in range(13)])
            self.assertFalse(numpy.isnan(got).any())
            p = run.parameter(numpy.zeros((1, 1, 7), dtype))
            dy = numpy.zeros((1, 1, 13), dtype)
            dy[0, 0, 6] = dy[0, 0, 0] = numpy.inf
            run.backward(interpolate(run, p, LINEAR, True, size=(13,)), dy)
            numpy.testing.assert_array_equal(run.grad(p).ravel(), [numpy.inf, 0, 0, numpy.inf, 0, 0, 0])
            run.close()

    def test_gradients_by_finite_differences(self):
        for mode in (NEAREST, LINEAR):
            gradient_check("up", lambda run, a: interpolate(run, a, mode, scale=(2, 1.5)), [self.draw((2, 3, 4, 5), "d")])
            gradient_check("down", lambda run, a: interpolate(run, a, mode, size=(2, 3, 2)), [self.draw((1, 2, 3, 4, 5), "d")])

    def test_scales(self):
        """Missing scales equal the first one; without options sizes are doubled."""
        run = Run()
        x = self.draw((1, 2, 4, 6, 5))
        for opts, scale in ((None, 2), (options(NEAREST, scale=(1.5,)), 1.5), (options(NEAREST, scale=(3, 0, 2)), (3, 3, 2))):
            want = F.interpolate(torch.tensor(x), scale_factor=scale).numpy()
            numpy.testing.assert_array_equal(run.value(run.op("tern_interpolate", run.constant(x), opts)), want)
        run.close()

    def test_module(self):
        run = Run()
        x = self.draw((2, 3, 4, 5))
        layer = run.layer("tern_upsample_new", options(LINEAR, True, scale=(2,)))
        want = torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)(torch.tensor(x)).numpy()
        numpy.testing.assert_allclose(run.value(run.forward(layer, run.constant(x))), want, rtol=1e-5, atol=1e-6)
        run.close()

    def test_errors(self):
        shape, dtype, invalid, out_of_range = -2, -3, -1, -7
        one = numpy.zeros((1, 1, 4, 4), "f")
        for x, given, code, text in (
            (one[0, 0], options(NEAREST, scale=(2,)), shape, "expected (N, C, L), (N, C, H, W) or (N, C, D, H, W), empty at most in N, got (4, 4)"),
            (one[:, :0], options(NEAREST, scale=(2,)), shape, "got (1, 0, 4, 4)"),
            (one[:, :, :, :0], options(NEAREST, scale=(2,)), shape, "got (1, 1, 4, 0)"),
            (one.astype("i8"), options(NEAREST, scale=(2,)), dtype, "expected floating point, got i64"),
            (one, options(7, scale=(2,)), invalid, "expected TERN_INTERPOLATE_NEAREST or TERN_INTERPOLATE_LINEAR, got mode 7"),
            (one, options(NEAREST, True, scale=(2,)), invalid, "align_corners has no meaning for TERN_INTERPOLATE_NEAREST"),
            (one, options(NEAREST, size=(2, 2, 2)), invalid, "the input has 2 spatial dimension(s), got a shape or scale of more"),
            (one, options(LINEAR, scale=(2, 2, 2)), invalid, "got a shape or scale of more"),
            (one, options(LINEAR), out_of_range, "expected scales above 0, got 0"),
            (one, options(LINEAR, scale=(2, -1)), out_of_range, "expected scales above 0, got -1"),
            (one, options(LINEAR, scale=(2, float("nan"))), out_of_range, "expected scales above 0, got nan"),
            (one, options(LINEAR, scale=(0.2,)), shape, "expected 1 to 2^31 - 2 elements along spatial dimension 0, got 0.8"),
            (one, options(LINEAR, size=(5, 0)), shape, "along spatial dimension 1, got 0"),
            (one, options(LINEAR, size=(5, 1 << 40)), shape, "along spatial dimension 1, got 1.09951e+12"),
            (one, options(LINEAR, size=(2**31 - 2, 2**31 - 2)), shape, ""),
        ):
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                run.op("tern_interpolate", run.constant(x), given)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code, text)
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
