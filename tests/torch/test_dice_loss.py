"""dice_loss and bce_dice_loss compared with their formulas in torch: masks and maps of classes, options, dtypes,
layouts."""
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
DEVICES = [("cpu", "f", 3e-6), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13), ("cpu", "d", 1e-13)]
REDUCTIONS = ["mean", "sum", "none"]
# Regions shorter and longer than a thread's part, of one element, of several pieces; one channel and many.
SHAPES = [(1, 1), (3, 2), (2, 1, 5), (4, 3, 7), (2, 1, 300), (1, 2, 4, 9, 30), (3, 1, 1, 1, 1), (2, 4, 70, 80)]
# More classes than 1024 are left to the reference by the CPU; a GPU's threads hold 384, and the rest costs its emulation a block each.
MANY = 1500 if tern.device("cpu") == "cpu" else 386
CLASSES = [(1, 1, 3), (2, 3), (4, 2, 9), (2, 19, 5, 7), (2, 7, 3, 10, 10), (1, 6, 70, 80), (1, 130, 40), (1, MANY, 2)]
double = ctypes.c_double


class Opts(ctypes.Structure):
    """tern_dice_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("classes", ctypes.c_bool),
        ("probabilities", ctypes.c_bool),
        ("squared", ctypes.c_bool),
        ("over_batch", ctypes.c_bool),
        ("smooth", ctypes.c_double),
        ("ignore_index", ctypes.c_int64),
        ("reduction", ctypes.c_int),
    ]


def opts_of(run, reduction="mean", **kw):
    run.lib.returns(Opts, "tern_dice_defaults")
    opts = run.lib.tern_dice_defaults()
    flags = opts.classes, opts.probabilities, opts.squared, opts.over_batch
    assert (flags, opts.smooth, opts.ignore_index, opts.reduction) == ((False,) * 4, 1e-5, -100, 0)
    opts.reduction = REDUCTIONS.index(reduction)
    for name, value in kw.items():
        setattr(opts, name, value)
    return ctypes.byref(opts)


def reduced(losses, reduction):
    return losses if reduction == "none" else getattr(losses, reduction)()


def one_hot(x, label):
    """A map of classes as masks with x's shape."""
    return F.one_hot(label.long(), x.shape[1]).movedim(-1, 1)


def dice(x, target, classes=False, probabilities=False, squared=False, over_batch=False, smooth=1e-5, ignore_index=-100, reduction="mean"):
    """1 - (2 |P T| + smooth) / (|P| + |T| + smooth), from the sums over each channel of each sample."""
    counts = target.double() != ignore_index  # torch converts -100 to 156 in u8
    t = torch.where(counts, target, torch.zeros_like(target))
    if classes:
        t, counts = one_hot(x, t), counts.unsqueeze(1).expand(x.shape)
    counts = counts.reshape(x.shape)
    p = x if probabilities else x.softmax(1) if classes else x.sigmoid()
    p, t = p * counts, t.reshape(x.shape) * counts
    dims = tuple(d for d in range(x.dim()) if d > 1 or (d == 0 and over_batch))
    total = lambda v: v.sum(dims) if dims else v
    sizes = total(p * p + t * t) if squared else total(p + t)
    return reduced(1 - (2 * total(p * t) + smooth) / (sizes + smooth), reduction)


def entropy(x, target, classes=False, ignore_index=-100, reduction="mean", **_):
    if classes:
        return F.cross_entropy(x, target.long(), ignore_index=ignore_index, reduction=reduction)
    x, target = x.reshape(-1), target.reshape(-1)
    counts = target != ignore_index
    return F.binary_cross_entropy_with_logits(x[counts], target[counts].to(x.dtype), reduction=reduction)


def ignoring(array, share, value):
    array = array.copy()
    array[RNG.random(array.shape) < share] = value
    return array


def mask_of(shape, dtype):
    return (RNG.random(shape) < 0.4).astype(dtype)


def map_of(shape, dtype):
    return RNG.integers(0, shape[1], shape[:1] + shape[2:]).astype(dtype)


