"""linear, relu and both fused compared with torch, and linear's gradients by finite differences."""
import ctypes
import os
import unittest

import numpy
import torch

import skips
import tern
from ops import Run, blocked, compare, error_of, gradient_check, in_16_bits, rounded, thread_counts

RNG = numpy.random.default_rng(7)
# Where kernels are measured on an emulation of a GPU, most of the time goes into that. Each test has only cases whose products differ.
FEW = "TERN_TEST_FEW" in os.environ
WIDE = 130 if FEW else 512  # outputs: from 512 on a CPU makes the input of a linear again
# f32 products are summed in another order than torch's: the error grows with the length of the sum.
DEVICES = [("cpu", "f", 1e-5), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]


def is_gpu(device):
    return device == "cpu" and os.environ.get("TERN_TEST_DEVICE", "").startswith("cuda")


def draw(shape, dtype):
    return RNG.standard_normal(shape).astype(dtype)


def linear(run, x, weight, bias=None):
    return run.op("tern_linear", x, weight, bias)


def linear_act(run, x, weight, bias=None):
    return run.op("tern_linear_act", x, weight, bias, True)


def apart(run, x, weight, bias=None):
    return run.op("tern_relu", linear(run, x, weight, bias))


def torch_linear_act(*arrays):
    return torch.relu(torch.nn.functional.linear(*arrays))


class LinearTest(unittest.TestCase):
    def shapes(self):
        fixed = [(1, 1, 1), (1, 784, 10), (64, 100, 33), (3, 17, 1), (31, 1, 5)]
        return fixed + [tuple(int(n) for n in RNG.integers(1, 70, 3)) for _ in range(4 if FEW else 12)]

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

    def test_inputs_that_are_made_again(self):
        """Linears of many outputs after an op that a CPU computes again in backward: two that share it, also through a view of its result."""
        F = torch.nn.functional
        layer_norm = lambda run, x, y, weight: run.op("tern_layer_norm", x, weight, run.op("tern_slice", weight, 0, *map(ctypes.c_int64, (0, 12, 1))), None)
        befores = {
            "gelu": (lambda run, x, y, w: run.op("tern_gelu", x, False), lambda x, y, w: F.gelu(x)),
            "tanh gelu": (lambda run, x, y, w: run.op("tern_gelu", x, True), lambda x, y, w: F.gelu(x, approximate="tanh")),
            "silu": (lambda run, x, y, w: run.op("tern_silu", x), lambda x, y, w: F.silu(x)),
            "mul": (lambda run, x, y, w: run.op("tern_mul", run.op("tern_silu", x), y), lambda x, y, w: F.silu(x) * y),
            "broadcast": (lambda run, x, y, w: run.op("tern_mul", x, w), lambda x, y, w: x * w),
            "scaled": (lambda run, x, y, w: run.op("tern_affine", x, ctypes.c_double(2), ctypes.c_double(1)), lambda x, y, w: 2 * x + 1),
            "layer norm": (layer_norm, lambda x, y, w: F.layer_norm(x, (12,), w, w)),
            "rms norm": (lambda run, x, y, w: run.op("tern_rms_norm", x, w, None),
                         lambda x, y, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + torch.finfo(torch.float32).eps) * w),
            "view": (lambda run, x, y, w: run.op("tern_transpose", run.op("tern_gelu", x, False), 0, 1), lambda x, y, w: F.gelu(x).transpose(0, 1)),
        }
        arrays = [draw(shape, "f") for shape in ((3, 5, 12), (3, 5, 12), (12,), (WIDE, 12), (WIDE, 12), (WIDE,))]
        for device in ("cpu", "cpu:reference"):
            for name, (ours, theirs) in list(befores.items())[: 1 if FEW else None]:
                def op(run, x, y, weight, one, other, bias):
                    h = ours(run, x, y, weight)
                    return run.op("tern_mul", linear(run, h, one), linear(run, h, other, bias))

                def oracle(x, y, weight, one, other, bias):
                    h = theirs(x, y, weight)
                    return F.linear(h, one) * F.linear(h, other, bias) + 0 * (y.sum() + weight.sum())
                used = (0,) + (1,) * (name == "mul") + (2,) * (name in ("broadcast", "layer norm", "rms norm")) + (3, 4, 5)
                compare(f"{device} {name}", op, oracle, arrays, 2e-5, device, constant=tuple(i for i in range(6) if i not in used))

    def test_inputs_that_the_program_has_changed(self):
        """What is written into a result counts in the gradient of the weight, too."""
        x, w, other = draw((4, 6), "f"), draw((WIDE, 6), "f"), draw((4, 6), "f")
        for name, more in (("tern_gelu", (False,)), ("tern_silu", ()), ("tern_layer_norm", (None, None, None)))[: 1 if FEW else None]:
            for seen in (False, True):
                run = Run()
                p, weight = run.parameter(x), run.parameter(w)
                h = run.op(name, p, *more)
                run.write(run.op("tern_reshape", h, 2, (ctypes.c_int64 * 2)(4, 6)) if seen else h, other)
                dy = draw((4, WIDE), "f")
                run.backward(linear(run, h, weight), dy)
                self.assertLessEqual(error_of(run.grad(weight), dy.T @ other), 1e-5, name)
                run.close()

    def test_threads(self):
        ins, outs = (140, 70) if FEW else (300, 130)  # on a GPU several tiles in both directions, and sums in parts
        arrays = [draw((37, ins), "f"), draw((outs, ins), "f"), draw((outs,), "f")]
        for threads in (1,) if FEW else thread_counts(1, 2, 3):
            compare(f"{threads} threads", linear, torch.nn.functional.linear, arrays, 1e-5, threads=threads)

    def test_any_number_of_dimensions(self):
        F = torch.nn.functional
        for device, dtype, tolerance in DEVICES:
            for shape in ((7,), (1, 7), (2, 3, 7), (2, 1, 3, 2, 1, 7), (0, 7), (2, 0, 7)):
                for outs in (1, 5):
                    arrays = [draw(shape, dtype), draw((outs, 7), dtype), draw((outs,), dtype)]
                    if outs == 1:  # a single number may be small compared with the products that it sums
                        arrays = [numpy.abs(a) for a in arrays]
                    compare(f"{device} {shape} -> {outs}", linear, F.linear, arrays, tolerance, device)
                    compare(f"{device} {shape} -> {outs} without bias", linear, F.linear, arrays[:2], tolerance, device)
            for shapes in (((3, 0), (5, 0)), ((3, 7), (0, 7))):
                compare(f"{device} {shapes}", linear, F.linear, [draw(s, dtype) for s in (*shapes, shapes[1][:1])], tolerance, device)

    def test_strided_and_blocked(self):
        """x, weight and bias as views with gaps; a batch whose rows have no common stride; blocks of 16 channels."""
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


