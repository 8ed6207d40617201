"""sum, mean, amax and amin over all elements or some dimensions compared with torch: dtypes, views, layouts, empty
inputs, NaN."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from ops import BF16, F16, Run, blocked, compare, gradient_check, in_16_bits, rounded, thread_counts

RNG = numpy.random.default_rng(0)
DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
NAN, INF = numpy.nan, numpy.inf
ORACLES = {"sum_dims": torch.sum, "mean_dims": torch.mean, "amax": torch.amax, "amin": torch.amin}
# Rows and columns shorter and longer than the loops' steps; the reduced dimensions are inner, outer or in between.
CASES = [
    ((), [0]), ((), [-1]), ((1,), [0]), ((17,), [-1]), ((5000,), [0]), ((3, 1100), [1]), ((1100, 3), [1]), ((1100, 3), [0]), ((30, 16), [1]), ((40, 1200), [0]),
    ((4, 3, 5), [0]), ((4, 3, 5), [1]), ((4, 3, 5), [2]), ((4, 3, 5), [0, 2]), ((4, 3, 5), [-1, 0]), ((4, 3, 5), [1, 2]), ((4, 3, 5), [2, 1, 0]), ((4, 1, 5), [1]),
    ((2, 3, 4, 3, 2, 5), [1, 3, 5]), ((2, 3, 4, 3, 2, 5), [0, 2, 4]), ((8, 3, 7, 20), [0, 2, 3]), ((9, 2, 600), [0]), ((2, 9, 600), [1]),
]


def ints(dims):
    return (ctypes.c_int * max(1, len(dims)))(*dims)


def reduction(name, dims, keep):
    return lambda run, x: run.op(f"tern_{name}", x, len(dims), ints(dims), keep)


def oracle(name, dims, keep):
    return lambda x: ORACLES[name](x, dims or tuple(range(x.ndim)), keepdim=keep) if x.ndim else ORACLES[name](x, dims or (0,))


def draw(shape, dtype="f"):
    return numpy.asarray(RNG.standard_normal(shape) + 1, dtype)


class ReduceTest(unittest.TestCase):
    def test_dimensions(self):
        for device, dtype, tolerance in DEVICES:
            for name in ORACLES:
                for (shape, dims), keep in itertools.product(CASES, (False, True) if (device, dtype) == ("cpu", "f") else (False,)):
                    what = f"{name} {device} {dtype} {shape} {dims} {keep}"
                    compare(what, reduction(name, dims, keep), oracle(name, dims, keep), [draw(shape, dtype)], tolerance, device)

    def test_all_elements(self):
        for device, dtype, tolerance in DEVICES:
            for shape in ((), (1,), (17,), (3, 5, 7), (50, 1003)):
                for name, of in (("sum", torch.sum), ("mean", torch.mean)):
                    compare(f"{name} {shape}", lambda r, a: r.op(f"tern_{name}", a), of, [draw(shape, dtype)], tolerance, device)
                for name, keep in itertools.product(ORACLES, (False, True)):
                    compare(f"{name} {shape}", reduction(name, [], keep), oracle(name, [], keep), [draw(shape, dtype)], tolerance, device)

    def test_views(self):
        turn = lambda r, t: r.op("tern_transpose", t, 0, 2)
        cut = lambda r, t: r.op("tern_slice", t, 1, *map(ctypes.c_int64, (1, 9, 2)))
        thin = lambda r, t: r.op("tern_slice", t, 2, *map(ctypes.c_int64, (0, 33, 3)))
        for view, seen in ((turn, lambda t: t.transpose(0, 2)), (cut, lambda t: t[:, 1:9:2]), (thin, lambda t: t[:, :, ::3])):
            for device in ("cpu", "cpu:reference"):
                for name, dims in itertools.product(ORACLES, ([], [0], [1], [2], [0, 2], [0, 1], [1, 2])):
                    of = oracle(name, dims, False)
                    op = lambda r, a: reduction(name, dims, False)(r, view(r, a))
                    compare(f"{name} {device} {dims} of a view", op, lambda a: of(seen(a)), [draw((5, 9, 33))], 2e-6, device)

    def test_blocked(self):
        for device in ("cpu", "cpu:reference"):
            for name, dims in itertools.product(ORACLES, ([], [0], [1], [2, 3], [0, 2, 3], [1, 3])):
                op = lambda r, a: reduction(name, dims, True)(r, blocked(r, a))
                compare(f"{name} blocked {dims}", op, oracle(name, dims, True), [draw((3, 32, 3, 5))], 4e-6, device)

    def test_halves(self):
        for dtype, kind, unit in ((BF16, torch.bfloat16, 2**-8), (F16, torch.float16, 2**-11)):
            for device in ("cpu", "cpu:reference"):
                for name, dims in itertools.product(ORACLES, ([], [0], [1])):
                    what = f"{name} {kind} {device} {dims}"
                    x = rounded(draw((30, 40)), kind)
                    compare(what, in_16_bits(reduction(name, dims, False), dtype), oracle(name, dims, False), [x], 3 * unit, device)

    def test_halves_are_gathered_in_more(self):
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            ones = run.op("tern_cast", run.constant(numpy.ones((4096, 3), "f")), BF16)  # whose bf16 sums stop growing at 256
            numpy.testing.assert_array_equal(run.value(reduction("sum_dims", [0], False)(run, ones)), [4096] * 3)
            self.assertEqual(run.value(run.op("tern_sum", ones)), 12288)
            run.close()

    def test_integers(self):
        """Sums are i64 and wrap around; extremes are exact where f64 cannot hold them."""
        big = numpy.array([[2**63 - 1, 5, 2**53 + 1], [-(2**63), 2**62 + 1, 2**53], [7, 2**62, -(2**53) - 1]])
        for device in ("cpu", "cpu:reference"):
            for x in (big, big.astype("int32"), (big % 251).astype("uint8"), big.astype("int16"), (big % 251).astype("int8"), big % 2 == 0, RNG.integers(-9, 9, (300, 700)), numpy.zeros((3, 3), "?")):
                for name, dims, keep, turned in itertools.product(("sum_dims", "amax", "amin"), ([], [0], [1]), (False, True), (False, True)):
                    run = Run(device)
                    t = run.op("tern_transpose", run.constant(x), 0, 1) if turned else run.constant(x)
                    got = run.value(reduction(name, dims, keep)(run, t))
                    want = oracle(name, dims, keep)(torch.tensor(x.T.copy() if turned else x)).numpy()
                    numpy.testing.assert_array_equal(got, want, f"{name} {device} {x.dtype} {dims}")
                    self.assertEqual(got.dtype, want.dtype)
                    run.close()

    def test_not_finite(self):
        x = numpy.array([[1, NAN, 2, -INF], [INF, 3, -INF, 4], [-INF, -INF, -INF, -INF], [NAN, NAN, INF, -5]])
        for device, dtype, _ in DEVICES:
            for wide in (1, 30):
                a = numpy.tile(x, (1, wide)).astype(dtype)
                for name, dims, turned in itertools.product(ORACLES, ([], [0], [1]), (False, True)):
                    b = numpy.ascontiguousarray(a.T) if turned else a
                    run = Run(device)
                    p, t = run.parameter(b), torch.tensor(b, requires_grad=True)
                    got, want = reduction(name, dims, False)(run, p), oracle(name, dims, False)(t)
                    numpy.testing.assert_array_equal(run.value(got), want.detach().numpy(), f"{name} {device} {dims}")
                    run.lib.tern_backward(run.scope, run.op("tern_sum", got))
                    run.raise_error()
                    want.sum().backward()
                    numpy.testing.assert_allclose(run.grad(p), t.grad.numpy(), 1e-6, err_msg=f"gradient {name} {device} {dims}")
                    run.close()

    def test_ties_share_the_gradient(self):
        for device in ("cpu", "cpu:reference"):
            x = RNG.integers(0, 3, (6, 7)).astype("f")
            for name, dims in itertools.product(("amax", "amin"), ([], [0], [1])):
                compare(f"{name} ties", reduction(name, dims, False), oracle(name, dims, False), [x], 1e-6, device)

    def test_nothing(self):
        for device in ("cpu", "cpu:reference"):
            for name, shape, keep in itertools.product(ORACLES, ((0,), (0, 3), (3, 0), (2, 0, 4)), (False, True)):
                for dims in ([], *([d] for d in range(len(shape)))):
                    run = Run(device)
                    p = run.parameter(numpy.empty(shape, "f"))
                    try:
                        want = oracle(name, dims, keep)(torch.empty(shape)).numpy()
                    except (IndexError, RuntimeError):
                        with self.assertRaises(tern.TernError) as caught:
                            reduction(name, dims, keep)(run, p)
                        self.assertEqual(caught.exception.code, -2)
                        self.assertIn(f"{name}: nothing to choose from in (", str(caught.exception))
                        run.end_failed()
                        run.close()
                        continue
                    y = reduction(name, dims, keep)(run, p)
                    numpy.testing.assert_array_equal(run.value(y), want)
                    run.lib.tern_backward(run.scope, run.op("tern_sum", y))
                    run.raise_error()
                    self.assertEqual(run.grad(p).shape, shape)
                    run.close()

    def test_a_sum_keeps_what_f32_would_lose(self):
        """A million elements that no f32 accumulator could hold, as one sum, as rows, as columns: rows are added in f32 by
        the thousand. The same bits with any number of threads."""
        x = RNG.random((1009, 1000)).astype("f") + 1000
        got = {}
        for threads, dims in itertools.product(thread_counts(1, 2, 3), ([], [0], [1])):
            run = Run("cpu", threads)
            y = run.value(reduction("sum_dims", dims, False)(run, run.constant(x)))
            numpy.testing.assert_allclose(y, x.astype("d").sum(tuple(dims) or None), 2e-6)
            got.setdefault(str(dims), set()).add(y.tobytes())
            run.close()
        self.assertEqual([len(bits) for bits in got.values()], [1, 1, 1])

    def test_gradients_by_finite_differences(self):
        x = [numpy.random.default_rng(3).standard_normal((4, 3, 5))]
        for name, dims in itertools.product(ORACLES, ([], [1], [0, 2])):
            gradient_check(name, reduction(name, dims, False), x)

    def test_errors(self):
        f = numpy.ones((2, 3), "f")
        where = "expected different dimensions in [-2, 2) of (2, 3), got "
        for name in ORACLES:
            for x, dims, code, text in (
                (f, [2], -7, where + "2"),
                (f, [-3], -7, where + "-3"),
                (f, [1, 1], -7, where + "1 and others"),
                (f, [0, -2], -7, where + "0 and others"),
                (numpy.ones((), "f"), [1], -7, "expected different dimensions in [-1, 1) of (), got 1"),
            ):
                run = Run("cpu")
                with self.assertRaises(tern.TernError) as caught:
                    reduction(name, dims, False)(run, run.constant(x))
                self.assertEqual(caught.exception.code, code)
                self.assertIn(text, str(caught.exception))
                run.end_failed()
                run.close()
        for name, args in (("tern_mean", ()), ("tern_mean_dims", (1, ints([0]), False))):
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                run.op(name, run.constant(f.astype("int32")), *args)
            self.assertEqual(caught.exception.code, -3)
            self.assertIn("mean: expected floating point, got i32", str(caught.exception))
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
