"""focal_loss compared with torchvision's for masks and with its formula for classes; u8 masks for the binary losses."""
import ctypes
import itertools
import unittest

import numpy
import torch
import torchvision

import skips
import tern
from ops import BF16, F16, Run, blocked, compare, gradient_check, in_16_bits, rounded

F = torch.nn.functional
RNG = numpy.random.default_rng(0)
DEVICES = [("cpu", "f", 4e-6), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-12), ("cpu", "d", 1e-12)]  # torchvision loses digits in 1 - p
REDUCTIONS = ["mean", "sum", "none"]
GAMMAS = [0.0, 0.5, 1.0, 2.0, 3.5]


class Opts(ctypes.Structure):
    """tern_focal_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("classes", ctypes.c_bool),
        ("gamma", ctypes.c_double),
        ("alpha", ctypes.c_double),
        ("weight", ctypes.c_void_p),
        ("ignore_index", ctypes.c_int64),
        ("reduction", ctypes.c_int),
    ]


def opts_of(run, reduction="mean", **kw):
    run.lib.returns(Opts, "tern_focal_defaults")
    opts = run.lib.tern_focal_defaults()
    assert (opts.classes, opts.gamma, opts.alpha, opts.weight, opts.ignore_index, opts.reduction) == (False, 2, 0.25, None, -100, 0)
    opts.reduction = REDUCTIONS.index(reduction)
    for name, value in kw.items():
        setattr(opts, name, value)
    return ctypes.byref(opts)


def of_classes(x, label, weight=None, gamma=2.0, ignore_index=-100, reduction="mean"):
    """-w (1 - p)^gamma log p for the label, over the sum of w."""
    logp = F.log_softmax(x, 1)
    counts = label != ignore_index
    label = torch.where(counts, label, torch.zeros_like(label)).long()
    one = logp.gather(1, label.unsqueeze(1)).squeeze(1)
    w = counts * (1 if weight is None else weight[label])
    losses = -w * (-torch.expm1(one)) ** gamma * one
    return losses if reduction == "none" else losses.sum() / (w.sum() if reduction == "mean" else 1)


class FocalTest(unittest.TestCase):
    def masks(self, x, target, tolerance, device, wrap=lambda op: op, **kw):
        op = lambda r, a, b: r.op("tern_focal_loss", a, b, opts_of(r, **kw))
        oracle = lambda a, b: torchvision.ops.sigmoid_focal_loss(a, b.to(a.dtype), **{"reduction": "mean", **kw})
        compare(f"mask {device} {x.dtype} {x.shape} {target.dtype} {kw}", wrap(op), oracle, [x, target], tolerance, device, constant=(1,))

    def classes(self, x, label, tolerance, device, weight=None, wrap=lambda op: op, **kw):
        op = lambda r, a, b, w=None: r.op("tern_focal_loss", a, b, opts_of(r, classes=True, weight=w, **kw))
        oracle = lambda a, b, w=None: of_classes(a, b, w, **kw)
        arrays = [x, label] + ([] if weight is None else [weight])
        compare(f"classes {device} {x.dtype} {x.shape} {kw}", wrap(op), oracle, arrays, tolerance, device, constant=(1, 2))

    def test_masks(self):
        for device, dtype, tolerance in DEVICES:
            for shape, gamma, alpha, reduction in itertools.product(((1,), (3, 5), (2, 1, 30, 21)), GAMMAS, (0.25, 0.0, -1.0), REDUCTIONS):
                x, kw = RNG.standard_normal(shape).astype(dtype), dict(gamma=gamma, alpha=alpha, reduction=reduction)
                self.masks(x, (RNG.random(shape) < 0.3).astype("uint8"), tolerance, device, **kw)
                self.masks(x, RNG.random(shape).astype(dtype), tolerance, device, **kw)

    def test_masks_of_every_dtype(self):
        """For all binary losses; the mask is read without a copy in x's dtype."""
        for device, kind in itertools.product(("cpu", "cpu:reference"), "bool uint8 int8 int16 int32 int64 float32 float64".split()):
            x, target = RNG.standard_normal((3, 300)).astype("f"), (RNG.random((3, 300)) < 0.3).astype(kind)
            self.masks(x, target, 4e-6, device)
            weight = numpy.array([0.5], "f")
            for reduction, w in itertools.product(REDUCTIONS, ((), (weight,))):
                op = lambda r, a, b, c=None: r.op("tern_bce_with_logits_loss", a, b, c, REDUCTIONS.index(reduction))
                oracle = lambda a, b, c=None: F.binary_cross_entropy_with_logits(a, b.to(a.dtype), pos_weight=c, reduction=reduction)
                compare(f"bce {kind} {device}", op, oracle, [x, target, *w], 4e-6, device, constant=(1, 2))

    def test_classes(self):
        for device, dtype, tolerance in DEVICES:
            for shape, gamma, reduction, weighted in itertools.product(((1, 2), (7, 5), (3, 300), (2, 4, 5, 7), (1, 6, 300)), GAMMAS, REDUCTIONS, (False, True)):
                x, label = RNG.standard_normal(shape).astype(dtype), RNG.integers(0, shape[1], shape[:1] + shape[2:])
                weight = RNG.uniform(0.1, 1, shape[1]).astype(dtype) if weighted else None
                if label.size > 3:
                    label.flat[1::4] = 255
                self.classes(x, label, tolerance, device, weight, gamma=gamma, ignore_index=255, reduction=reduction)

    def test_far(self):
        """For certain predictions, right or wrong, nothing overflows or is NaN, and gradients are torch's."""
        x = numpy.array([[-300, 300], [300, -300], [-90, 90], [-40, 40], [-12, 12], [0, 0]])
        for device, dtype, tolerance in DEVICES:
            for gamma in GAMMAS:
                for target in (numpy.zeros((6, 2), "uint8"), numpy.ones((6, 2), "uint8")):
                    wanted = [RNG.permutation(x).astype(dtype), target]
                    op = lambda r, a, b: r.op("tern_focal_loss", a, b, opts_of(r, gamma=gamma, reduction="none"))
                    run = Run(device)
                    p = run.parameter(wanted[0])
                    run.backward(op(run, p, run.constant(target)), numpy.ones((6, 2), dtype))
                    self.assertTrue(numpy.isfinite(run.grad(p)).all(), gamma)
                    run.close()
                    self.masks(numpy.clip(wanted[0], -30, 30), target, tolerance, device, gamma=gamma)
                if gamma != 0.5:
                    self.classes(numpy.clip(x, -30, 30).astype(dtype), numpy.array([0, 1, 1, 0, 1, 0]), tolerance, device, gamma=gamma)

    def test_no_focus_is_cross_entropy(self):
        x, label = RNG.standard_normal((4, 5, 30)).astype("f"), RNG.integers(0, 5, (4, 30))
        run = Run()
        got = run.op("tern_focal_loss", run.constant(x), run.constant(label), opts_of(run, classes=True, gamma=0.0))
        want = run.op("tern_cross_entropy", run.constant(x), run.constant(label), None)
        self.assertEqual(run.value(got), run.value(want))
        run.close()

    def test_views_blocked_and_16_bits(self):
        x, label = RNG.standard_normal((2, 32, 5, 5)).astype("f"), RNG.integers(0, 32, (2, 5, 5)).astype("uint8")
        op = lambda r, a, b: r.op("tern_focal_loss", blocked(r, a), b, opts_of(r, classes=True))
        compare("blocked classes", op, of_classes, [x, label], 4e-6, constant=(1,))
        mask = (x < RNG.standard_normal(x.shape)).astype("uint8")
        op = lambda r, a, b: r.op("tern_focal_loss", blocked(r, a), b, opts_of(r))
        oracle = lambda a, b: torchvision.ops.sigmoid_focal_loss(a, b.to(a.dtype), reduction="mean")
        compare("blocked mask", op, oracle, [x, mask], 4e-6, constant=(1,))
        turned = lambda r, a, b: r.op("tern_focal_loss", r.op("tern_transpose", a, 1, 3), r.op("tern_transpose", b, 1, 3), opts_of(r))
        compare("turned", turned, oracle, [x, mask], 4e-6, constant=(1,))
        for (dtype, kind), device in itertools.product(((BF16, torch.bfloat16), (F16, torch.float16)), ("cpu", "cpu:reference")):
            wrap, tolerance = lambda op: in_16_bits(op, dtype), 4 * torch.finfo(kind).eps
            self.masks(rounded(x, kind), mask, tolerance, device, wrap)
            self.classes(rounded(x, kind), label, tolerance, device, None, wrap)

    def test_finite_differences(self):
        x = RNG.standard_normal((3, 4, 5))
        for gamma, reduction in itertools.product(GAMMAS, REDUCTIONS):
            for classes, target in ((False, RNG.random(x.shape)), (True, RNG.integers(0, 4, (3, 5)))):
                op = lambda r, a, b: r.op("tern_focal_loss", a, b, opts_of(r, classes=classes, gamma=gamma, reduction=reduction))
                gradient_check(f"focal {gamma} {reduction}", op, [x, target], constant=(1,))

    def test_normaliser(self):
        run = Run()
        x, mask, label = run.parameter(numpy.zeros((3, 4, 5), "f")), numpy.zeros((3, 4, 5), "uint8"), numpy.zeros((3, 5), "uint8")
        label[0, 0] = 255
        for target, kw, want in ((mask, dict(classes=False), 60), (label, dict(classes=True, ignore_index=255), 14), (mask, dict(reduction="sum"), numpy.nan)):
            y = run.op("tern_focal_loss", x, run.constant(target), opts_of(run, **kw))
            numpy.testing.assert_equal(run.lib.tern_loss_normaliser(y), want)
        run.close()

    def test_labels_out_of_range(self):
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            label = numpy.array([[0, 1], [2, 3]], "uint8")
            with self.assertRaises(tern.TernError) as caught:
                run.value(run.op("tern_focal_loss", run.constant(numpy.zeros((2, 3, 2), "f")), run.constant(label), opts_of(run, classes=True)))
            self.assertEqual(caught.exception.code, -7)
            self.assertIn("focal_loss: label 3 of sample 1 at position 1 is not in [0, 3)", str(caught.exception))
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
