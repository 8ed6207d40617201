"""argmax, argmin, max and min along a dimension compared with torch: indices, values, ties, NaN, gradients; all
dtypes, strided and blocked inputs."""
import ctypes
import unittest

import numpy
import torch

import skips
import tern
from ops import Run, blocked, compare, gradient_check, in_16_bits, rounded, thread_counts

DEVICES = [("cpu", "f", 1e-6), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]
SHAPES = [(), (1,), (9,), (5, 10), (10, 5), (3, 4, 5), (2, 3, 4, 2, 3, 2), (7, 600), (600, 7), (2, 300, 33), (1, 1031)]
BOTH = ((False, torch.argmax, "tern_max_dim"), (True, torch.argmin, "tern_min_dim"))


def extreme(name, dim, keep=False, place=None):
    return lambda run, x: run.op(name, x, dim, keep, place)


def torch_extreme(least, dim, keep=False):
    return lambda x: (torch.min if least else torch.max)(x, dim, keep)[0]


class ArgmaxTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def check(self, device, x, dim, keep, prepare=lambda run, x: x, turn=lambda x: x):
        """Compares indices and values of both kinds, and the index that is returned with a value."""
        for least, oracle, name in BOTH:
            run = Run(device)
            t = turn(torch.tensor(x))
            given = prepare(run, run.constant(x))
            places = [run.op("tern_argmin" if least else "tern_argmax", given, dim, keep)]
            place = ctypes.c_void_p()
            value = run.value(run.op(name, given, dim, keep, ctypes.byref(place)))
            want = (torch.min if least else torch.max)(t, dim, keep)
            numpy.testing.assert_array_equal(value, want[0].numpy())
            for got in (*places, place):
                got = run.value(got)
                self.assertEqual(got.dtype, numpy.int64)
                numpy.testing.assert_array_equal(got, want[1].numpy(), f"{name} {device} {x.dtype} {x.shape} {dim}")
            self.assertEqual(run.value(run.op(name, given, dim, keep, None)).tobytes(), value.tobytes())
            run.close()

    def test_places_and_values(self):
        """Few different values, so many are equal; the first one counts."""
        for device, dtype, _ in DEVICES:
            for shape in SHAPES:
                if device == "cpu:reference" and numpy.prod(shape) > 5000:
                    continue
                for different in (2, 7, 1000):
                    x = (self.rng.integers(0, different, shape) - different // 2).astype(dtype)
                    dims = max(1, len(shape))
                    for dim in range(-dims if different == 2 else 0, dims):
                        self.check(device, x, dim, dim % 2 == 0)

    def test_nan_and_infinity(self):
        special = numpy.array([numpy.nan, numpy.inf, -numpy.inf, 0.0, -0.0, 1.0])
        for device, dtype, _ in DEVICES:
            for shape in ((4, 9), (9, 4), (3, 700), (700, 3)):
                for share in ((0.01, 0.3, 0.3, 0.1, 0.1, 0.19), (0.3, 0.1, 0.1, 0.2, 0.2, 0.1), (0, 0.5, 0.5, 0, 0, 0), (0, 0, 1, 0, 0, 0)):
                    x = self.rng.choice(special, shape, p=share).astype(dtype)
                    for dim in (0, 1):
                        self.check(device, x, dim, False)

    def test_integers(self):
        """Also values that a double cannot hold."""
        for device in ("cpu", "cpu:reference"):
            for dtype, low, high in (("i8", -(1 << 62), 1 << 62), ("i4", -(1 << 31), 1 << 31), ("u1", 0, 256), ("i1", -128, 128), ("i2", -(1 << 15), 1 << 15)):
                x = self.rng.integers(low, high, (6, 50), dtype)
                self.check(device, x, 1, False)
                self.check(device, x, 0, True)
            near = numpy.array([[(1 << 60) + n for n in (0, 1, 3, 3, 2)]])
            self.check(device, near, 1, False)

    def test_bool(self):
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            x = self.rng.integers(0, 2, (5, 9))
            yes = run.op("tern_ne", run.constant(x), run.constant(numpy.zeros((), "i8")))
            for name in ("tern_argmax", "tern_argmin"):
                got = run.value(run.op(name, yes, 1, False))
                numpy.testing.assert_array_equal(got, getattr(x, name[5:])(1))
            run.close()

    def test_strided_and_blocked(self):
        for device, dtype, _ in DEVICES:
            x = self.rng.integers(-5, 5, (4, 7, 6)).astype(dtype)
            prepare = lambda run, x: run.op("tern_transpose", run.op("tern_slice", x, 1, *map(ctypes.c_int64, (1, 7, 2))), 0, 2)
            for dim in range(3):
                self.check(device, x, dim, False, prepare, lambda t: t[:, 1::2].transpose(0, 2))
            x = self.rng.integers(-5, 5, (2, 16, 3, 5)).astype(dtype)
            for dim in range(4):
                self.check(device, x, dim, False, blocked)

    def test_threads(self):
        x = self.rng.integers(-50, 50, (300, 500)).astype("f")
        for threads in thread_counts(1, 2, 3):
            for dim in (0, 1):
                run = Run("cpu", threads)
                numpy.testing.assert_array_equal(run.value(run.op("tern_argmax", run.constant(x), dim, False)), torch.tensor(x).argmax(dim).numpy())
                run.close()

    def test_gradients(self):
        for device, dtype, tolerance in DEVICES:
            for shape in ((), (9,), (5, 10), (3, 4, 5), (2, 16, 3, 5)):
                x = self.rng.integers(-3, 3, shape).astype(dtype)  # one of equals gets it all
                for dim in range(max(1, len(shape))):
                    for least, _, name in BOTH:
                        for keep in (False, True):
                            compare(f"{name} {device} {shape} {dim}", extreme(name, dim, keep), torch_extreme(least, dim, keep), [x], tolerance, device)
                if len(shape) == 4:
                    compare(f"blocked {device}", lambda run, a: extreme("tern_max_dim", 1)(run, blocked(run, a)), torch_extreme(False, 1), [x], tolerance, device)
            twice = lambda run, a: run.op("tern_add", extreme("tern_max_dim", 1, True)(run, a), a)
            x = self.rng.standard_normal((5, 6)).astype(dtype)
            compare(f"used twice {device}", twice, lambda a: a.max(1, True)[0] + a, [x], tolerance, device)

    def test_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            for dtype, kind in ((5, torch.bfloat16), (6, torch.float16)):
                for dim in range(3):
                    x = rounded(self.rng.standard_normal((4, 5, 6)).astype("f"), kind)
                    eps = torch.finfo(kind).eps
                    compare(f"{kind}", in_16_bits(extreme("tern_max_dim", dim), dtype), torch_extreme(False, dim), [x], 0, device, gradient_tolerance=eps)

    def test_finite_differences(self):
        x = self.rng.permutation(60).reshape(3, 4, 5).astype("d")
        for dim in range(3):
            gradient_check(f"max {dim}", extreme("tern_max_dim", dim), [x])
            gradient_check(f"min {dim}", extreme("tern_min_dim", dim, True), [x])

    def test_nothing(self):
        """An empty result has an empty gradient; a maximum over no elements is an error."""
        for device in ("cpu", "cpu:reference"):
            self.check(device, numpy.zeros((0, 3), "f"), 1, False)
            self.check(device, numpy.zeros((4, 0, 3), "f"), 0, True)
            compare(f"empty {device}", extreme("tern_max_dim", 1), torch_extreme(False, 1), [numpy.zeros((0, 3), "f")], 0, device)

    def test_errors(self):
        run = Run("cpu")
        cases = [
            ("tern_argmax", (3, 0), (1, False), -2, "argmax: nothing to choose from in dimension 1 of (3, 0)"),
            ("tern_min_dim", (3, 0), (1, False, None), -2, "argmin: nothing to choose from in dimension 1 of (3, 0)"),
            ("tern_argmin", (3, 4), (2, False), -7, "dimension 2 of (3, 4) is not in [-2, 2)"),
            ("tern_max_dim", (), (1, False, None), -7, "dimension 1 of () is not in [-0, 0)"),
        ]
        for name, shape, args, code, text in cases:
            with self.assertRaises(tern.TernError) as caught:
                run.op(name, run.constant(numpy.zeros(shape, "f")), *args)
            self.assertEqual((caught.exception.code, str(caught.exception)), (code, f"{name}: {text}"))
            run.end_failed()
        run.close()


if __name__ == "__main__":
    skips.main()
