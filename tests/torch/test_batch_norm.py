"""Batch norm with residual and ReLU compared with torch: values, running statistics, every gradient, modules."""
import ctypes
import unittest

import numpy
import torch

import skips
import tern
from half import TYPES, compare_half
from ops import Run, blocked, compare, error_of, expect_no_gradient, far_from_zero, gradient_check, is_repeated, shows_overflow, thread_counts

DEVICES = [("cpu", "f", 2e-6, 2e-5), ("cpu", "d", 1e-13, 1e-11), ("cpu:reference", "f", 2e-6, 2e-5), ("cpu:reference", "d", 1e-13, 1e-11)]
SHAPES = [(4, 32, 5, 7), (3, 5, 9, 11), (6, 5), (70, 33), (2, 16, 40, 41), (5, 1, 7), (9, 16, 1, 1), (2, 3, 2, 3, 4), (2, 16, 3, 5, 4)]


class Opts(ctypes.Structure):
    """tern_batch_norm_act_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("training", ctypes.c_bool),
        ("momentum", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("relu", ctypes.c_bool),
    ]


def options(training=True, relu=False, momentum=0.1, eps=1e-5):
    return Opts(ctypes.sizeof(Opts), training, momentum, eps, relu)


def batch_norm(run, x, weight=None, bias=None, mean=None, var=None, residual=None, **opts):
    return run.op("tern_batch_norm_act", x, mean, var, weight, bias, residual, ctypes.byref(options(**opts)))


def oracle(x, weight, bias, residual, training, relu, mean, var, momentum=0.1, eps=1e-5):
    y = torch.nn.functional.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    y = y if residual is None else y + residual
    return torch.relu(y) if relu else y


class BatchNormTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype):
        return (self.rng.standard_normal(shape) * 2 + 3).astype(dtype)

    def compare(self, what, arrays, mean, var, training, relu, has_residual, tolerances, device, layout, threads=None):
        """arrays: x, weight, bias and optionally residual."""
        if is_repeated(device):
            return
        both = {}

        def op(run, x, weight, bias, residual=None):
            both["mean"], both["var"] = run.constant(mean), run.constant(var)
            residual = residual and layout(run, residual)
            y = batch_norm(run, layout(run, x), weight, bias, both["mean"], both["var"], residual, training=training, relu=relu)
            both["got"] = run.value(both["mean"]), run.value(both["var"])
            return y

        moved = [torch.tensor(mean.astype("d")), torch.tensor(var.astype("d"))]

        def want(x, weight, bias, residual=None):
            return oracle(x, weight, bias, residual, training, relu, *moved)

        compare(what, op, want, arrays, tolerances[0], device, threads=threads, gradient_tolerance=tolerances[1])
        for got, expected in zip(both["got"], moved):
            self.assertLess(error_of(got, expected.numpy()), tolerances[0], what)

    def test_everything(self):
        for device, dtype, *tolerances in DEVICES:
            for shape in SHAPES:
                if device == "cpu:reference" and numpy.prod(shape) > 5000:
                    continue
                layouts = [lambda run, x: x] + ([blocked] if len(shape) > 3 and shape[1] % 16 == 0 else [])
                for layout in layouts:
                    for flags in range(8):
                        training, relu, residual = bool(flags & 1), bool(flags & 2), bool(flags & 4)
                        if dtype == "f" and device == "cpu:reference" and flags != 7:
                            continue
                        channels = shape[1]
                        arrays = [self.draw(shape, dtype), self.draw(channels, dtype), self.draw(channels, dtype) - 3]
                        arrays += [self.draw(shape, dtype) - 5] if residual else []
                        mean, var = self.draw(channels, dtype), self.rng.random(channels).astype(dtype) + 0.5
                        what = f"{device} {dtype} {shape} training={training} relu={relu} residual={residual} {layout.__name__}"
                        self.compare(what, arrays, mean, var, training, relu, residual, tolerances, device, layout)

    def test_without_weight_and_running_statistics(self):
        for device, dtype, *tolerances in DEVICES:
            x = [self.draw((4, 16, 5, 5), dtype)]
            compare(
                "bare", lambda run, a: batch_norm(run, a), lambda a: torch.nn.functional.batch_norm(a, None, None, training=True), x, tolerances[0], device
            )

    def test_only_parameters_or_only_data_want_gradients(self):
        arrays = [self.draw((4, 16, 5, 5), "f"), self.draw(16, "f"), self.draw(16, "f"), self.draw((4, 16, 5, 5), "f") - 4]
        want = lambda x, w, b, r: oracle(x, w, b, r, True, True, None, None)
        for constant in ((0,), (0, 3), (1, 2), (1, 2, 3), (0, 1, 2), (0, 1, 3), (2,), (3,)):
            op = lambda run, x, w, b, r: batch_norm(run, blocked(run, x), w, b, residual=blocked(run, r), relu=True)
            compare(f"constant {constant}", op, want, arrays, 2e-6, constant=constant, gradient_tolerance=2e-5)

    def test_inputs_used_elsewhere_too(self):
        """x and residual are used twice, so their gradients are sums: nothing that is still needed may be
        overwritten."""
        arrays = [self.draw((4, 16, 6, 6), "f"), self.draw(16, "f"), self.draw(16, "f"), self.draw((4, 16, 6, 6), "f") - 4]

        def op(run, x, w, b, r):
            x, r = run.op("tern_relu", blocked(run, x)), blocked(run, r)
            y = batch_norm(run, x, w, b, residual=r, relu=True)
            z = batch_norm(run, x, w, b, residual=x)
            return run.op("tern_add", run.op("tern_add", run.op("tern_add", y, z), run.op("tern_mul", x, r)), y)

        def want(x, w, b, r):
            x = torch.relu(x)
            y = oracle(x, w, b, r, True, True, None, None)
            z = oracle(x, w, b, x, True, False, None, None)
            return y + z + x * r + y

        compare("used twice", op, want, arrays, 2e-6, gradient_tolerance=2e-5)
        for device in ("cpu", "cpu:reference"):
            compare("used twice", op, want, [a.astype("d") for a in arrays], 1e-12, device, gradient_tolerance=1e-11)

    def test_one_parameter_for_several_inputs(self):
        """Each use adds its gradient."""
        x, w, mean, var = self.draw((6, 4, 3, 3), "d"), self.draw(4, "d"), numpy.zeros(4), numpy.full(4, 2.0)
        for device in ("cpu", "cpu:reference"):
            for training in (True, False):
                op = lambda run, x, w: batch_norm(run, x, w, w, run.constant(mean), run.constant(var), training=training)
                want = lambda x, w: oracle(x, w, w, None, training, False, torch.tensor(mean), torch.tensor(var))
                compare(f"weight is bias, training {training}", op, want, [x, w], 1e-12, device, gradient_tolerance=1e-11)
            op = lambda run, x: batch_norm(run, x, None, None, run.constant(mean), run.constant(var), x, training=False)
            want = lambda x: oracle(x, None, None, x, False, False, torch.tensor(mean), torch.tensor(var))
            compare("x is the residual", op, want, [x], 1e-12, device, gradient_tolerance=1e-11)

    def test_residual_in_another_layout(self):
        arrays = [self.draw((4, 16, 6, 5), "f"), self.draw(16, "f"), self.draw(16, "f"), self.draw((4, 16, 6, 5), "f") - 4]
        want = lambda x, w, b, r: oracle(x, w, b, r, True, True, None, None)
        op = lambda run, x, w, b, r: batch_norm(run, blocked(run, x), w, b, residual=r, relu=True)
        compare("blocked + plain", op, want, arrays, 2e-6, gradient_tolerance=2e-5)
        op = lambda run, x, w, b, r: batch_norm(run, x, w, b, residual=blocked(run, r), relu=True)
        compare("plain + blocked", op, want, arrays, 2e-6, gradient_tolerance=2e-5)

    def test_large_mean(self):
        """Data far from zero: mean 1e4, deviation 1. Squares in f32 would lose everything; f32 of the input itself loses
        1e-3 / 1e4. torch in f32 is measured on the same data."""
        x = (self.rng.standard_normal((8, 16, 30, 30)) + 1e4).astype("f")
        x[:, 3] = 7  # a constant channel
        t = torch.tensor(x.astype("d"))
        want = torch.nn.functional.batch_norm(t, None, None, training=True).numpy()
        theirs = torch.nn.functional.batch_norm(t.float(), None, None, training=True).numpy()
        for layout in (lambda run, x: x, blocked):
            run = Run("cpu")
            got = run.value(batch_norm(run, layout(run, run.constant(x))))
            run.close()
            self.assertLess(numpy.abs(got - want).max(), 1e-3)
            self.assertLessEqual(numpy.abs(got - want).mean(), 1.05 * numpy.abs(theirs - want).mean() + 1e-9)

    def forms(self):
        """Shapes with the layouts they can have."""
        plain = lambda run, x: x
        return [((70, 21), plain), ((5, 3, 6, 7), plain), ((2, 5, 67, 71), plain), ((5, 16, 6, 7), blocked), ((2, 32, 33, 31), blocked), ((3, 16, 3, 4, 5), plain)]

    def test_equal_values(self):
        """The mean of equal values is the value: y is the bias, the gradients of x and of the weight are 0, and so is the
        running variance."""
        for device, dtype, *_ in DEVICES:
            for shape, layout in self.forms():
                channels = shape[1]
                values = 10 ** self.rng.uniform(-3, 9, channels) * self.rng.choice([-1, 1], channels)
                x = numpy.broadcast_to(values.reshape(1, -1, *[1] * (len(shape) - 2)), shape).astype(dtype)
                b, run, what = self.draw(channels, dtype), Run(device), f"{device} {dtype} {shape}"
                p = [run.parameter(a) for a in (x, numpy.ones(channels, dtype), b)]
                mean, var = run.constant(numpy.zeros(channels, dtype)), run.constant(numpy.ones(channels, dtype))
                y = batch_norm(run, layout(run, p[0]), *p[1:], mean, var, momentum=1)
                want = numpy.broadcast_to(b.reshape(1, -1, *[1] * (len(shape) - 2)), shape)
                numpy.testing.assert_array_equal(run.value(y), want, what)
                numpy.testing.assert_array_equal((run.value(mean), run.value(var)), (values.astype(dtype), 0 * values), what)
                expect_no_gradient(run, y, p[:2], what)

    def test_equal_values_in_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            for dtype, _ in TYPES:
                values = numpy.clip(10 ** self.rng.uniform(-3, 9, 16), 0, 6e4)
                x, run = numpy.broadcast_to(values[:, None, None], (3, 16, 5, 7)).astype("f"), Run(device)
                p = run.parameter(x)
                y = run.op("tern_cast", batch_norm(run, run.op("tern_cast", p, dtype)), 0)
                self.assertEqual(numpy.abs(run.value(y)).max(), 0)
                expect_no_gradient(run, y, [p])

    def test_far_from_zero(self):
        """As f64 of the same inputs, the ReLU's mask included."""
        for device, dtype, *_ in DEVICES:
            for shape, layout in self.forms():
                for relu in (False, True):
                    arrays = [far_from_zero(self.rng, shape, "f").astype(dtype), self.draw(shape[1], dtype), self.draw(shape[1], dtype)]
                    op = lambda run, x, w, b: batch_norm(run, layout(run, x), w, b, relu=relu)
                    want = lambda x, w, b: oracle(x, w, b, None, True, relu, None, None)
                    compare(f"{device} {dtype} {shape} {relu}", op, want, arrays, 1e-5 if dtype == "f" else 1e-6, device)
            x = (1e5 + 1e-2 * self.rng.standard_normal((70, 8))).astype("f").astype(dtype)
            compare(f"{device} {dtype}", batch_norm, lambda x: oracle(x, None, None, None, True, False, None, None), [x], 1e-5, device)

    def test_large_values(self):
        """Squares leave the dtype's range: right results or no finite ones, but not 0, beside which nothing
        shows that training diverges."""
        for device, dtype, *_ in DEVICES:
            for size in (1e18, 1e19, 3e19, 1e25, 1e37, 3e38) if dtype == "f" else (1e154, 1e200):
                for shape, layout in self.forms():
                    x, dy = (size * self.rng.uniform(-1, 1, shape)).astype(dtype), self.draw(shape, dtype)
                    unit = torch.tensor(x.astype("d") / size, requires_grad=True)  # y is the same, eps nothing beside the variance
                    want = torch.nn.functional.batch_norm(unit, None, None, training=True, eps=0)
                    want.backward(torch.tensor(dy.astype("d")))
                    run = Run(device)
                    p = run.parameter(x)
                    y = batch_norm(run, layout(run, p))
                    got = run.value(y)
                    run.backward(y, dy)
                    what, dx = f"{device} {dtype} {size} {shape}", run.grad(p).astype("d") * size
                    run.close()
                    self.assertTrue(shows_overflow(got, want.detach().numpy()), what)
                    self.assertTrue(size >= 1e37 or shows_overflow(dx, unit.grad.numpy()), what)  # beyond, dx is no normal f32
                    if dtype == "f" and size < 1e38 and tern.device("cpu") == "cpu":
                        self.assertTrue(numpy.isfinite(got).all() and numpy.isfinite(dx).all(), what)

    def test_rows_that_differ_from_the_rest(self):
        """A tile's first rows determine its shift: here they are far from all others."""
        x = self.rng.standard_normal((2, 16, 32, 32)).astype("f") * 1e-2
        x[:, :, :2] = 1000
        want = torch.nn.functional.batch_norm(torch.tensor(x.astype("d")), None, None, training=True).numpy()
        for layout in (lambda run, x: x, blocked):
            run = Run("cpu")
            self.assertLess(error_of(run.value(batch_norm(run, layout(run, run.constant(x)))), want), 1e-6)
            run.close()

    def test_same_bits_for_any_number_of_threads(self):
        for layout, dtype in ((lambda run, x: x, "f"), (blocked, "f"), (lambda run, x: x, "d")):
            x, dy = self.draw((16, 32, 20, 21), dtype), self.draw((16, 32, 20, 21), dtype) - 3
            seen = set()
            for threads in thread_counts(1, 2, 3, 5):
                run = Run("cpu", threads)
                p = [run.parameter(a) for a in (x, numpy.full(32, 2, dtype), numpy.zeros(32, dtype))]
                y = batch_norm(run, layout(run, p[0]), *p[1:], relu=True)
                value = run.value(y)
                run.backward(y, dy)
                seen.add(value.tobytes() + b"".join(run.grad(t).tobytes() for t in p[1:]))
                run.close()
            self.assertEqual(len(seen), 1)

    def test_nan_and_infinity_pass(self):
        x = self.draw((2, 16, 4, 4), "f")
        x[0, 1, 2, 2], x[1, 2, 0, 0] = numpy.nan, numpy.inf
        want = torch.relu(torch.nn.functional.batch_norm(torch.tensor(x), None, None, training=True)).numpy()
        for layout in (lambda run, x: x, blocked):
            run = Run("cpu")
            got = run.value(batch_norm(run, layout(run, run.constant(x[:, :1])) if layout is not blocked else run.constant(x), relu=True))
            run.close()
            numpy.testing.assert_array_equal(numpy.isnan(got), numpy.isnan(want[:, : got.shape[1]]))

    def test_relu_lets_the_gradient_of_nan_through(self):
        """As in torch: where y is NaN (all of channel 1) dy passes."""
        for device, dtype in (("cpu", "f"), ("cpu", "d"), ("cpu:reference", "f")):
            x, dy, bias = self.draw((2, 16, 4, 4), dtype), self.draw((2, 16, 4, 4), dtype), numpy.zeros(16, dtype)
            bias[1] = numpy.nan
            t = torch.tensor(bias, requires_grad=True)
            torch.relu(torch.nn.functional.batch_norm(torch.tensor(x), None, None, None, t, True)).backward(torch.tensor(dy))
            for layout in (lambda run, x: x, blocked):
                run = Run(device)
                ours = run.parameter(bias)
                run.backward(batch_norm(run, layout(run, run.constant(x)), None, ours, relu=True), dy)
                self.assertLess(error_of(run.grad(ours), t.grad.numpy()), 1e-5)
                run.close()

    def test_gradients_by_finite_differences(self):
        r = numpy.random.default_rng(4)
        arrays = [r.standard_normal((3, 4, 5)), r.standard_normal(4), r.standard_normal(4), r.standard_normal((3, 4, 5))]
        gradient_check("training", lambda run, x, w, b, z: batch_norm(run, x, w, b, residual=z), arrays, tolerance=1e-6)
        gradient_check("relu", lambda run, x, w, b, z: batch_norm(run, x, w, b, residual=z, relu=True), arrays, tolerance=1e-5, step=1e-6)
        stats = [r.standard_normal(4), r.random(4) + 1]
        evaluate = lambda run, x, w, b: batch_norm(run, x, w, b, *map(run.constant, stats), training=False)
        gradient_check("evaluation", evaluate, arrays[:3], tolerance=1e-6)

    def test_views_with_gaps(self):
        """For x, weight, bias, residual and the running statistics, which are written through the view."""
        for device, dtype, *tolerances in DEVICES:
            if is_repeated(device):
                continue
            arrays = [self.draw((4, 5, 6), dtype), self.draw((6, 2), dtype), self.draw(12, dtype), self.draw((4, 6, 10), dtype)]
            stats = self.rng.random((2, 12)).astype(dtype)
            seen = {}

            def op(run, x, w, b, z):
                half = lambda a, dim, stop: run.op("tern_slice", a, dim, *map(ctypes.c_int64, (0, stop, 2)))
                seen["all"] = run.constant(stats)
                mean, var = (half(run.op("tern_select", seen["all"], 0, ctypes.c_int64(i)), 0, 12) for i in (0, 1))
                w = run.op("tern_select", w, 1, ctypes.c_int64(1))
                y = batch_norm(run, run.op("tern_transpose", x, 1, 2), w, half(b, 0, 12), mean, var, half(z, 2, 10))
                seen["got"] = run.value(seen["all"])
                return y

            moved = torch.tensor(stats.astype("d"))
            oracle_ = lambda x, w, b, z: oracle(x.transpose(1, 2), w[:, 1], b[::2], z[:, :, ::2], True, False, moved[0, ::2], moved[1, ::2])
            compare(f"gaps {device}", op, oracle_, arrays, tolerances[0], device, gradient_tolerance=tolerances[1])
            self.assertLess(error_of(seen["got"], moved.numpy()), tolerances[0])

    def test_16_bits(self):
        """Everything in 16 bits, or the parameters in f32."""

        def in_blocks(run, x):
            wide = blocked(run, run.op("tern_cast", x, 0))
            return run.op("tern_cast", wide, run.lib.tern_tensor_dtype(x))

        for device in ("cpu", "cpu:reference"):
            for shape, layout in (((6, 5, 7), lambda run, x: x), ((3, 16, 4, 5), in_blocks)):
                arrays = [self.draw(shape, "f"), self.draw(shape[1], "f"), self.draw(shape[1], "f") - 3, self.draw(shape, "f") - 4]
                for f32 in ((), (1, 2)):
                    for relu in (False, True):
                        op = lambda run, x, w, b, z: batch_norm(run, layout(run, x), w, b, residual=layout(run, z), relu=relu)
                        oracle_ = lambda x, w, b, z: oracle(x, w, b, z, True, relu, None, None)
                        compare_half(f"training {shape} relu={relu}", op, oracle_, arrays, device, f32)
                stats = [self.draw(shape[1], "f"), self.rng.random(shape[1]).astype("f") + 1]
                op = lambda run, x, w, b: batch_norm(run, layout(run, x), w, b, *map(run.constant, stats), training=False)
                oracle_ = lambda x, w, b: torch.nn.functional.batch_norm(x, *(torch.tensor(a.astype("d")) for a in stats), w, b)
                compare_half(f"evaluation {shape}", op, oracle_, arrays[:3], device)

    def test_running_statistics_of_16_bits(self):
        x = self.draw((64, 3, 5), "f")
        for device in ("cpu", "cpu:reference"):
            for dtype, kind in TYPES:
                round_ = lambda a: torch.tensor(a).to(kind).to(torch.float64)
                for kept in (dtype, 0):
                    start = [numpy.zeros(3, "f"), numpy.ones(3, "f")]
                    run, want = Run(device), [round_(a) for a in start]
                    stats = [run.op("tern_cast", run.constant(a), kept) for a in start]
                    batch_norm(run, run.op("tern_cast", run.constant(x), dtype), None, None, *stats)
                    torch.nn.functional.batch_norm(round_(x), *want, training=True)
                    for ours, theirs in zip(stats, want):
                        got = run.value(run.op("tern_cast", ours, 0))
                        self.assertLess(error_of(got, theirs.numpy()), 0.51 * torch.finfo(kind).eps if kept else 1e-6)
                    run.close()

    def test_empty_batches(self):
        """The result is empty, the running statistics stay; weight and bias have the gradient 0, or the one that is there."""
        for device in ("cpu", "cpu:reference"):
            for shape in ((0, 3, 4), (2, 3, 0), (0, 3)):
                for training in (True, False):
                    run = Run(device)
                    w, b, some = run.parameter(numpy.ones(3, "f")), run.parameter(numpy.ones(3, "f")), self.draw((4, 3), "f")
                    x, z = (run.parameter(numpy.ones(shape, "f")) for _ in range(2))
                    mean, var = (run.constant(numpy.full(3, 2, "f")) for _ in range(2))

                    def backward_of_nothing():
                        y = batch_norm(run, x, w, b, mean, var, z, training=training)
                        self.assertEqual(run.shape(y), shape)
                        run.backward(run.op("tern_sum", y))
                        for tensor in (x, z):
                            self.assertEqual(run.grad(tensor).shape, shape)
                        return run.grad(w), run.grad(b)

                    run.backward(batch_norm(run, run.constant(some), w, b), some)
                    before = run.grad(w), run.grad(b)
                    numpy.testing.assert_array_equal(backward_of_nothing(), before)
                    run.lib.tern_zero_grad(ctypes.byref(run.module))
                    numpy.testing.assert_array_equal(backward_of_nothing(), numpy.zeros((2, 3)))
                    numpy.testing.assert_array_equal((run.value(mean), run.value(var)), numpy.full((2, 3), 2))
                    self.assertGreater(numpy.abs(before).min(), 0)
                    run.close()

    def test_running_statistics_may_change_before_backward(self):
        """Evaluation first, then a training step of the same layer, then backward through both."""
        run = Run("cpu")
        x, w = run.parameter(self.draw((4, 3, 5, 5), "f")), run.parameter(numpy.ones(3, "f"))
        mean, var = run.constant(numpy.zeros(3, "f")), run.constant(numpy.ones(3, "f"))
        y = batch_norm(run, x, w, None, mean, var, training=False)
        batch_norm(run, x, w, None, mean, var, momentum=1)
        dy = self.draw((4, 3, 5, 5), "f")
        run.backward(y, dy)
        self.assertLess(error_of(run.grad(x), dy / numpy.sqrt(1 + 1e-5)), 1e-6)
        run.close()

    def test_errors_name_shapes(self):
        run = Run("cpu")
        f = lambda *shape: run.constant(numpy.ones(shape, "f"))
        cases = [
            (lambda: batch_norm(run, f(1, 16, 1, 1)), "expected more than 1 value per channel when training, got input size (1, 16, 1, 1)"),
            (lambda: batch_norm(run, f(3)), "expected (N, C, ...) with at least one channel, got (3)"),
            (lambda: batch_norm(run, f(2, 3, 4), f(4)), "weight is (4) but input is (2, 3, 4)"),
            (lambda: batch_norm(run, f(2, 3, 4), f(3), f(3, 1)), "bias is (3, 1) but input is (2, 3, 4)"),
            (lambda: batch_norm(run, f(2, 3, 4), residual=f(2, 3, 5)), "residual is (2, 3, 5) but input is (2, 3, 4)"),
            (lambda: batch_norm(run, f(2, 3, 4), run.constant(numpy.ones(3))), "weight is f64 but input is f32"),
            (lambda: batch_norm(run, f(2, 3, 4), residual=run.constant(numpy.ones((2, 3, 4)))), "residual is f64 but input is f32"),
            (lambda: batch_norm(run, run.constant(numpy.ones((2, 3, 4))), f(3)), "weight is f32 but input is f64"),
            (lambda: batch_norm(run, run.constant(numpy.ones((2, 3, 4), "i8"))), "batch_norm: expected floating point, got i64"),
            (lambda: batch_norm(run, f(2, 3, 4), training=False), "running_mean and running_var are needed"),
        ]
        for call, text in cases:
            with self.assertRaises(tern.TernError) as caught:
                call()
            self.assertIn(text, str(caught.exception))
            run.end_failed()
        run.close()


