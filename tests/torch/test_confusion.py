"""Confusion matrices and top-k accuracy compared with numpy and torch: scores, maps, masks, ties and NaN; and 1 to 4
ranks with unequal shares compared with numpy on all samples."""
import ctypes
import itertools
import json
import os
import subprocess
import sys
import unittest

import numpy
import torch

import skips
import tern
from confusion_rank import Confusion, data, i64, topk_correct
from ops import BF16, F16, Run, blocked, rounded, thread_counts

RNG = numpy.random.default_rng(0)
DEVICES = [("cpu", "f"), ("cpu:reference", "f"), ("cpu", "d")]
SHAPES = [(1, 2), (300, 3), (7, 300), (2, 5, 1), (3, 2, 300), (2, 19, 17, 15), (1, 7, 5, 10, 13)]
CASES = [*itertools.product(DEVICES, SHAPES), (("cpu", "f"), (2, 4, 200, 201)), (("cpu", "f"), (5, 1000))]
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "confusion_rank.py")


def matrix_of(prediction, label, classes, ignored=-100):
    label, prediction = label.reshape(-1).astype("int64"), prediction.reshape(-1).astype("int64")
    counts = label != ignored
    return numpy.bincount(label[counts] * classes + prediction[counts], minlength=classes**2).reshape(classes, classes)


def labels_of(shape, dtype="int64", ignored=None):
    label = RNG.integers(0, min(shape[1], 250), shape[:1] + shape[2:]).astype(dtype)
    if ignored is not None:
        label.reshape(-1)[1::5] = ignored
    return label


class ConfusionTest(unittest.TestCase):
    def test_scores(self):
        """Two updates add up. Ties go to the first class, and NaN counts as the largest, as in torch.argmax."""
        for (device, dtype), shape in CASES:
            for kind, ignored in (("int64", -100), ("uint8", 255), ("int32", 1)):
                run = Run(device)
                c, want = Confusion(run, shape[1], ignored), 0
                for scale in (1, 10):
                    x, label = numpy.round(scale * RNG.standard_normal(shape)).astype(dtype), labels_of(shape, kind, ignored)
                    x.reshape(-1)[3::50] = numpy.nan
                    c.update(run.constant(x), run.constant(label))
                    want = want + matrix_of(torch.tensor(x).argmax(1).numpy(), label, shape[1], ignored)
                got = c.reduce()
                self.assertTrue(numpy.array_equal(got, want), (device, shape, kind))
                self.assertEqual(c.number("total"), want.sum())
                c.free()
                run.close()

    def test_maps_and_masks(self):
        for device, (kind, other) in itertools.product(("cpu", "cpu:reference"), itertools.product("uint8 int32 int64".split(), repeat=2)):
            run = Run(device)
            c, prediction, label = Confusion(run, 6, 3), RNG.integers(0, 6, (3, 20, 30)).astype(kind), RNG.integers(0, 6, (3, 20, 30)).astype(other)
            c.update(run.constant(prediction), run.constant(label))
            self.assertTrue(numpy.array_equal(c.reduce(), matrix_of(prediction, label, 6, 3)))
            c.free()
            c, x = Confusion(run, 2, 255), RNG.standard_normal((3, 1, 20, 30)).astype("f")
            for mask in (RNG.integers(0, 2, (3, 20, 30)).astype(other), RNG.integers(0, 2, x.shape).astype(bool)):
                if mask.dtype == "uint8":
                    mask[0, 0] = 255
                c.update_mask(run.constant(x), run.constant(mask), 0.25)
                self.assertTrue(numpy.array_equal(c.reduce(), matrix_of(x > 0.25, mask, 2, 255)))
            c.free()
            run.close()

    def test_layouts_threads_and_16_bits(self):
        x, label = RNG.standard_normal((2, 32, 60, 61)).astype("f"), labels_of((2, 32, 60, 61), "uint8")
        want = matrix_of(x.argmax(1), label, 32)
        for threads in thread_counts(1, 2, 3):
            run = Run("cpu", threads)
            c, t = Confusion(run, 32), run.constant(x)
            turn = lambda a, *dims: run.op("tern_permute", a, len(dims), (ctypes.c_int * len(dims))(*dims))
            last = run.constant(numpy.ascontiguousarray(x.transpose(0, 2, 3, 1)))
            for scores in (t, blocked(run, t), turn(last, 0, 3, 1, 2)):
                c.update(scores, run.constant(label))
                self.assertTrue(numpy.array_equal(c.reduce(), want))
            for half, kind in ((BF16, torch.bfloat16), (F16, torch.float16)):
                c.update(run.op("tern_cast", t, half), run.constant(label))
                self.assertTrue(numpy.array_equal(c.reduce(), matrix_of(rounded(x, kind).argmax(1), label, 32)))
            c.free()
            run.close()

    def test_numbers(self):
        """Classes 2 and 4 occur only in labels or only in predictions, class 3 in neither: it has no IoU and does not
        count in the means."""
        run = Run()
        label = numpy.array([[0, 0, 0, 1, 1, 2]])
        c, prediction = Confusion(run, 5), numpy.array([[0, 0, 1, 1, 4, 0]])
        for name in ("accuracy", "mean_iou", "mean_dice"):
            self.assertTrue(numpy.isnan(c.number(name)), "before anything is counted")
        c.update(run.constant(prediction), run.constant(label))
        self.assertEqual(c.number("total"), 0, "before a reduce")
        m = c.reduce()
        both, either = numpy.diag(m), m.sum(0) + m.sum(1)
        with numpy.errstate(invalid="ignore"):
            iou, dice = both / (either - both), 2 * both / either
        for k in range(5):
            numpy.testing.assert_equal((c.number("iou", i64(k)), c.number("dice", i64(k))), (iou[k], dice[k]))
        self.assertEqual(c.number("accuracy"), 0.5)
        self.assertEqual((c.number("mean_iou"), c.number("mean_dice")), ((0.5 + 1 / 3) / 4, (2 / 3 + 0.5) / 4))
        self.assertEqual((c.number("count", i64(5), i64(0)), c.number("count", i64(0), i64(-1))), (0, 0))
        self.assertTrue(numpy.isnan(c.number("iou", i64(5))))
        self.assertFalse(c.reduce().any(), "a reduce begins anew")
        c.free()
        run.close()

    def test_out_of_range(self):
        """The error names sample and position. Nothing of the batch is counted; on a device, valid labels are."""
        label, map_ = numpy.zeros((2, 3, 100), "uint8"), numpy.zeros((2, 3, 100), "int64")
        scores = numpy.zeros((2, 4, 3, 100), "f")
        bad_label, bad_map = label.copy(), map_.copy()
        bad_label[0, 0, 0], bad_label[1, 2, 7], bad_map[0, 1, 3] = 255, 4, -1
        cases = [(scores, bad_label, "confusion: label 4 of sample 1 at position 207 is not in [0, 4)"),
                 (map_, bad_label, "confusion: label 4 of sample 1 at position 207 is not in [0, 4)"),
                 (bad_map, label, "confusion: prediction -1 of sample 0 at position 103 is not in [0, 4)")]
        for device, (x, y, text) in itertools.product(("cpu", "cpu:reference"), cases):
            run = Run(device)
            c = Confusion(run, 4, 255)
            with self.assertRaises(tern.TernError) as caught:
                c.update(run.constant(x), run.constant(y))
                c.reduce()
            self.assertEqual(caught.exception.code, -7)
            self.assertIn(text, str(caught.exception))
            run.end_failed()
            if tern.device("cpu") == "cpu":
                self.assertFalse(c.reduce().any())
            c.free()
            run.close()