OPTIONS = [dict(zip(("squared", "over_batch", "smooth"), values)) for values in itertools.product((False, True), (False, True), (1e-5, 1.0))]
EVERY = [dict(reduction=r, **o) for o, r in itertools.product(OPTIONS, REDUCTIONS)]


def some(device, shape):
    """Option combinations drawn from all of them, few where each is expensive. All shapes together cover each one
    often; many classes, whose sums only squares change, one with them and one without."""
    if MANY in shape:
        half = len(EVERY) // 2
        return [EVERY[first + RNG.integers(half)] for first in (0, half)]
    count = numpy.prod(shape) * (8 if device == "cpu:reference" else 1)
    return [EVERY[i] for i in RNG.choice(len(EVERY), 3 if count >= 2000 else 8, replace=False)]


def drawn(device, shapes):
    """(shape, options, passes of compare) for some options of each shape. They do not change how gradients add up, which the first
    ones show."""
    return [(shape, options, 1 if i else 2) for shape in shapes for i, options in enumerate(some(device, shape))]


class DiceTest(unittest.TestCase):
    def beside(self, x, target, tolerance, device, weights=None, wrap=lambda op: op, threads=None, passes=2, **kw):
        """Value and gradient, with the same options in torch; `weights`: with cross entropy."""

        def op(run, a, b):
            opts = opts_of(run, **kw)
            return run.op("tern_bce_dice_loss", a, b, *map(double, weights), opts) if weights else run.op("tern_dice_loss", a, b, opts)

        def oracle(a, b):
            return weights[0] * entropy(a, b, **kw) + weights[1] * dice(a, b, **kw) if weights else dice(a, b, **kw)

        what = f"{device} {x.dtype} {x.shape} {target.dtype} {kw} {weights}"
        compare(what, wrap(op), oracle, [x, target], tolerance, device, constant=(1,), threads=threads, passes=passes)

    def test_masks(self):
        for device, dtype, tolerance in DEVICES:
            for shape, options, passes in drawn(device, SHAPES):
                x = RNG.standard_normal(shape).astype(dtype)
                self.beside(x, mask_of(shape, "uint8"), tolerance, device, passes=passes, **options)
                p, t = RNG.uniform(0.5, 1, shape).astype(dtype), RNG.uniform(0.1, 0.3, shape).astype(dtype)  # separately, so that losses do not cancel
                self.beside(p, t, tolerance, device, passes=passes, probabilities=True, **options)

    def test_classes(self):
        for device, dtype, tolerance in DEVICES:
            for shape, options, passes in drawn(device, CLASSES):
                x = RNG.standard_normal(shape).astype(dtype)
                self.beside(x, map_of(shape, "uint8") % 250, tolerance, device, passes=passes, classes=True, **options)
                p = RNG.uniform(0.2, 0.8, shape).astype(dtype)
                self.beside(p, map_of(shape, "int64"), tolerance, device, passes=passes, classes=True, probabilities=True, **options)

    def test_with_cross_entropy(self):
        for device, dtype, tolerance in DEVICES:
            for classes, shape in [(False, s) for s in SHAPES] + [(True, s) for s in CLASSES]:
                passes = 2
                for weights, options in zip(((1, 1), (0.5, 2), (1, 0), (0, 1)) * 2, some(device, shape)):
                    if options["reduction"] != "none":
                        x = RNG.standard_normal(shape).astype(dtype)
                        target = map_of(shape, "uint8") % 250 if classes else mask_of(shape, "uint8")
                        self.beside(x, target, tolerance, device, weights, classes=classes, passes=passes, **options)
                        passes = 1

    def test_ignored(self):
        """The first element is not ignored, so that the mean of the cross entropy is defined."""
        for device, dtype, tolerance in DEVICES:
            for weights, options in itertools.product((None, (1, 1)), OPTIONS[::3]):
                passes = 2 if options is OPTIONS[0] else 1
                for kind, ignored in (("uint8", 255), ("int64", -100), ("int32", 1), ("float32", -1), ("int8", -1), ("int16", -300)):
                    x = RNG.standard_normal((3, 2, 30, 20)).astype(dtype)
                    mask = ignoring(mask_of(x.shape, kind), 0.3, ignored)
                    mask[0, 0, 0, :2], mask[1] = (0, 0), ignored
                    x[mask == ignored] = 1e4  # is not used
                    self.beside(x, mask, tolerance, device, weights, ignore_index=ignored, passes=passes, **options)
                    p = RNG.uniform(0.2, 0.8, x.shape).astype(dtype)
                    self.beside(p, mask, tolerance, device, probabilities=True, ignore_index=ignored, passes=passes, **options)
                    if kind in ("float32", "int8", "int16"):
                        continue
                    x = RNG.standard_normal((3, 5, 30, 20)).astype(dtype)
                    label = ignoring(map_of(x.shape, kind), 0.3, ignored)
                    label[0, 0, 0], label[1] = 0, ignored
                    self.beside(x, label, tolerance, device, weights, classes=True, ignore_index=ignored, passes=passes, **options)
                    p = RNG.uniform(0.2, 0.8, x.shape).astype(dtype)
                    self.beside(p, label, tolerance, device, classes=True, probabilities=True, ignore_index=ignored, passes=passes, **options)

    def test_targets(self):
        """Masks of every dtype, also without the channel dimension; labels of every dtype."""
        for device in ("cpu", "cpu:reference"):
            for weights, dtype in itertools.product((None, (1, 1)), ("uint8", "bool", "int8", "int16", "int32", "int64", "float32", "float64")):
                x = RNG.standard_normal((2, 1, 3, 10, 11)).astype("f")
                self.beside(x, mask_of(x.shape, dtype), 3e-6, device, weights)
                self.beside(x, mask_of((2, 3, 10, 11), dtype), 3e-6, device, weights)
            for dtype in ("uint8", "int32", "int64"):
                x = RNG.standard_normal((2, 4, 10, 11)).astype("f")
                self.beside(x, map_of(x.shape, dtype), 3e-6, device, (1, 1), classes=True)

    def test_large_logits(self):
        """Far from 0, sigmoids and softmaxes are 0 or 1 and cross entropy is the distance; nothing overflows."""
        for device, dtype, tolerance in DEVICES:
            x = (200 * RNG.standard_normal((2, 3, 40))).astype(dtype)
            self.beside(x, mask_of(x.shape, "uint8"), tolerance, device, (1, 1))
            self.beside(x, map_of(x.shape, "uint8"), tolerance, device, (1, 1), classes=True)

    def test_small_cross_entropy(self):
        """Logits far below 0 where the target is 0: the digits of 1 + e^x beyond 1 are not rounded off."""
        for device, dtype, tolerance in DEVICES[:2]:
            x = -RNG.uniform(15, 25, (2, 3, 1001)).astype(dtype)
            self.beside(x, numpy.zeros(x.shape, "uint8"), tolerance, device, (1, 0))

    def test_views_and_blocked(self):
        x, label, mask = RNG.standard_normal((2, 32, 5, 6)).astype("f"), map_of((2, 32, 6, 5), "uint8"), mask_of((2, 32, 6, 5), "uint8")
        for device in ("cpu", "cpu:reference"):
            for classes, target in ((True, label), (False, mask)):
                kw = dict(classes=classes, ignore_index=3)
                turn = lambda r, a: r.op("tern_transpose", a, 2, 3)
                op = lambda r, a, b: r.op("tern_bce_dice_loss", turn(r, a), b, double(1), double(2), opts_of(r, **kw))
                oracle = lambda a, b: entropy(a.mT, b, **kw) + 2 * dice(a.mT, b, **kw)
                compare(f"turned {device}", op, oracle, [x, target], 3e-6, device, constant=(1,))
        for classes, target in ((True, label.swapaxes(-1, -2)), (False, mask.swapaxes(-1, -2))):
            op = lambda r, a, b: r.op("tern_dice_loss", blocked(r, a), b, opts_of(r, classes=classes))
            compare("blocked", op, lambda a, b: dice(a, b, classes=classes), [x, target], 3e-6, constant=(1,))

    def test_16_bits(self):
        for dtype, kind in ((BF16, torch.bfloat16), (F16, torch.float16)):
            for device in ("cpu", "cpu:reference"):
                x = rounded(RNG.standard_normal((2, 3, 7, 9)).astype("f"), kind)
                wrap = lambda op: in_16_bits(op, dtype)
                tolerance = 4 * torch.finfo(kind).eps
                self.beside(x, mask_of(x.shape, "uint8"), tolerance, device, (1, 1), wrap)
                self.beside(x, map_of(x.shape, "uint8"), tolerance, device, None, wrap, classes=True)

    def test_threads(self):
        """The same bits on any number of threads."""
        for classes, shape, target in ((False, (2, 3, 200, 201), mask_of((2, 3, 200, 201), "uint8")), (True, (2, 7, 200, 201), map_of((2, 7, 200, 201), "uint8"))):
            x, results = RNG.standard_normal(shape).astype("f"), []
            for threads in thread_counts(1, 2, 3):
                run = Run("cpu", threads)
                p = run.parameter(x)
                loss = run.op("tern_bce_dice_loss", p, run.constant(target), double(1), double(1), opts_of(run, classes=classes))
                value = run.value(loss)
                run.backward(loss)
                results.append((value.tobytes(), run.grad(p).tobytes()))
                run.close()
            self.assertEqual(len(set(results)), 1)
            self.beside(x, target, 3e-6, "cpu", (1, 1), threads=2, classes=classes)

    def test_finite_differences(self):
        x = RNG.standard_normal((2, 3, 4, 5))
        for options, reduction in itertools.product(OPTIONS, REDUCTIONS):
            for classes, target in ((False, RNG.random(x.shape)), (True, map_of(x.shape, "uint8"))):
                op = lambda r, a, b: r.op("tern_dice_loss", a, b, opts_of(r, classes=classes, reduction=reduction, **options))
                gradient_check(f"dice {options} {reduction}", op, [x, target], constant=(1,))
        for classes, target in ((False, RNG.random(x.shape)), (True, map_of(x.shape, "uint8"))):
            op = lambda r, a, b: r.op("tern_bce_dice_loss", a, b, double(1), double(1), opts_of(r, classes=classes))
            gradient_check("bce_dice", op, [x, target], constant=(1,))

    def test_nothing_there(self):
        """All ignored, or nothing in x and the target: 0 with smooth, NaN without; gradients are 0."""
        for device in ("cpu", "cpu:reference"):
            for smooth, kw in itertools.product((1e-5, 0.0), (dict(classes=True), dict(probabilities=True))):
                run = Run(device)
                x = run.parameter(numpy.zeros((2, 3, 4), "f"))
                target = numpy.full((2, 4), 255, "uint8") if "classes" in kw else numpy.zeros((2, 3, 4), "uint8")
                y = run.op("tern_dice_loss", x, run.constant(target), opts_of(run, smooth=smooth, ignore_index=255, **kw))
                self.assertEqual(run.value(y) == 0, smooth > 0)
                self.assertEqual(numpy.isnan(run.value(y)), smooth == 0)
                run.close()
            run = Run(device)
            x = run.parameter(numpy.ones((2, 1, 4), "f"))
            y = run.op("tern_bce_dice_loss", x, run.constant(numpy.full((2, 4), 255, "uint8")), double(1), double(1), opts_of(run, ignore_index=255))
            self.assertTrue(numpy.isnan(run.value(y)))
            run.backward(y)
            self.assertFalse(run.grad(x).any())
            run.close()

    def test_no_samples(self):
        for device, dtype, *_ in DEVICES:
            for shape, over_batch, reduction in itertools.product(((0, 3), (0, 3, 4), (2, 3, 0), (0, 1, 5)), (False, True), REDUCTIONS):
                for classes in (False, True):
                    run = Run(device)
                    x, target = numpy.empty(shape, dtype), numpy.empty(shape[:1] + shape[2:] if classes else shape, "uint8")
                    p = run.parameter(x)
                    y = run.op("tern_dice_loss", p, run.constant(target), opts_of(run, reduction=reduction, classes=classes, over_batch=over_batch))
                    want = dice(torch.tensor(x).double(), torch.tensor(target), classes=classes, over_batch=over_batch, reduction=reduction)
                    numpy.testing.assert_array_equal(run.value(y), want.numpy(), f"{device} {shape} {over_batch} {reduction} {classes}")
                    run.backward(run.op("tern_sum", y))
                    self.assertEqual(run.grad(p).shape, shape)
                    run.close()

    def test_normaliser(self):
        run = Run()
        x, label = run.parameter(numpy.zeros((3, 4, 5), "f")), run.constant(numpy.zeros((3, 5), "uint8"))
        for reduction, over_batch, want in (("mean", False, 12), ("mean", True, 12), ("sum", False, numpy.nan)):
            y = run.op("tern_dice_loss", x, label, opts_of(run, classes=True, reduction=reduction, over_batch=over_batch))
            numpy.testing.assert_equal(run.lib.tern_loss_normaliser(y), want)
        run.close()

    def test_means_of_unequal_batches(self):
        """Weighted by their reported divisors, the losses and gradients of 1 and 4 samples give those of all 5."""
        x, mask, label = RNG.standard_normal((5, 3, 40)), mask_of((5, 3, 40), "uint8"), map_of((5, 3, 40), "uint8")

        def told(part, target, call):
            run = Run("cpu:reference")
            p = run.parameter(x[part])
            y = call(run, p, run.constant(target[part]))
            count = run.lib.tern_loss_normaliser(y)
            run.backward(y)
            result = run.value(y), count, run.grad(p)
            run.close()
            return result

        for target, classes in ((mask, False), (label, True)):
            opts = lambda r: opts_of(r, classes=classes)
            for call in (lambda r, a, b: r.op("tern_dice_loss", a, b, opts(r)), lambda r, a, b: r.op("tern_bce_dice_loss", a, b, double(1), double(2), opts(r))):
                (a, m, da), (b, n, db), (whole, all_, dx) = [told(part, target, call) for part in (slice(0, 1), slice(1, 5), slice(0, 5))]
                self.assertEqual(m + n, all_)
                self.assertAlmostEqual((a * m + b * n) / all_, whole, delta=1e-14)
                numpy.testing.assert_allclose(numpy.concatenate([da * m, db * n]) / all_, dx, rtol=1e-12)

    def test_labels_out_of_range(self):
        """The error names the first one with its sample and position; a device names the one that it finds first."""
        cases = [(True, (2, 3, 4, 500), numpy.int64, (1, 2, 7), 3, "label 3 of sample 1 at position 1007 is not in [0, 3)"),
                 (True, (2, 3, 4), numpy.int32, (0, 3), -1, "label -1 of sample 0 at position 3 is not in [0, 3)"),
                 (False, (2, 3, 600), numpy.uint8, (1, 1, 300), 2, "label 2 of sample 1 at position 900 is not in [0, 2)"),
                 (False, (2, 3, 600), numpy.int64, (0, 0, 1), 1 << 40, "label 1099511627776 of sample 0 at position 1 is not in [0, 2)")]
        for device, name, (classes, shape, dtype, at, bad, text) in itertools.product(("cpu", "cpu:reference"), ("dice_loss", "bce_dice_loss"), cases):
            run = Run(device)
            target = numpy.zeros(shape[:1] + shape[2:] if classes else shape, dtype)
            target[0, 0], target[at], target.flat[-1] = 7, bad, bad if tern.device("cpu") == "cpu" else 0  # 7 is ignored
            weights = [double(1), double(1)] if name == "bce_dice_loss" else []
            with self.assertRaises(tern.TernError) as caught:
                run.value(run.op(f"tern_{name}", run.constant(numpy.zeros(shape, "f")), run.constant(target), *weights, opts_of(run, classes=classes, ignore_index=7)))
            self.assertEqual(caught.exception.code, -7)
            self.assertIn(f"{name}: {text}", str(caught.exception))
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