class LinearActTest(unittest.TestCase):
    def test_value_and_gradients(self):
        for device, dtype, tolerance in DEVICES:
            shapes = [(1, 1, 1), (64, 100, 33), (31, 1, 5)] + [tuple(int(n) for n in RNG.integers(1, 70, 3)) for _ in range(2 if FEW else 6)]
            for rows, ins, outs in shapes:
                arrays = [draw((rows, ins), dtype), draw((outs, ins), dtype), draw((outs,), dtype)]
                what = f"linear_act {device} {dtype} {rows}x{ins} -> {outs}"
                compare(what, linear_act, torch_linear_act, arrays, tolerance, device)
                compare(what + " without bias", linear_act, torch_linear_act, arrays[:2], tolerance, device)
            arrays = [draw((9, 20), dtype), draw((6, 20), dtype), draw((6,), dtype)]
            off = lambda run, *t: run.op("tern_linear_act", *t, False)
            compare(f"linear_act without relu {device}", off, torch.nn.functional.linear, arrays, tolerance, device)
            for wanted in range(3):
                constant = tuple(i for i in range(3) if i != wanted)
                compare(f"gradient {wanted} {device}", linear_act, torch_linear_act, arrays, tolerance, device, constant=constant)

    def test_any_number_of_dimensions(self):
        for device, dtype, tolerance in DEVICES:
            for shape in ((7,), (1, 7), (2, 3, 7), (2, 1, 3, 2, 1, 7), (0, 7), (2, 0, 7)):
                arrays = [draw(shape, dtype), draw((5, 7), dtype), draw((5,), dtype)]
                compare(f"{device} {shape}", linear_act, torch_linear_act, arrays, tolerance, device)
            compare(f"{device} only a bias", linear_act, torch_linear_act, [draw(s, dtype) for s in ((3, 0), (5, 0), (5,))], tolerance, device)

    def test_a_result_that_others_use(self):
        """Its gradient belongs to another op, or is a sum: it must not be overwritten."""
        op = lambda run, *t: (lambda y: run.op("tern_add", y, run.op("tern_mul", y, y)))(linear_act(run, *t))
        oracle = lambda *t: (lambda y: y + y * y)(torch_linear_act(*t))
        shared = lambda run, x, w, b: run.op("tern_add", linear_act(run, x, w, b), linear_act(run, x, w, b))
        for device, dtype, tolerance in DEVICES:
            arrays = [draw((9, 20), dtype), draw((6, 20), dtype), draw((6,), dtype)]
            compare(f"used twice {device}", op, oracle, arrays, 3 * tolerance, device)
            compare(f"one gradient for two {device}", shared, lambda *t: 2 * torch_linear_act(*t), arrays, tolerance, device)

    def test_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            for dtype, kind in ((5, torch.bfloat16), (6, torch.float16)):
                for shape in ((7,), (9, 7), (2, 3, 7)):
                    arrays = [rounded(draw(s, "f"), kind) for s in (shape, (5, 7), (5,))]
                    eps = torch.finfo(kind).eps
                    compare(f"{kind} {device} {shape}", in_16_bits(linear_act, dtype), torch_linear_act, arrays, eps, device, gradient_tolerance=2 * eps)

    def results(self, op, arrays, device):
        """The value and all gradients, unconverted."""
        run = Run(device)
        tensors = [run.parameter(a) for a in arrays]
        y = op(run, *tensors)
        value = run.value(y)
        run.backward(y, numpy.random.default_rng(1).standard_normal(value.shape).astype(value.dtype))
        results = [value] + [run.grad(t) for t in tensors]
        run.close()
        return results

    def test_bits_of_the_two_apart(self):
        """On a GPU only within rounding: cuBLASLt's heuristics are asked for each epilogue and may choose another
        algorithm."""
        wrappers = [(lambda op: op, 1e-5)]
        wrappers += [(lambda op, n=n: in_16_bits(op, n), torch.finfo(kind).eps) for n, kind in ((5, torch.bfloat16), (6, torch.float16))]
        for device in ("cpu", "cpu:reference"):
            for shape, outs in (((64, 100), 33), ((2, 3, 7), 5), ((7,), 5)):
                arrays = [draw(shape, "f"), draw((outs, shape[-1]), "f"), draw((outs,), "f")]
                for wrapped, tolerance in wrappers:
                    for got, want in zip(self.results(wrapped(linear_act), arrays, device), self.results(wrapped(apart), arrays, device)):
                        self.assertLessEqual(error_of(got, want), tolerance if is_gpu(device) else 0)

    def test_what_is_no_number_stays(self):
        """On the CPU only; cuBLASLt's ReLU turns NaN into 0."""
        x, w, b = draw((5, 7), "f"), draw((6, 7), "f"), draw((6,), "f")
        x[1, 2], x[3, 4], b[5] = numpy.nan, numpy.inf, -numpy.inf
        with torch.no_grad():
            want = torch_linear_act(*[torch.tensor(a) for a in (x, w, b)]).numpy()
        self.assertTrue(numpy.isnan(want[1]).all() and numpy.isinf(want[3]).any())
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            got = run.value(linear_act(run, *[run.constant(a) for a in (x, w, b)]))
            run.close()
            if is_gpu(device):
                got[numpy.isnan(want) & (got == 0)] = numpy.nan
            numpy.testing.assert_allclose(got, want, 1e-5, 1e-6)

    def test_finite_differences(self):
        for shape in ((5, 7), (7,), (2, 3, 7)):
            gradient_check(f"linear_act {shape}", linear_act, [draw(shape, "d"), draw((4, 7), "d"), draw((4,), "d")])


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
    skips.main()
