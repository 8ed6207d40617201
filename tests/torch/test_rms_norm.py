"""Root mean square norm compared with its formula in torch, which PyTorch 1.13 has no function for: values, gradients,
strided inputs, 16-bit types, empty inputs, the layer."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from half import TYPES, compare_half
from layers import refused
from ops import Run, compare, error_of, gradient_check, shows_overflow

DEVICES = [("cpu", "f", 2e-6, 1e-5), ("cpu", "d", 1e-13, 1e-12), ("cpu:reference", "f", 2e-6, 1e-5), ("cpu:reference", "d", 1e-13, 1e-12)]
# shape, number of dimensions normalised over
SHAPES = [((3, 5), 1), ((7, 33), 1), ((2, 3, 4, 5), 1), ((2, 3, 4, 5), 2), ((4, 17, 3), 3), ((9,), 1), ((70, 768), 1), ((300, 16), 1), ((2, 2500), 1)]
EPSILON = {"f": 2.0**-23, "d": 2.0**-52}


class Opts(ctypes.Structure):
    """tern_rms_norm_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("ndim", ctypes.c_int), ("eps", ctypes.c_double)]


def rms_norm(run, x, weight=None, ndim=1, eps=-1.0):
    return run.op("tern_rms_norm", x, weight, ctypes.byref(Opts(ctypes.sizeof(Opts), ndim, eps)))


def formula(x, weight=None, ndim=1, eps=EPSILON["f"]):
    """torch.nn.functional.rms_norm as PyTorch documents it."""
    dims = tuple(range(-ndim, 0))
    y = x * torch.rsqrt(x.square().mean(dims, True) + eps)
    return y if weight is None else y * weight


class RmsNormTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype):
        return (self.rng.standard_normal(shape) * 2 + 1).astype(dtype)

    def test_values_and_gradients(self):
        for device, dtype, *tolerances in DEVICES:
            for (shape, ndim), eps in itertools.product(SHAPES, (None, 0.3)):
                if device == "cpu:reference" and numpy.prod(shape) > 6000:
                    continue
                arrays = [self.draw(shape, dtype), self.draw(shape[-ndim:], dtype)]
                for count in (1, 2):  # without a weight, with one
                    op = lambda run, *t: rms_norm(run, *t, ndim=ndim, eps=-1 if eps is None else eps)
                    oracle = lambda *t: formula(*t, ndim=ndim, eps=EPSILON[dtype] if eps is None else eps)
                    compare(f"{device} {dtype} {shape} {ndim} {count} {eps}", op, oracle, arrays[:count], tolerances[0], device, gradient_tolerance=tolerances[1])

    def test_rows_of_one_value(self):
        """Its sign is left."""
        for device, dtype, *tolerances in DEVICES:
            x, w = self.draw((5, 1), dtype), self.draw(1, dtype)
            run = Run(device)
            got = run.value(rms_norm(run, run.constant(x), run.constant(w)))
            self.assertLessEqual(error_of(got, formula(*(torch.tensor(a.astype("d")) for a in (x, w)), eps=EPSILON[dtype])), tolerances[0])
            run.close()

    def test_strided(self):
        """x and weight as views with gaps."""
        for device, dtype, *tolerances in DEVICES:
            x, w = self.draw((4, 6, 5), dtype), self.draw((6, 2), dtype)
            op = lambda run, x, w: rms_norm(run, run.op("tern_transpose", x, 1, 2), run.op("tern_select", w, 1, ctypes.c_int64(1)))
            oracle = lambda x, w: formula(x.transpose(1, 2), w[:, 1], eps=EPSILON[dtype])
            compare(f"strided {device}", op, oracle, [x, w], tolerances[0], device, gradient_tolerance=tolerances[1])

    def test_only_some_want_gradients(self):
        arrays = [self.draw((4, 60), "f"), self.draw(60, "f")]
        for constant in ((0,), (1,)):
            compare(f"constant {constant}", rms_norm, formula, arrays, 2e-6, constant=constant, gradient_tolerance=1e-5)

    def test_inputs_used_elsewhere_too(self):
        """Nothing that is still needed is overwritten, and gradients add up."""
        arrays = [self.draw((6, 8), "f"), self.draw(8, "f")]

        def op(run, x, w):
            x = run.op("tern_tanh", x)
            y = rms_norm(run, x, w)
            z = rms_norm(run, y, w)
            return run.op("tern_add", run.op("tern_add", run.op("tern_mul", y, z), z), run.op("tern_add", rms_norm(run, x), x))

        def oracle(x, w):
            x = torch.tanh(x)
            y = formula(x, w)
            z = formula(y, w)
            return y * z + z + formula(x) + x

        compare("used twice", op, oracle, arrays, 4e-6, gradient_tolerance=2e-5)

    def test_same_bits_for_any_number_of_threads(self):
        for shape, dtype in itertools.product(((300, 300), (9, 9000)), "fd"):
            arrays, dy = [self.draw(shape, dtype), self.draw(shape[1], dtype)], self.draw(shape, dtype)
            seen = set()
            for threads in (1, 2, 3, 5):
                run = Run("cpu", threads)
                p = [run.parameter(a) for a in arrays]
                y = rms_norm(run, *p)
                value = run.value(y)
                run.backward(y, dy)
                seen.add(value.tobytes() + b"".join(run.grad(t).tobytes() for t in p))
                run.close()
            self.assertEqual(len(seen), 1)

    def test_large_values(self):
        """Squares leave the dtype's range: right results or no finite ones."""
        for device, dtype, *_ in DEVICES:
            for size in (1e18, 1e19, 3e19, 1e25, 1e37) if dtype == "f" else (1e154, 1e200):
                for shape in ((6, 33), (3, 2500)):
                    x, dy = (size * self.rng.uniform(-1, 1, shape)).astype(dtype), self.draw(shape, dtype)
                    unit = torch.tensor(x.astype("d") / size, requires_grad=True)  # y is the same, eps nothing beside the mean square
                    want = formula(unit, eps=0)
                    want.backward(torch.tensor(dy.astype("d")))
                    run = Run(device)
                    p = run.parameter(x)
                    y = rms_norm(run, p)
                    got = run.value(y)
                    run.backward(y, dy)
                    what, dx = f"{device} {dtype} {size} {shape}", run.grad(p).astype("d") * size
                    run.close()
                    self.assertTrue(shows_overflow(got, want.detach().numpy()), what)
                    self.assertTrue(size >= 1e37 or shows_overflow(dx, unit.grad.numpy()), what)  # beyond, dx is no normal f32
                    if dtype == "f" and tern.device("cpu") == "cpu":
                        self.assertTrue(numpy.isfinite(got).all() and numpy.isfinite(dx).all(), what)

    def test_zeros_and_no_numbers(self):
        """A row of zeros stays 0; an infinity or a NaN makes its whole row NaN, and no other one."""
        for device, dtype, *_ in DEVICES:
            x = numpy.ones((4, 40), dtype)
            x[0], x[1, 3], x[2, 39] = 0, numpy.nan, numpy.inf
            run = Run(device)
            got = run.value(rms_norm(run, run.constant(x)))
            run.close()
            numpy.testing.assert_array_equal(got[0], 0)
            self.assertTrue(numpy.isnan(got[1:3]).all())
            self.assertLessEqual(error_of(got[3], formula(torch.tensor(x[3], dtype=torch.float64), eps=EPSILON[dtype])), 1e-6)

    def test_gradients_by_finite_differences(self):
        r = numpy.random.default_rng(4)
        op = lambda run, x, w: rms_norm(run, x, w, ndim=2)
        gradient_check("rms norm", op, [r.standard_normal((3, 4, 5)), r.standard_normal((4, 5))], tolerance=1e-6)

    def test_16_bits(self):
        """Also with an f32 weight. The default eps is the 16-bit type's own."""
        for device in ("cpu", "cpu:reference"):
            for f32 in ((), (1,)):
                op, oracle = lambda run, x, w: rms_norm(run, x, w, eps=1e-3), lambda x, w: formula(x, w, eps=1e-3)
                compare_half("rms norm", op, oracle, [self.draw((5, 300), "f"), self.draw(300, "f")], device, f32)
            for dtype, kind in TYPES:
                run, x = Run(device), numpy.full((1, 4), 2.0**-6, "f")
                got = run.value(rms_norm(run, run.op("tern_cast", run.constant(x), dtype)))
                self.assertLessEqual(error_of(got, formula(torch.tensor(x.astype("d")), eps=torch.finfo(kind).eps)), torch.finfo(kind).eps)
                run.close()

    def test_nothing(self):
        for device, shape, dtype in itertools.product(("cpu", "cpu:reference"), ((0, 5), (3, 0)), "fd"):
            run = Run(device)
            p = [run.parameter(numpy.zeros(shape, dtype)), run.parameter(numpy.ones(shape[1], dtype))]
            run.backward(run.op("tern_sum", rms_norm(run, *p)))
            self.assertEqual(run.grad(p[0]).shape, shape)
            numpy.testing.assert_array_equal(run.grad(p[1]), numpy.zeros(shape[1]))
            run.close()

    def test_errors_name_shapes(self):
        run = Run("cpu")
        f = lambda *shape: run.constant(numpy.ones(shape, "f"))
        shape, dtype, value_range = -2, -3, -7
        cases = [
            (lambda: rms_norm(run, f(3, 4), ndim=3), value_range, "rms_norm: expected an ndim from 1 to 2 for input (3, 4), got 3"),
            (lambda: rms_norm(run, f(3, 4), f(3)), shape, "rms_norm: expected a weight of (4), got (3)"),
            (lambda: rms_norm(run, run.constant(numpy.ones((3, 4), "i8"))), dtype, "rms_norm: expected floating point, got i64"),
            (lambda: rms_norm(run, run.constant(numpy.ones((3, 4))), f(4)), dtype, "rms_norm: weight is f32 but input is f64"),
        ]
        for call, code, text in cases:
            with refused(self, run, text, code):
                call()
        run.close()


