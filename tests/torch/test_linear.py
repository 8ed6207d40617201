"""linear and relu against torch, and linear's gradients by finite differences."""
import unittest

import numpy
import torch

from ops import blocked, compare, gradient_check

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

    def test_finite_differences(self):
        arrays = [draw((5, 7), "d"), draw((4, 7), "d"), draw((4,), "d")]
        gradient_check("linear", linear, arrays)


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
