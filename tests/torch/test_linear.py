"""linear and relu against torch, and linear's gradients by finite differences."""
import ctypes
import unittest

import numpy
import torch

import tern
from ops import Run, blocked, compare, gradient_check, in_16_bits, rounded

RNG = numpy.random.default_rng(7)
# Sums of f32 products in another order than torch's: the error grows with the length of the sum.
DEVICES = [("cpu", "f", 1e-5), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]


def draw(shape, dtype):
    return RNG.standard_normal(shape).astype(dtype)


def linear(run, x, weight, bias=None):
    return run.op("tern_linear", x, weight, bias)


class LinearTest(unittest.TestCase):
    def shapes(self):
        fixed = [(1, 1, 1), (1, 784, 10), (64, 100, 33), (3, 17, 1), (31, 1, 5)]
        return fixed + [tuple(int(n) for n in RNG.integers(1, 70, 3)) for _ in range(12)]

    def test_value_and_gradients(self):
        for device, dtype, tolerance in DEVICES:
            for rows, ins, outs in self.shapes():
                arrays = [draw((rows, ins), dtype), draw((outs, ins), dtype), draw((outs,), dtype)]
                what = f"linear {device} {dtype} {rows}x{ins} -> {outs}"
                compare(what, linear, torch.nn.functional.linear, arrays, tolerance, device)
                compare(what + " without bias", linear, torch.nn.functional.linear, arrays[:2], tolerance, device)

    def test_each_gradient_alone(self):
        arrays = [draw((9, 20), "f"), draw((6, 20), "f"), draw((6,), "f")]
        for wanted in range(3):
            constant = tuple(i for i in range(3) if i != wanted)
            compare(f"gradient {wanted}", linear, torch.nn.functional.linear, arrays, 1e-5, constant=constant)

    def test_threads(self):
        arrays = [draw((37, 300), "f"), draw((130, 300), "f"), draw((130,), "f")]
        for threads in (1, 2, 3):
            compare(f"{threads} threads", linear, torch.nn.functional.linear, arrays, 1e-5, threads=threads)

    def test_any_number_of_dimensions(self):
        F = torch.nn.functional
        for device, dtype, tolerance in DEVICES:
            for shape in ((7,), (1, 7), (2, 3, 7), (2, 1, 3, 2, 1, 7), (0, 7), (2, 0, 7)):
                for outs in (1, 5):
                    arrays = [draw(shape, dtype), draw((outs, 7), dtype), draw((outs,), dtype)]
                    compare(f"{device} {shape} -> {outs}", linear, F.linear, arrays, tolerance, device)
                    compare(f"{device} {shape} -> {outs} without bias", linear, F.linear, arrays[:2], tolerance, device)
            for shapes in (((3, 0), (5, 0)), ((3, 7), (0, 7))):
                compare(f"{device} {shapes}", linear, F.linear, [draw(s, dtype) for s in (*shapes, shapes[1][:1])], tolerance, device)

    def test_strided_and_blocked(self):
        """x, weight and bias as views with gaps; a batch whose rows do not lie at one distance; blocks of 16 channels."""
        step = lambda run, x, d: run.op("tern_slice", x, d, ctypes.c_int64(1), ctypes.c_int64(99), ctypes.c_int64(2))

        def op(run, x, w, b):
            return linear(run, run.op("tern_transpose", x, 0, 1), run.op("tern_transpose", w, 0, 1), step(run, b, 0))

        oracle = lambda x, w, b: torch.nn.functional.linear(x.transpose(0, 1), w.transpose(0, 1), b[1::2])
        for device, dtype, tolerance in DEVICES:
            arrays = [draw((4, 3, 7), dtype), draw((7, 5), dtype), draw((10,), dtype)]
            compare(f"strided {device}", op, oracle, arrays, tolerance, device)
            op2 = lambda run, x, w, b: linear(run, step(run, x, 1), step(run, w, 1), b)
            oracle2 = lambda x, w, b: torch.nn.functional.linear(x[:, 1::2], w[:, 1::2], b)
            arrays = [draw((4, 6, 7), dtype), draw((5, 14), dtype), draw((5,), dtype)]
            compare(f"gaps {device}", op2, oracle2, arrays, tolerance, device)
            arrays = [draw((2, 16, 3, 4), dtype), draw((5, 4), dtype), draw((5,), dtype)]
            compare(f"blocked {device}", lambda r, x, w, b: linear(r, blocked(r, x), w, b), torch.nn.functional.linear, arrays, tolerance, device)

    def test_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            for dtype, kind in ((5, torch.bfloat16), (6, torch.float16)):
                for shape in ((7,), (9, 7), (2, 3, 7)):
                    arrays = [rounded(draw(s, "f"), kind) for s in (shape, (5, 7), (5,))]
                    eps = torch.finfo(kind).eps
                    compare(f"{kind} {device} {shape}", in_16_bits(linear, dtype), torch.nn.functional.linear, arrays, eps, device, gradient_tolerance=2 * eps)

    def test_errors_name_shapes(self):
        run = Run("cpu")
        ones = lambda shape, dtype="f": run.constant(numpy.ones(shape, dtype))
        cases = [
            (((3, 4), (5, 6)), "ff", -2, "linear: weight is (5, 6) but input is (3, 4)"),
            (((), (5, 6)), "ff", -2, "linear: weight is (5, 6) but input is ()"),
            (((6,), (6,)), "ff", -2, "linear: weight is (6) but input is (6)"),
            (((3, 6), (5, 6), (6,)), "fff", -2, "linear: weight is (5, 6) but bias is (6)"),
            (((3, 6), (5, 6), (1, 5)), "fff", -2, "linear: weight is (5, 6) but bias is (1, 5)"),
            (((3, 6), (5, 6)), "df", -3, "linear: weight is f32 but input is f64"),
            (((3, 6), (5, 6), (5,)), "ffd", -3, "linear: weight is f32 but bias is f64"),
        ]
        for shapes, dtypes, code, text in cases:
            with self.assertRaises(tern.TernError) as caught:
                linear(run, *[ones(s, d) for s, d in zip(shapes, dtypes)])
            self.assertEqual((caught.exception.code, str(caught.exception)), (code, "tern_linear: " + text))
            run.end_failed()
        run.close()

    def test_finite_differences(self):
        for shape in ((5, 7), (7,), (2, 3, 7)):
            gradient_check(f"linear {shape}", linear, [draw(shape, "d"), draw((4, 7), "d"), draw((4,), "d")])


class ReluTest(unittest.TestCase):
    def test_value_and_gradient(self):
        for device, dtype, tolerance in DEVICES:
            for shape in ((), (1,), (33,), (7, 31), (2, 3, 5, 7), (65, 1031)):
                compare(f"relu {device} {shape}", lambda r, x: r.op("tern_relu", x), torch.relu, [draw(shape, dtype)], tolerance, device)

    def test_blocked(self):
        for device, dtype, tolerance in DEVICES:
            x = draw((2, 32, 5, 3), dtype)
            compare("relu blocked", lambda r, a: r.op("tern_relu", blocked(r, a)), torch.relu, [x], tolerance, device)

    def test_finite_differences(self):
        x = draw((6, 9), "d")
        gradient_check("relu", lambda r, a: r.op("tern_relu", a), [x + numpy.sign(x) * 0.1])


if __name__ == "__main__":
    unittest.main()