class TopKTest(unittest.TestCase):
    KS = [1, 2, 3, 5, 2000]

    def test_beside_torch(self):
        """Without ties compared with torch.topk; with ties and NaN with a stable sort, since topk is not stable."""
        for (device, dtype), shape in CASES:
            for tied, (kind, ignored) in itertools.product((False, True), (("int64", -100), ("uint8", 255))):
                run = Run(device)
                x, label = RNG.standard_normal(shape), labels_of(shape, kind, ignored)
                if tied:
                    x = numpy.round(2 * x)
                    x.reshape(-1)[::30] = numpy.nan
                x = x.astype(dtype)
                ks = [k for k in self.KS if tied or k <= shape[1]]
                order = lambda k: torch.tensor(x).sort(dim=1, descending=True, stable=True)[1][:, :k] if tied else torch.tensor(x).topk(k, 1)[1]
                want = [int((order(k).numpy() == label.astype("int64")[:, None])[(label != ignored)[:, None].repeat(min(k, shape[1]), 1)].sum()) for k in ks]
                self.assertEqual(topk_correct(run, run.constant(x), run.constant(label), ks, ignored), want, (device, shape, tied))
                run.close()

    def test_refused(self):
        run = Run()
        x, label = run.constant(numpy.zeros((3, 4), "f")), run.constant(numpy.array([0, 4, 1]))
        for ks, code, text in (([1], -7, "topk_correct: label 4 of sample 1 is not in [0, 4)"), ([1, 0], -7, "topk_correct: expected k >= 1, got 0"),
                               ([], -1, "topk_correct: expected at least one k")):
            x, label = run.constant(numpy.zeros((3, 4), "f")), run.constant(numpy.array([0, 4, 1]))
            with self.assertRaises(tern.TernError) as caught:
                topk_correct(run, x, label, ks)
            self.assertEqual((caught.exception.code, text in str(caught.exception)), (code, True), str(caught.exception))
            run.end_failed()
        run.close()


class RanksTest(unittest.TestCase):
    def test_whole(self):
        """All ranks have the same bits, those of numpy on all samples. With 2 samples ranks 2 and 3 have none."""
        path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ["PYTHONPATH"]])
        for ranks, samples in ((1, 7), (2, 7), (3, 11), (4, 2)):
            x, label = data(samples)
            want = matrix_of(x.argmax(1), label, 5, 255)
            order, counts = (-x).argsort(1, kind="stable"), label != 255
            tops = [float(((order[:, :k] == label[:, None]).any(1) & counts).sum()) for k in (1, 3)]
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), sys.executable, RANK, str(samples)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            told = [json.loads(line.split("told ")[1]) for line in done.stdout.splitlines()]
            self.assertEqual((len(told), sum(t[0] for t in told)), (ranks, samples), "each sample once")
            if ranks > samples:
                self.assertEqual(sorted(t[0] for t in told), [0, 0, 1, 1])
            for _, matrix, numbers, correct in told:
                self.assertEqual(matrix, want.tolist())
                self.assertEqual((numbers, correct), (told[0][2], tops))
            self.assertEqual(float.fromhex(told[0][2][0]), numpy.diag(want).sum() / want.sum())


if __name__ == "__main__":
    skips.main()
