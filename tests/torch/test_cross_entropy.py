"""cross_entropy and nll_loss compared with torch: weights, ignored labels, smoothing, reductions, positions, dtypes."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from ops import BF16, F16, Run, blocked, compare, gradient_check, in_16_bits, rounded, thread_counts

F = torch.nn.functional
RNG = numpy.random.default_rng(0)
DEVICES = [("cpu", "f", 2e-6), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13), ("cpu", "d", 1e-13)]
REDUCTIONS = ["mean", "sum", "none"]
# One label; rows shorter and longer than the vector loop's step; positions narrower and wider than a tile.
SHAPES = [(5,), (2,), (1, 2), (3, 10), (64, 10), (300, 3), (3, 1500), (4, 7, 3), (2, 21, 5, 9), (3, 4, 300), (2, 3, 2, 2, 2)]


class Opts(ctypes.Structure):
    """tern_cross_entropy_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("weight", ctypes.c_void_p),
        ("ignore_index", ctypes.c_int64),
        ("label_smoothing", ctypes.c_double),
        ("reduction", ctypes.c_int),
    ]


def opts_of(run, weight=None, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    run.lib.returns(Opts, "tern_cross_entropy_defaults")
    opts = run.lib.tern_cross_entropy_defaults()
    assert (opts.weight, opts.ignore_index, opts.label_smoothing, opts.reduction) == (None, -100, 0, 0)
    opts.weight, opts.ignore_index, opts.label_smoothing = weight, ignore_index, label_smoothing
    opts.reduction = REDUCTIONS.index(reduction)
    return ctypes.byref(opts)


def labels_of(shape, dtype="int64"):
    classes = shape[0] if len(shape) == 1 else shape[1]
    return numpy.asarray(RNG.integers(0, classes, shape[:1] + shape[2:] if len(shape) > 1 else ()), dtype)


def weights_of(shape, dtype):
    weight = RNG.random(shape[0] if len(shape) == 1 else shape[1]) + 0.1
    weight[1::3] = 0
    return weight.astype(dtype)


class CrossEntropyTest(unittest.TestCase):
    def beside(self, what, name, x, label, weight, tolerance, device, wrap=lambda op: op, passes=2, **kw):
        """Value and gradient, with the same options in torch."""
        arrays = [x, label] + ([] if weight is None else [weight])

        def op(run, a, b, w=None):
            return run.op(f"tern_{name}", a, b, opts_of(run, w, **kw))

        def oracle(a, b, w=None):
            return getattr(F, name)(a, b.long(), w, **kw)

        compare(f"{what} {name} {device} {x.dtype} {x.shape} {kw}", wrap(op), oracle, arrays, tolerance, device, constant=(1, 2), passes=passes)

    def test_options(self):
        """Each reduction with and without weights, an ignored class, smoothing. Gradients add up in the same way whether a class is
        ignored and however much is smoothed."""
        for device, dtype, tolerance in DEVICES:
            for shape in SHAPES:
                x, label = RNG.standard_normal(shape).astype(dtype), labels_of(shape)
                label.flat[0] = 0  # one that is not ignored, with a weight that is not 0: the mean is not NaN
                for reduction, weighted, ignored, smoothing in itertools.product(REDUCTIONS, (False, True), (-100, 1), (0.0, 0.1, 1.0)):
                    weight = weights_of(shape, dtype) if weighted else None
                    kw = dict(reduction=reduction, ignore_index=ignored, passes=2 if ignored == 1 and smoothing < 1 else 1)
                    self.beside("options", "cross_entropy", x, label, weight, tolerance, device, label_smoothing=smoothing, **kw)
                    if smoothing == 0:
                        self.beside("options", "nll_loss", -abs(x), label, weight, tolerance, device, **kw)

    def test_defaults(self):
        for device, dtype, tolerance in DEVICES:
            for rows, classes, size in ((1, 1, 1), (3, 10, 1), (64, 10, 30), (33, 1001, 5), (4, 7, 1000)):
                arrays = [(size * RNG.standard_normal((rows, classes))).astype(dtype), RNG.integers(0, classes, rows)]
                op = lambda r, a, b: r.op("tern_cross_entropy", a, b, None)
                compare(f"{rows} {classes}", op, F.cross_entropy, arrays, tolerance, device, constant=(1,))
            arrays = [RNG.standard_normal((7, 4)).astype(dtype), labels_of((7, 4))]
            compare("nll", lambda r, a, b: r.op("tern_nll_loss", a, b, None), F.nll_loss, arrays, tolerance, device, constant=(1,))

    def test_label_dtypes(self):
        for device in ("cpu", "cpu:reference"):
            for dtype, ignored in (("int64", -100), ("int64", 1 << 40), ("int32", -100), ("uint8", 255), ("int32", 2), ("uint8", 2)):
                for shape in ((20, 10), (3, 10, 30), (10,)):
                    label = labels_of(shape, dtype)
                    if label.ndim and ignored != 2:
                        label.flat[::4] = numpy.array(ignored).astype(dtype)
                    x = RNG.standard_normal(shape).astype("f")
                    for name in ("cross_entropy", "nll_loss"):
                        for weight in (None, weights_of(shape, "f")):
                            self.beside("labels", name, x, label, weight, 2e-6, device, ignore_index=ignored, reduction="sum")

    def test_maps_and_volumes(self):
        """Segmentation: u8 labels with 255 ignored, class weights, plain and blocked scores, and rows of them."""
        for shape in ((2, 19, 65, 67), (1, 7, 9, 20, 21), (2, 16, 33, 35), (1, 32, 40, 41), (4101, 21), (4100, 2), (4097, 191)):
            x, label, weight = RNG.standard_normal(shape).astype("f"), labels_of(shape, "uint8"), weights_of(shape, "f")
            label[RNG.random(label.shape) < 0.2] = 255
            for w, threads in ((None, 1), (weight, 2)):
                op = lambda r, a, b, c=None: r.op("tern_cross_entropy", a, b, opts_of(r, c, ignore_index=255))
                oracle = lambda a, b, c=None: F.cross_entropy(a, b.long(), c, ignore_index=255)
                arrays = [x, label] + ([] if w is None else [w])
                compare(f"{shape}", op, oracle, arrays, 3e-6, constant=(1, 2), threads=threads)
                if shape[1] % 16 == 0:
                    over = lambda r, a, *rest: op(r, blocked(r, a), *rest)
                    compare(f"blocked {shape}", over, oracle, arrays, 3e-6, constant=(1, 2), threads=threads)

    def test_views_and_blocked(self):
        x, label, weight = RNG.standard_normal((6, 32, 5, 5)).astype("f"), labels_of((6, 32, 5, 5)), weights_of((6, 64), "f")
        turn = lambda r, t, *dims: r.op("tern_transpose", t, *dims)
        thin = lambda r, t: r.op("tern_slice", t, 0, *map(ctypes.c_int64, (0, 64, 2)))
        op = lambda r, a, b, w: r.op("tern_cross_entropy", blocked(r, a), b, opts_of(r, thin(r, w), label_smoothing=0.1))
        oracle = lambda a, b, w: F.cross_entropy(a, b, w[::2], label_smoothing=0.1)
        compare("blocked", op, oracle, [x, label, weight], 2e-6, constant=(1, 2))
        label = labels_of((5, 32, 6, 5))
        op = lambda r, a, b: r.op("tern_cross_entropy", turn(r, a, 0, 2), turn(r, b, 1, 2), None)
        compare("turned", op, lambda a, b: F.cross_entropy(a.transpose(0, 2), b.transpose(1, 2)), [x, label.transpose(0, 2, 1)], 2e-6, constant=(1,))

    def test_halves(self):
        for dtype, kind, tolerance in ((BF16, torch.bfloat16, 1e-2), (F16, torch.float16, 2e-3)):
            for device in ("cpu", "cpu:reference"):
                for shape, smoothing in itertools.product(((64, 10), (2, 21, 7), (3, 1500)), (0.0, 0.1)):
                    x, weight = rounded(RNG.standard_normal(shape).astype("f"), kind), rounded(weights_of(shape, "f"), kind)
                    wrap = lambda op: in_16_bits(op, dtype)
                    for reduction in REDUCTIONS:
                        kw = dict(reduction=reduction, label_smoothing=smoothing)
                        self.beside("halves", "cross_entropy", x, labels_of(shape), weight, tolerance, device, wrap, **kw)
                    self.beside("halves", "nll_loss", x, labels_of(shape), weight, tolerance, device, wrap)

    def test_all_ignored(self):
        """The mean of nothing is NaN, the sum 0, and no gradient flows."""
        for device, dtype, _ in DEVICES:
            for shape, smoothing in itertools.product(((4, 3), (2, 3, 5), (3,)), (0.0, 0.1)):
                label = numpy.full_like(labels_of(shape), -100)
                for name, reduction in itertools.product(("cross_entropy", "nll_loss"), REDUCTIONS):
                    if name == "nll_loss" and smoothing:
                        continue
                    run = Run(device)
                    p = run.parameter(RNG.standard_normal(shape).astype(dtype))
                    y = run.op(f"tern_{name}", p, run.constant(label), opts_of(run, reduction=reduction, label_smoothing=smoothing))
                    want = getattr(F, name)(torch.zeros(shape), torch.tensor(label), reduction=reduction)
                    numpy.testing.assert_array_equal(run.value(y), want.numpy())
                    run.lib.tern_backward(run.scope, run.op("tern_sum", y))
                    run.raise_error()
                    self.assertTrue((run.grad(p) == 0).all())
                    run.close()

    def test_labels_that_weigh_nothing(self):
        """There is no mean, not even with smoothing, which counts the other classes. Ignored labels still give no
        gradient."""
        for device, dtype, tolerance in DEVICES:
            for shape, weights, smoothing, reduction in itertools.product(
                    ((4, 3), (2, 3, 5), (2, 3, 300), (3,), (5, 1500)), ((0, 1, 2), (0, 0, 0)), (0.0, 0.1, 1.0), REDUCTIONS):
                x, label = RNG.standard_normal(shape).astype(dtype), numpy.zeros_like(labels_of(shape))
                if label.ndim:
                    label.flat[1] = -100
                weight = numpy.resize(weights, shape[label.ndim > 0]).astype(dtype)
                kw = dict(reduction=reduction, label_smoothing=smoothing)
                run, want = Run(device), torch.tensor(x, requires_grad=True)
                p = run.parameter(x)
                y = run.op("tern_cross_entropy", p, run.constant(label), opts_of(run, run.constant(weight), **kw))
                run.backward(run.op("tern_sum", y))
                value = F.cross_entropy(want, torch.tensor(label), torch.tensor(weight), **kw)
                value.sum().backward()
                what = f"{device} {shape} {weights} {kw}"
                numpy.testing.assert_allclose(run.value(y), value.detach().numpy(), tolerance, tolerance, err_msg=what)
                numpy.testing.assert_allclose(run.grad(p), want.grad.numpy(), tolerance, tolerance, err_msg=what)
                run.close()

    def test_no_samples(self):
        for device in ("cpu", "cpu:reference"):
            for shape, reduction in itertools.product(((0, 3), (0, 3, 4), (2, 3, 0)), REDUCTIONS):
                run = Run(device)
                p, label = run.parameter(numpy.empty(shape, "f")), numpy.empty(shape[:1] + shape[2:], "int64")
                y = run.op("tern_cross_entropy", p, run.constant(label), opts_of(run, reduction=reduction))
                want = F.cross_entropy(torch.empty(shape), torch.tensor(label), reduction=reduction)
                numpy.testing.assert_array_equal(run.value(y), want.numpy())
                run.lib.tern_backward(run.scope, run.op("tern_sum", y))
                run.raise_error()
                self.assertEqual(run.grad(p).shape, shape)
                run.close()

    def test_special_values(self):
        """An impossible class, a label of an impossible class, and NaN."""
        inf = numpy.inf
        x = numpy.array([[0, -inf, 1], [-inf, 0, 1], [numpy.nan, 0, 1], [1e4, -1e4, 0]], "f")
        label = numpy.array([0, 0, 1, 1])
        for device in ("cpu", "cpu:reference"):
            for smoothing in (0.0, 0.1):
                run = Run(device)
                y = run.op("tern_cross_entropy", run.constant(x), run.constant(label), opts_of(run, label_smoothing=smoothing, reduction="none"))
                want = F.cross_entropy(torch.tensor(x), torch.tensor(label), reduction="none", label_smoothing=smoothing)
                numpy.testing.assert_allclose(run.value(y), want.numpy(), 1e-6)
                run.close()

    def test_a_mean_of_many(self):
        """A mean that no f32 accumulator could hold; the same bits with any number of threads."""
        x, label = RNG.standard_normal((200_000, 3)).astype("f"), labels_of((200_000, 3))
        want, got = F.cross_entropy(torch.tensor(x.astype("d")), torch.tensor(label), label_smoothing=0.1).item(), []
        for threads in thread_counts(1, 2, 3):
            run = Run("cpu", threads)
            p = run.parameter(x)
            loss = run.op("tern_cross_entropy", p, run.constant(label), opts_of(run, label_smoothing=0.1))
            run.backward(loss)
            got.append((run.value(loss).tobytes(), run.grad(p).tobytes()))
            self.assertLess(abs(run.value(loss) / want - 1), 2e-7)
            run.close()
        self.assertEqual(len(set(got)), 1)

    def test_gradients_by_finite_differences(self):
        r = numpy.random.default_rng(3)
        for shape in ((4, 6), (2, 3, 4)):
            x, label, weight = r.standard_normal(shape), r.integers(0, 3, shape[:1] + shape[2:]), r.random(shape[1])
            for reduction in REDUCTIONS:
                kw = dict(reduction=reduction, ignore_index=1)
                op = lambda run, a, b, w: run.op("tern_cross_entropy", a, b, opts_of(run, w, label_smoothing=0.2, **kw))
                gradient_check("cross entropy", op, [x, label, weight], constant=(1, 2))
                op = lambda run, a, b, w: run.op("tern_nll_loss", a, b, opts_of(run, w, **kw))
                gradient_check("nll", op, [x, label, weight], constant=(1, 2))

    def test_bad_labels_are_named(self):
        for device, name in itertools.product(("cpu", "cpu:reference"), ("cross_entropy", "nll_loss")):
            for shape, at, place in (((3, 10), 2, "sample 2"), ((600, 10), 599, "sample 599"), ((2, 10, 300), 599, "sample 1 at position 299"), ((10,), 0, "sample 0")):
                for bad in (-1, 10, 1 << 40, -100):
                    run = Run(device)
                    label = labels_of(shape)
                    label.flat[at] = bad
                    if at > 1:
                        label.flat[0] = 7  # ignored, and in the range
                    with self.assertRaises(tern.TernError) as caught:
                        run.value(run.op(f"tern_{name}", run.constant(numpy.zeros(shape, "f")), run.constant(label), opts_of(run, ignore_index=7)))
                    self.assertEqual(caught.exception.code, -7)
                    self.assertIn(f"{name}: label {bad} of {place} is not in [0, 10)", str(caught.exception))
                    run.end_failed()
                    run.close()


if __name__ == "__main__":
    skips.main()
