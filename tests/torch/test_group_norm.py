"""Layer norm, group norm and instance norm compared with torch: values, every gradient, strided and blocked inputs,
16-bit types, empty inputs, layers."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from half import TYPES, compare_half
from layers import refused
from ops import Run, blocked, compare, error_of, expect_no_gradient, far_from_zero, gradient_check, shows_overflow, thread_counts

F = torch.nn.functional
DEVICES = [("cpu", "f", 2e-6, 1e-5), ("cpu", "d", 1e-13, 1e-11), ("cpu:reference", "f", 2e-6, 1e-5), ("cpu:reference", "d", 1e-13, 1e-11)]
# shape, number of dimensions normalised over
LAYERS = [((3, 5), 1), ((7, 33), 1), ((2, 3, 4, 5), 1), ((2, 3, 4, 5), 2), ((4, 17, 3), 3), ((9,), 1), ((70, 768), 1), ((300, 16), 1), ((2, 2500), 1)]
# shape, groups
GROUPS = [((2, 6, 5, 7), 3), ((4, 8), 2), ((3, 6, 9), 6), ((2, 5, 3), 1), ((3, 32, 8, 8), 4), ((70, 4, 3), 2), ((2, 4, 2, 3, 5), 2), ((1, 2, 60, 61), 1), ((3, 4), 1), ((1, 4, 190, 180), 2)]


class Opts(ctypes.Structure):
    """tern_layer_norm_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("ndim", ctypes.c_int), ("eps", ctypes.c_double)]


