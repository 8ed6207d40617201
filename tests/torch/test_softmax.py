"""softmax and log_softmax along every dimension compared with torch, as ops and as layers."""
import ctypes
import unittest

import numpy
import torch

import skips
import tern
from ops import BF16, F16, Module, Run, blocked, compare, gradient_check, in_16_bits, rounded, thread_counts

RNG = numpy.random.default_rng(0)
DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
NAMES = [("tern_softmax", torch.softmax), ("tern_log_softmax", torch.log_softmax)]
# Short and long rows, single elements, columns narrower and wider than a tile.
CASES = [
    ((), 0), ((), -1), ((1,), 0), ((10,), -1), ((64, 10), 1), ((3, 1), 1), ((1, 7), 0), ((300, 2), 1), ((2, 2500), 1),
    ((5, 1023), -1), ((2, 1025), -1), ((4, 3, 5), 0), ((4, 3, 5), 1), ((4, 3, 5), -2), ((3, 4, 300), 1), ((2, 21, 17, 19), 1),
    ((500, 31), 0), ((2, 3, 2, 3, 2, 3), 3),
]


def draw(shape, dtype):
    return (3 * RNG.standard_normal(shape)).astype(dtype)


class SoftmaxTest(unittest.TestCase):
    def test_beside_torch(self):
        for device, dtype, tolerance in DEVICES:
            for name, oracle in NAMES:
                for shape, dim in CASES:
                    op = lambda r, a: r.op(name, a, dim)
                    compare(f"{name} {device} {shape} {dim}", op, lambda a: oracle(a, dim), [draw(shape, dtype)], tolerance, device)

    def test_threads_give_the_same_bits(self):
        for name, _ in NAMES:
            for shape, dim in (((300, 1000), 1), ((20, 30, 500), 1)):
                x, got = draw(shape, "f"), []
                for threads in thread_counts(1, 2, 3):
                    run = Run("cpu", threads)
                    p = run.parameter(x)
                    y = run.op(name, p, dim)
                    run.backward(y, numpy.cos(x))
                    got.append((run.value(y).tobytes(), run.grad(p).tobytes()))
                    run.close()
                self.assertEqual(len(set(got)), 1)

    def test_views_and_blocked(self):
        x = draw((2, 32, 3, 5), "f")
        turned = lambda r, a: r.op("tern_transpose", a, 0, 2)
        part = lambda r, a: r.op("tern_slice", a, 1, *map(ctypes.c_int64, (3, 30, 2)))
        for name, oracle in NAMES:
            for dim in range(4):
                compare(f"{name} turned", lambda r, a: r.op(name, turned(r, a), dim), lambda a: oracle(a.transpose(0, 2), dim), [x], 2e-6)
                compare(f"{name} part", lambda r, a: r.op(name, part(r, a), dim), lambda a: oracle(a[:, 3:30:2], dim), [x], 2e-6)
                compare(f"{name} blocked", lambda r, a: r.op(name, blocked(r, a), dim), lambda a: oracle(a, dim), [x], 2e-6)

    def test_masked(self):
        """Lines that start with -infinity, for longer than a thread reads at a time, or consist of nothing else for a
        thread."""
        x = draw((3, 9000), "f")
        x[0, :8990] = x[1, 8000:] = x[2, ::2] = -numpy.inf
        for name, oracle in NAMES[:1]:
            for device in ("cpu", "cpu:reference"):
                compare(f"{name} masked {device}", lambda r, a: r.op(name, a, 1), lambda a: oracle(a, 1), [x], 2e-6, device)

    def test_an_inner_gradient_that_is_used_twice(self):
        """The gradient may overwrite dy, unless another op uses dy too."""
        for name, oracle in NAMES:
            for dim in (0, 1):
                op = lambda r, a: (lambda y: r.op("tern_add", r.op(name, y, dim), y))(r.op("tern_tanh", a))
                both = lambda a: oracle(a.tanh(), dim) + a.tanh()
                for device in ("cpu", "cpu:reference"):
                    compare(f"{name} + x", op, both, [draw((7, 33), "f")], 2e-6, device)
                    half = [rounded(draw((7, 33), "f"), torch.float16)]
                    compare(f"{name} + x in f16", in_16_bits(op, F16), both, half, 3e-3, device)

    def test_halves(self):
        for name, oracle in NAMES:
            for device in ("cpu", "cpu:reference"):
                for dtype, kind, tolerance in ((BF16, torch.bfloat16, 8e-3), (F16, torch.float16, 1e-3)):
                    for shape, dim in (((), 0), ((64, 10), 1), ((2, 21, 17), 1), ((3, 2500), -1)):
                        x = rounded(draw(shape, "f"), kind)
                        op = in_16_bits(lambda r, a: r.op(name, a, dim), dtype)
                        compare(f"{name} {dtype} {device}", op, lambda a: oracle(a, dim), [x], tolerance, device)

    def test_a_half_is_rounded_once(self):
        x = rounded(draw((50, 20), "f"), torch.float16)
        for name, oracle in NAMES:
            want = oracle(torch.tensor(x.astype("d")), 1).half().numpy()
            for device in ("cpu", "cpu:reference"):
                run = Run(device)
                got = run.value(run.op(name, run.constant(x.astype("float16")), 1))
                ulps = numpy.abs(got.view("int16").astype(int) - want.view("int16").astype(int))
                self.assertLessEqual(ulps.max(), 1)
                self.assertLess((ulps > 0).mean(), 0.01)
                run.close()

    def test_special_values(self):
        """Masked elements, fully masked rows, infinities, NaN, and numbers whose exponential f32 cannot hold."""
        inf, nan = numpy.inf, numpy.nan
        rows = [[-inf, 0, 1, -inf], [-inf] * 4, [inf, 0, 1, 2], [nan, 0, 1, 2], [0, 1, nan, -inf], [1e4, 1e4 - 1, -1e4, 0], [-3e38, 3e38, 0, 0], [-80, 0, -90, -100]]
        for device, dtype, _ in DEVICES:
            for tall, wide in ((1, 1), (1, 9), (513, 1), (513, 9)):
                x = numpy.tile(numpy.array(rows, dtype), (tall, wide))
                for name, oracle in NAMES:
                    for turn in (False, True):
                        run = Run(device)
                        got = run.value(run.op(name, run.constant(x.T if turn else x), 0 if turn else 1))
                        want = oracle(torch.tensor(x), 1).numpy()
                        numpy.testing.assert_allclose(got.T if turn else got, want, 2e-6, 1e-37, err_msg=f"{name} {device} {dtype}")
                        run.close()

    def test_nothing(self):
        for device in ("cpu", "cpu:reference"):
            for name, _ in NAMES:
                for shape in ((0,), (0, 3), (3, 0), (2, 0, 4)):
                    for dim in range(len(shape)):
                        run = Run(device)
                        p = run.parameter(numpy.empty(shape, "f"))
                        y = run.op(name, p, dim)
                        run.lib.tern_backward(run.scope, run.op("tern_sum", y))
                        run.raise_error()
                        self.assertEqual((run.value(y).shape, run.grad(p).shape), (shape, shape))
                        run.close()

    def test_errors(self):
        for name, _ in NAMES:
            op = name[5:]
            for array, dim, text in (
                (numpy.zeros((3, 4), "int64"), 0, f"{op}: expected floating point, got i64"),
                (numpy.zeros((3, 4), "f"), 2, "dimension 2 of (3, 4) is not in [-2, 2)"),
                (numpy.zeros((3, 4), "f"), -3, "dimension -3 of (3, 4) is not in [-2, 2)"),
                (numpy.zeros((), "f"), 1, "dimension 1 of () is not in [-0, 0)"),
            ):
                run = Run("cpu")
                with self.assertRaises(tern.TernError) as caught:
                    run.op(name, run.constant(array), dim)
                self.assertEqual(caught.exception.code, -3 if "point" in text else -7)
                self.assertIn(text, str(caught.exception))
                run.end_failed()
                run.close()

    def test_gradients_by_finite_differences(self):
        x = [numpy.random.default_rng(3).standard_normal((4, 3, 6))]
        for name, _ in NAMES:
            for dim in range(3):
                gradient_check(name, lambda run, a: run.op(name, a, dim), x)

    def test_layers(self):
        for kind, layer in (("softmax", torch.nn.Softmax), ("log_softmax", torch.nn.LogSoftmax)):
            for dim in (1, -1, 0):

                def op(run, a):
                    module = run.layer(f"tern_{kind}_new", dim)
                    self.assertEqual(Module.from_address(module.value).kind, kind.encode())
                    return run.forward(module, a)

                compare(kind, op, layer(dim), [draw((5, 4, 3), "f")], 2e-6)


if __name__ == "__main__":
    skips.main()