class ModuleTest(unittest.TestCase):
    def module(self, run, name, *args):
        return ctypes.c_void_p(run.lib.check(name, *args))

    def state(self, run, module, name):
        return ctypes.c_void_p(run.lib.tern_state_find(module, name.encode()))

    def test_three_steps_of_training_then_evaluation(self):
        rng = numpy.random.default_rng(5)
        kinds = [("1d", (6, 7)), ("1d", (6, 7, 4)), ("2d", (3, 16, 5, 4)), ("3d", (2, 5, 3, 4, 5))]
        for kind, shape in kinds:
            theirs = getattr(torch.nn, f"BatchNorm{kind}")(shape[1])
            run = Run("cpu")
            ours = self.module(run, f"tern_batch_norm{kind}_new", ctypes.c_int64(shape[1]), None)
            self.assertEqual(run.lib.tern_state_count(ours), len(theirs.state_dict()))
            for step in range(4):
                if step == 3:
                    theirs.eval()
                    run.lib.tern_eval(ours)
                x = rng.standard_normal(shape).astype("f") * (step + 1) + step
                y = theirs(torch.tensor(x))
                got = run.value(ctypes.c_void_p(run.lib.tern_forward(ours, run.scope, run.constant(x))))
                self.assertLess(error_of(got, y.detach().numpy()), 2e-6)
                for name, value in theirs.state_dict().items():
                    self.assertLess(error_of(run.value(self.state(run, ours, name)), value.numpy()), 1e-6, name)
                run.end()
            run.lib.tern_module_free(ours)
            run.close()

    def test_each_takes_its_dimensions_only(self):
        """As in torch."""
        for kind, good, expected in (("1d", (2, 3), "(N, C) or (N, C, L)"), ("2d", (4,), "(N, C, H, W)"), ("3d", (5,), "(N, C, D, H, W)")):
            for ndim in range(1, 7):
                run = Run("cpu")
                shape = (2, 3, 2, 2, 2, 2)[:ndim]
                x, layer = numpy.arange(numpy.prod(shape), dtype="f").reshape(shape), getattr(torch.nn, f"BatchNorm{kind}")(3)
                ours = run.layer(f"tern_batch_norm{kind}_new", ctypes.c_int64(3), None)
                if ndim in good:
                    self.assertLess(error_of(run.value(run.forward(ours, run.constant(x))), layer(torch.tensor(x)).detach().numpy()), 2e-6)
                else:
                    self.assertRaises(ValueError, layer, torch.tensor(x))
                    with self.assertRaises(tern.TernError) as caught:
                        run.forward(ours, run.constant(x))
                    self.assertEqual(caught.exception.code, -2)
                    self.assertIn(f"batch_norm{kind}: expected {expected}, got ({', '.join(map(str, shape))})", str(caught.exception))
                    run.end_failed()
                run.close()

    def test_names_and_order_are_torch_s(self):
        class Entry(ctypes.Structure):
            _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.c_void_p), ("is_buffer", ctypes.c_bool)]

        run = Run("cpu")
        run.lib.returns(Entry, "tern_state_get")
        ours = self.module(run, "tern_batch_norm2d_new", ctypes.c_int64(3), None)
        names = [run.lib.tern_state_get(ours, i).name.decode() for i in range(run.lib.tern_state_count(ours))]
        self.assertEqual(names, list(torch.nn.BatchNorm2d(3).state_dict()))
        run.lib.tern_module_free(ours)
        run.close()

    def test_fused_call(self):
        rng = numpy.random.default_rng(6)
        x, r = (rng.standard_normal((3, 16, 5, 4)).astype("f") for _ in range(2))
        want = torch.relu(torch.nn.BatchNorm2d(16)(torch.tensor(x)) + torch.tensor(r)).detach().numpy()
        run = Run("cpu")
        ours = self.module(run, "tern_batch_norm2d_new", ctypes.c_int64(16), None)
        y = run.lib.tern_batch_norm_act_forward(ours, run.scope, run.constant(x), run.constant(r), True)
        self.assertLess(error_of(run.value(ctypes.c_void_p(y)), want), 2e-6)
        relu = self.module(run, "tern_relu_new")
        self.assertIsNone(run.lib.tern_batch_norm_act_forward(relu, run.scope, run.constant(x), None, True))
        with self.assertRaises(tern.TernError) as caught:
            run.raise_error()
        self.assertIn("expected a batch norm, got relu", str(caught.exception))
        run.end_failed()
        self.assertIsNone(run.lib.tern_forward(ours, run.scope, run.constant(x[0])))
        with self.assertRaises(tern.TernError) as caught:
            run.raise_error()
        self.assertIn("batch_norm2d: expected (N, C, H, W), got (16, 5, 4)", str(caught.exception))
        run.end_failed()
        for module in (ours, relu):
            run.lib.tern_module_free(module)
        run.close()


if __name__ == "__main__":
    skips.main()