class NormOpts(ctypes.Structure):
    """tern_norm_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("eps", ctypes.c_double), ("affine", ctypes.c_bool)]


def layer_norm(run, x, weight=None, bias=None, ndim=1, eps=1e-5):
    return run.op("tern_layer_norm", x, weight, bias, ctypes.byref(Opts(ctypes.sizeof(Opts), ndim, eps)))


def group_norm(run, x, groups, weight=None, bias=None, eps=1e-5):
    return run.op("tern_group_norm", x, ctypes.c_int64(groups), weight, bias, ctypes.c_double(eps))


class GroupNormTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype):
        return (self.rng.standard_normal(shape) * 2 + 3).astype(dtype)

    def arrays(self, shape, affine, dtype):
        return [self.draw(shape, dtype), self.draw(affine, dtype), self.draw(affine, dtype) - 3]

    def test_layer_norm(self):
        for device, dtype, *tolerances in DEVICES:
            for shape, ndim in LAYERS:
                if device == "cpu:reference" and numpy.prod(shape) > 6000:
                    continue
                arrays = self.arrays(shape, shape[-ndim:], dtype)
                for count in (1, 2, 3):  # without weight and bias, with weight, with both
                    op = lambda run, x, *wb: layer_norm(run, x, *wb, ndim=ndim)
                    oracle = lambda x, *wb: F.layer_norm(x, shape[-ndim:], *wb)
                    compare(f"{device} {dtype} {shape} {ndim} {count}", op, oracle, arrays[:count], tolerances[0], device, gradient_tolerance=tolerances[1])

    def test_rows_of_one_value(self):
        """Only the bias is left, and the gradient is 0."""
        for device in ("cpu", "cpu:reference"):
            x, w, b = self.arrays((5, 1), 1, "f")
            run = Run(device)
            p = [run.parameter(a) for a in (x, w, b)]
            y = layer_norm(run, *p)
            numpy.testing.assert_array_equal(run.value(y), numpy.full((5, 1), b[0]))
            run.backward(y, numpy.arange(5, dtype="f").reshape(5, 1))
            self.assertEqual([run.grad(a).sum() for a in p], [0, 0, 10])
            run.close()

    def test_group_norm(self):
        for device, dtype, *tolerances in DEVICES:
            for shape, groups in GROUPS:
                if device == "cpu:reference" and numpy.prod(shape) > 3000:
                    continue
                arrays = self.arrays(shape, shape[1], dtype)
                for count in (1, 2, 3):
                    op = lambda run, x, *wb: group_norm(run, x, groups, *wb, eps=1e-3)
                    oracle = lambda x, *wb: F.group_norm(x, groups, *wb, eps=1e-3)
                    what = f"{device} {dtype} {shape} in {groups} {count}"
                    compare(what, op, oracle, arrays[:count], tolerances[0], device, gradient_tolerance=tolerances[1])

    def test_as_many_groups_as_channels_is_instance_norm(self):
        x, w, b = self.arrays((3, 5, 6, 7), 5, "f")
        op = lambda run, x, w, b: group_norm(run, x, 5, w, b)
        compare("instance", op, lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [x, w, b], 2e-6, gradient_tolerance=1e-5)

    def test_strided_and_blocked(self):
        """x, weight and bias as views with gaps; x in blocks of 16 channels."""
        for device, dtype, *tolerances in DEVICES:
            x, w, b = self.draw((4, 6, 5), dtype), self.draw((6, 2), dtype), self.draw((12,), dtype)

            def op(run, x, w, b):
                x = run.op("tern_transpose", x, 1, 2)
                w = run.op("tern_select", w, 1, ctypes.c_int64(1))
                b = run.op("tern_slice", b, 0, ctypes.c_int64(1), ctypes.c_int64(12), ctypes.c_int64(2))
                return layer_norm(run, x, w, b)

            oracle = lambda x, w, b: F.layer_norm(x.transpose(1, 2), (6,), w[:, 1], b[1::2])
            compare(f"strided {device}", op, oracle, [x, w, b], tolerances[0], device, gradient_tolerance=tolerances[1])
            arrays = self.arrays((2, 32, 4, 3), 32, dtype)
            op = lambda run, x, w, b: group_norm(run, blocked(run, x), 4, w, b)
            compare(f"blocked {device}", op, lambda x, w, b: F.group_norm(x, 4, w, b), arrays, tolerances[0], device, gradient_tolerance=tolerances[1])

    def test_only_some_want_gradients(self):
        arrays = self.arrays((4, 6, 5), 6, "f")
        op, oracle = lambda run, x, w, b: group_norm(run, x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b)
        for constant in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
            compare(f"constant {constant}", op, oracle, arrays, 2e-6, constant=constant, gradient_tolerance=1e-5)

    def test_inputs_used_elsewhere_too(self):
        """Nothing that is still needed is overwritten, and gradients add up."""
        arrays = self.arrays((6, 8), 8, "f")

        def op(run, x, w, b):
            x = run.op("tern_tanh", x)
            y = layer_norm(run, x, w, b)
            z = layer_norm(run, y, w)
            return run.op("tern_add", run.op("tern_add", run.op("tern_mul", y, z), z), run.op("tern_add", layer_norm(run, x), x))

        def oracle(x, w, b):
            x = torch.tanh(x)
            y = F.layer_norm(x, (8,), w, b)
            z = F.layer_norm(y, (8,), w)
            return y * z + z + F.layer_norm(x, (8,)) + x

        compare("used twice", op, oracle, arrays, 4e-6, gradient_tolerance=2e-5)
        for device in ("cpu", "cpu:reference"):
            compare("used twice", op, oracle, [a.astype("d") for a in arrays], 1e-12, device, gradient_tolerance=1e-10)

    def test_one_parameter_for_several_inputs(self):
        """Each use adds its gradient."""
        for device, dtype, *tolerances in DEVICES:
            one, both = self.draw(5, dtype), self.draw((4, 5), dtype)
            compare("weight is bias", lambda run, x, w: group_norm(run, x, 1, w, w), lambda x, w: F.group_norm(x, 1, w, w), [both, one], tolerances[0], device,
                    gradient_tolerance=tolerances[1])
            compare("all are one", lambda run, x: layer_norm(run, x, x, x), lambda x: F.layer_norm(x, (5,), x, x), [one], tolerances[0], device,
                    gradient_tolerance=tolerances[1])

    def test_same_bits_for_any_number_of_threads(self):
        for (shape, groups), dtype in itertools.product((((300, 300), 1), ((9, 32, 20, 21), 4)), "fd"):
            x, w, b = self.arrays(shape, shape[1], dtype)
            dy = self.draw(shape, dtype) - 3
            seen = set()
            for threads in thread_counts(1, 2, 3, 5):
                run = Run("cpu", threads)
                p = [run.parameter(a) for a in (x, w, b)]
                y = group_norm(run, p[0], groups, *p[1:])
                value = run.value(y)
                run.backward(y, dy)
                seen.add(value.tobytes() + b"".join(run.grad(t).tobytes() for t in p))
                run.close()
            self.assertEqual(len(seen), 1)

    def test_large_mean(self):
        """Data far from zero: mean 1e4, deviation 1. f32 of the input itself loses 1e-3 / 1e4."""
        for shape in ((64, 1000), (4, 20000)):
            x = (self.rng.standard_normal(shape) + 1e4).astype("f")
            t = torch.tensor(x.astype("d"))
            want, theirs = (F.layer_norm(a, shape[1:]).numpy() for a in (t, t.float()))
            run = Run("cpu")
            got = run.value(layer_norm(run, run.constant(x)))
            run.close()
            self.assertLess(numpy.abs(got - want).max(), 1e-3)
            self.assertLessEqual(numpy.abs(got - want).mean(), 1.05 * numpy.abs(theirs - want).mean() + 1e-9)

    def equal_rows(self, rows, size):
        """Rows of one value each, of any size and sign."""
        values = 10 ** self.rng.uniform(-3, 9, rows) * self.rng.choice([-1, 1], rows)
        return numpy.repeat(values, size).reshape(rows, size)

    def test_equal_values(self):
        """The mean of equal values is the value: y is the bias, and the gradients of x and of the weight are 0."""
        for device, dtype, *_ in DEVICES:
            for rows, size in ((200, 33), (100, 16), (40, 700), (8, 2500), (300, 7)):
                for groups in (0, 1, 2):  # 0: layer norm
                    x = self.equal_rows(rows * max(groups, 1), size)
                    x = x if groups == 0 else x.reshape(rows, groups, size)
                    channels = size if groups == 0 else groups
                    run, b = Run(device), self.draw(channels, dtype)
                    p = [run.parameter(a) for a in (x.astype(dtype), numpy.ones(channels, dtype), b)]
                    y = layer_norm(run, *p) if groups == 0 else group_norm(run, p[0], groups, *p[1:])
                    want = numpy.broadcast_to(b if groups == 0 else b[:, None], x.shape)
                    what = f"{device} {dtype} {x.shape}"
                    numpy.testing.assert_array_equal(run.value(y), want, what)
                    expect_no_gradient(run, y, p[:2], what)

    def test_equal_values_in_16_bits(self):
        for device, (dtype, _) in itertools.product(("cpu", "cpu:reference"), TYPES):
            x = numpy.clip(self.equal_rows(100, 33), -6e4, 6e4).astype("f")
            run = Run(device)
            p = run.parameter(x)
            y = run.op("tern_cast", layer_norm(run, run.op("tern_cast", p, dtype)), 0)
            self.assertEqual(numpy.abs(run.value(y)).max(), 0)
            expect_no_gradient(run, y, [p])

    def test_far_from_zero(self):
        """As f64 of the same inputs."""
        for device, dtype, *_ in DEVICES:
            tolerance = 1e-5 if dtype == "f" else 1e-6
            layers = [((40, 33), 1), ((5, 1500), 1), ((64, 16), 1), ((4, 6, 35), 2), ((2, 4, 2150), 4), ((3, 6, 5, 7), 3)]
            for shape, groups in layers:
                channels = shape[-1] if len(shape) == 2 else shape[1]
                arrays = [far_from_zero(self.rng, shape, "f").astype(dtype), self.draw(channels, dtype), self.draw(channels, dtype)]
                if len(shape) == 2:
                    op, oracle = layer_norm, lambda x, *wb: F.layer_norm(x, shape[1:], *wb)
                else:
                    op, oracle = lambda run, x, *wb: group_norm(run, x, groups, *wb), lambda x, *wb: F.group_norm(x, groups, *wb)
                compare(f"{device} {dtype} {shape}", op, oracle, arrays, tolerance, device)
            x = (1e5 + 1e-2 * self.rng.standard_normal((30, 200))).astype("f").astype(dtype)
            compare(f"{device} {dtype}", layer_norm, lambda x: F.layer_norm(x, (200,)), [x], tolerance, device)

    def test_large_values(self):
        """Squares leave the dtype's range: right results or no finite ones, but not 0, beside which nothing
        shows that training diverges."""
        for device, dtype, *_ in DEVICES:
            for size in (1e18, 1e19, 3e19, 1e25, 1e37, 3e38) if dtype == "f" else (1e154, 1e200):
                for shape, groups in (((6, 33), 1), ((3, 2500), 1), ((2, 4, 700), 2)):
                    x, dy = (size * self.rng.uniform(-1, 1, shape)).astype(dtype), self.draw(shape, dtype)
                    unit = torch.tensor(x.astype("d") / size, requires_grad=True)  # y is the same, eps nothing beside the variance
                    want = F.layer_norm(unit, shape[1:], eps=0) if len(shape) == 2 else F.group_norm(unit, groups, eps=0)
                    want.backward(torch.tensor(dy.astype("d")))
                    run = Run(device)
                    p = run.parameter(x)
                    y = layer_norm(run, p) if len(shape) == 2 else group_norm(run, p, groups)
                    got = run.value(y)
                    run.backward(y, dy)
                    what, dx = f"{device} {dtype} {size} {shape}", run.grad(p).astype("d") * size
                    run.close()
                    self.assertTrue(shows_overflow(got, want.detach().numpy()), what)
                    self.assertTrue(size >= 1e37 or shows_overflow(dx, unit.grad.numpy()), what)  # beyond, dx is no normal f32
                    if dtype == "f" and size < 1e38 and tern.device("cpu") == "cpu":
                        self.assertTrue(numpy.isfinite(got).all() and numpy.isfinite(dx).all(), what)

    def test_gradients_by_finite_differences(self):
        r = numpy.random.default_rng(4)
        arrays = [r.standard_normal((3, 4, 5)), r.standard_normal(4), r.standard_normal(4)]
        gradient_check("group", lambda run, x, w, b: group_norm(run, x, 2, w, b), arrays, tolerance=1e-6)
        arrays = [r.standard_normal((3, 4, 5)), r.standard_normal((4, 5)), r.standard_normal((4, 5))]
        gradient_check("layer", lambda run, x, w, b: layer_norm(run, x, w, b, ndim=2), arrays, tolerance=1e-6)

    def test_16_bits(self):
        """Also with f32 weights, and adding to an existing gradient."""
        layer = lambda run, x, w, b: layer_norm(run, x, w, b)
        group = lambda run, x, w, b: run.op("tern_add", group_norm(run, x, 2, w, b), x)
        for device in ("cpu", "cpu:reference"):
            for f32 in ((), (1, 2)):
                compare_half("layer norm", layer, lambda x, w, b: F.layer_norm(x, (300,), w, b), self.arrays((5, 300), 300, "f"), device, f32)
                oracle = lambda x, w, b: F.group_norm(x, 2, w, b) + x
                compare_half("group norm and x", group, oracle, self.arrays((3, 4, 9, 9), 4, "f"), device, f32, roundings=2)

    def test_nothing(self):
        """Empty inputs: the result is empty, the gradients of weight and bias are 0."""
        for device in ("cpu", "cpu:reference"):
            for (shape, groups), dtype in itertools.product((((0, 4, 5), 2), ((2, 4, 0), 2), ((2, 0, 5), 2)), "fd"):
                arrays = [numpy.zeros(shape, dtype), numpy.ones(shape[1], dtype), numpy.ones(shape[1], dtype)]
                run = Run(device)
                p = [run.parameter(a) for a in arrays]
                for _ in (1, 2):
                    run.backward(run.op("tern_sum", group_norm(run, p[0], groups, *p[1:])))
                    for a, b in zip(p, arrays):
                        numpy.testing.assert_array_equal(run.grad(a), 0 * b)
                run.end()
                run.close()
            run = Run(device)
            self.assertEqual(run.value(layer_norm(run, run.constant(numpy.zeros((3, 0), "f")))).shape, (3, 0))
            run.close()

    def test_errors_name_shapes(self):
        run = Run("cpu")
        f = lambda *shape: run.constant(numpy.ones(shape, "f"))
        shape, dtype, value_range = -2, -3, -7
        cases = [
            (lambda: layer_norm(run, f(3, 4), ndim=3), value_range, "layer_norm: expected an ndim from 1 to 2 for input (3, 4), got 3"),
            (lambda: layer_norm(run, f(3, 4), ndim=0), value_range, "expected an ndim from 1 to 2 for input (3, 4), got 0"),
            (lambda: layer_norm(run, f(3, 4), f(3)), shape, "layer_norm: expected a weight of (4), got (3)"),
            (lambda: layer_norm(run, f(3, 4), f(4), f(1, 4)), shape, "layer_norm: expected a bias of (4), got (1, 4)"),
            (lambda: layer_norm(run, run.constant(numpy.ones((3, 4), "i8"))), dtype, "layer_norm: expected floating point, got i64"),
            (lambda: layer_norm(run, run.constant(numpy.ones((3, 4))), f(4)), dtype, "layer_norm: weight is f32 but input is f64"),
            (lambda: group_norm(run, f(4), 2), shape, "group_norm: expected (N, C, ...) with channels that 2 groups divide, got (4)"),
            (lambda: group_norm(run, f(2, 4, 3), 3), shape, "with channels that 3 groups divide, got (2, 4, 3)"),
            (lambda: group_norm(run, f(2, 4, 3), 0), shape, "with channels that 0 groups divide, got (2, 4, 3)"),
            (lambda: group_norm(run, f(1, 4, 1), 4), shape, "group_norm: expected more than 1 value in a group, got (1, 4, 1) in 4 groups"),
            (lambda: group_norm(run, f(2, 4, 3), 2, f(3)), shape, "group_norm: expected a weight of (4), got (3)"),
            (lambda: group_norm(run, f(2, 4, 3), 2, None, run.constant(numpy.ones(4))), dtype, "group_norm: bias is f64 but input is f32"),
        ]
        for call, code, text in cases:
            with refused(self, run, text, code):
                call()
        run.close()


class ModuleTest(unittest.TestCase):
    def test_beside_torch(self):
        rng = numpy.random.default_rng(5)
        sizes = (ctypes.c_int64 * 2)(4, 5)
        layers = [
            ("tern_layer_norm_new", (2, sizes), lambda **kw: torch.nn.LayerNorm((4, 5), elementwise_affine=kw.pop("affine", True), **kw)),
            ("tern_group_norm_new", (ctypes.c_int64(2), ctypes.c_int64(6)), lambda **kw: torch.nn.GroupNorm(2, 6, **kw)),
        ]
        for name, args, make in layers:
            for opts in ({}, dict(eps=1e-2), dict(affine=False)):
                theirs, run = make(**opts), Run("cpu")
                ours = NormOpts(ctypes.sizeof(NormOpts), opts.get("eps", 1e-5), opts.get("affine", True))
                layer = run.layer(name, *args, ctypes.byref(ours) if opts else None)
                for key, value in theirs.state_dict().items():
                    found = ctypes.c_void_p(run.lib.tern_state_find(layer, key.encode()))
                    numpy.testing.assert_array_equal(run.value(found), value.numpy())
                self.assertEqual(run.lib.tern_state_count(layer), len(theirs.state_dict()))
                x = rng.standard_normal((3, 6, 4, 5)).astype("f") * 2 + 1
                got = run.value(run.forward(layer, run.constant(x)))
                self.assertLess(error_of(got, theirs(torch.tensor(x)).detach().numpy()), 2e-6)
                run.close()

    def test_refused(self):
        run, sizes = Run("cpu"), lambda *s: (ctypes.c_int64 * max(1, len(s)))(*s)
        layer = lambda *s: run.layer("tern_layer_norm_new", len(s), sizes(*s), None)
        group = lambda g, c: run.layer("tern_group_norm_new", ctypes.c_int64(g), ctypes.c_int64(c), None)
        none = lambda: run.layer("tern_layer_norm_new", 1, sizes(4), ctypes.byref(NormOpts()))
        for call, code, text in (
            (layer, -7, "layer_norm: expected at least 1 dimension"),
            (lambda: layer(2, -1), -2, "dimension 1 is -1"),
            (lambda: group(3, 4), -7, "got 3 groups, 4 channels"),
            (lambda: group(0, 4), -7, "got 0 groups, 4 channels"),
            (lambda: group(1, 0), -7, "got 1 groups, 0 channels"),
            (none, -1, "options: size is 0"),
        ):
            with refused(self, run, text, code):
                call()
        bare = run.layer("tern_layer_norm_new", 1, sizes(4), ctypes.byref(NormOpts(ctypes.sizeof(NormOpts), 1e-5, False)))
        with refused(self, run, "layer_norm: expected an input whose last dimensions are (4), got (3, 5)", -2):
            run.forward(bare, run.constant(numpy.ones((3, 5), "f")))
        run.close()


if __name__ == "__main__":
    skips.main()