class LayerTest(unittest.TestCase):
    def test_layer(self):
        sizes, rng = (ctypes.c_int64 * 2)(4, 5), numpy.random.default_rng(5)
        x = rng.standard_normal((3, 6, 4, 5)).astype("f") * 2 + 1
        for opts, eps in ((None, EPSILON["f"]), (Opts(ctypes.sizeof(Opts), 1, 1e-2), 1e-2)):
            run = Run("cpu")
            layer = run.layer("tern_rms_norm_new", 2, sizes, ctypes.byref(opts) if opts else None)
            weight = ctypes.c_void_p(run.lib.tern_state_find(layer, b"weight"))
            self.assertEqual(run.lib.tern_state_count(layer), 1)
            numpy.testing.assert_array_equal(run.value(weight), numpy.ones((4, 5), "f"))
            w = rng.standard_normal((4, 5)).astype("f")
            run.write(weight, w)
            got = run.value(run.forward(layer, run.constant(x)))
            self.assertLess(error_of(got, formula(*(torch.tensor(a.astype("d")) for a in (x, w)), ndim=2, eps=eps)), 2e-6)
            run.close()

    def test_refused(self):
        run, sizes = Run("cpu"), lambda *s: (ctypes.c_int64 * max(1, len(s)))(*s)
        layer = lambda *s: run.layer("tern_rms_norm_new", len(s), sizes(*s), None)
        for call, code, text in ((layer, -7, "rms_norm: expected at least 1 dimension"), (lambda: layer(2, -1), -2, "dimension 1 is -1")):
            with refused(self, run, text, code):
                call()
        with refused(self, run, "rms_norm: expected an input whose last dimensions are (4), got (3, 5)"):
            run.forward(layer(4), run.constant(numpy.ones((3, 5), "f")))
        run.close()


if __name__ == "__main__":
    skips.main()
