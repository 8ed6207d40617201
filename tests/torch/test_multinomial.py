"""multinomial: frequencies beside the probabilities, by which torch's draws are checked in the same way; without
replacement, determinism, errors."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
from half import TYPES
from layers import refused
from ops import Run

DEVICES = ("cpu", "cpu:reference")
WEIGHTS = numpy.array([0.0, 3.0, 1.0, 0.0, 0.5, 2.5, 0.001, 0.0])


def multinomial(run, weights, count, replacement):
    return run.op("tern_multinomial", weights, ctypes.c_int64(count), replacement)


def draws(device, weights, count, replacement, seed=0, threads=None):
    run = Run(device, threads)
    run.lib.tern_scope_seed(run.scope, ctypes.c_uint64(seed), ctypes.c_uint64(0))
    got = run.value(multinomial(run, run.constant(weights), count, replacement))
    run.close()
    return got


class MultinomialTest(unittest.TestCase):
    def assert_frequencies(self, counts, probabilities):
        """Each count within five deviations of a binomial distribution's mean."""
        n = counts.sum()
        deviation = numpy.sqrt(n * probabilities * (1 - probabilities))
        self.assertTrue((numpy.abs(counts - n * probabilities) <= 5 * deviation + 1e-9).all(), (counts, n * probabilities))

    def test_with_replacement(self):
        for device, dtype in itertools.product(DEVICES, "fd"):
            weights = WEIGHTS.astype(dtype)
            p, n = weights.astype("d") / weights.astype("d").sum(), 40000
            torch.manual_seed(0)
            for got in (draws(device, weights, n, True), torch.multinomial(torch.tensor(weights), n, True).numpy()):
                self.assertEqual((got.shape, got.dtype), ((n,), numpy.int64))
                self.assert_frequencies(numpy.bincount(got, minlength=8), p)

    def test_without_replacement(self):
        """None twice; the first of a row as with replacement, and the second among the rest."""
        rows = 20000
        p = WEIGHTS / WEIGHTS.sum()
        second = sum(p[i] * numpy.where(numpy.arange(8) == i, 0, p / (1 - p[i])) for i in range(8))
        torch.manual_seed(0)
        weights = numpy.tile(WEIGHTS, (rows, 1)).astype("f")
        for got in (draws("cpu", weights, 2, False), torch.multinomial(torch.tensor(weights), 2).numpy()):
            self.assertEqual((got.shape, got.dtype), ((rows, 2), numpy.int64))
            self.assertTrue((got[:, 0] != got[:, 1]).all())
            self.assert_frequencies(numpy.bincount(got[:, 0], minlength=8), p)
            self.assert_frequencies(numpy.bincount(got[:, 1], minlength=8), second)
        everything = draws("cpu", weights[:50], 5, False)
        numpy.testing.assert_array_equal(numpy.sort(everything, 1), numpy.tile([1, 2, 4, 5, 6], (50, 1)))

    def test_same_draws_on_any_device_and_threads(self):
        rng = numpy.random.default_rng(1)
        weights = rng.random((40, 900)).astype("f") * (rng.random((40, 900)) < 0.7)
        for replacement in (True, False):
            first = draws("cpu", weights, 6, replacement, 5, 1)
            for device, threads in (("cpu", 2), ("cpu", 3), ("cpu:reference", None)):
                numpy.testing.assert_array_equal(draws(device, weights, 6, replacement, 5, threads), first)
            self.assertFalse((draws("cpu", weights, 6, replacement, 6) == first).all(), "of another seed")

    def test_every_draw_is_its_own(self):
        """Two draws of a step, and two steps."""
        run, seen = Run(), []
        for _ in range(2):
            weights = run.constant(numpy.ones((3, 50), "f"))
            seen += [run.value(multinomial(run, weights, 4, True)).tobytes() for _ in range(2)]
            run.end()
        self.assertEqual(len(set(seen)), 4)
        run.close()

    def test_16_bits_and_views(self):
        for device, (dtype, kind) in itertools.product(DEVICES, TYPES):
            run = Run(device)
            run.lib.tern_scope_seed(run.scope, ctypes.c_uint64(0), ctypes.c_uint64(0))
            weights = numpy.linspace(0, 1, 40).reshape(10, 4).astype("f")
            got = run.value(multinomial(run, run.op("tern_transpose", run.op("tern_cast", run.constant(weights), dtype), 0, 1), 7, False))
            want = draws(device, torch.tensor(weights.T).to(kind).float().numpy(), 7, False)
            numpy.testing.assert_array_equal(got, want)
            run.close()

    def test_nothing(self):
        for device in DEVICES:
            self.assertEqual(draws(device, numpy.zeros((0, 4), "f"), 3, True).shape, (0, 3))
            self.assertEqual(draws(device, numpy.ones((2, 4), "f"), 0, False).shape, (2, 0))

    def test_errors(self):
        nan, inf = numpy.nan, numpy.inf
        for device in DEVICES:
            run = Run(device)
            constant = lambda values: run.constant(numpy.array(values, "f"))
            cases = [
                (lambda: multinomial(run, run.constant(numpy.ones(3, "i8")), 1, True), -3, "multinomial: expected floating point, got i64"),
                (lambda: multinomial(run, constant(numpy.ones((2, 2, 2))), 1, True), -2, "multinomial: expected weights (N, C) or (C), got (2, 2, 2)"),
                (lambda: multinomial(run, constant([1, 2]), -1, True), -7, "multinomial: expected a count of at least 0, got -1"),
                (lambda: multinomial(run, constant([[1, 2], [3, -1]]), 1, True), -7, "weight -1 of category 1 in row 1 is not a finite number of at least 0"),
                (lambda: multinomial(run, constant([1, nan]), 1, False), -7, "weight nan of category 1 in row 0"),
                (lambda: multinomial(run, constant([inf, 1]), 1, True), -7, "weight inf of category 0 in row 0"),
                (lambda: multinomial(run, constant([0, 0]), 1, True), -7, "row 0 has 0 categories with weights above 0, expected at least 1"),
                (lambda: multinomial(run, constant([[1, 2, 0], [1, 0, 0]]), 2, False), -7, "row 1 has 1 categories with weights above 0, expected at least 2"),
                (lambda: multinomial(run, constant(numpy.zeros((2, 0))), 1, True), -7, "expected at least 1"),
            ]
            for call, code, text in cases:
                with refused(self, run, text, code):
                    call()
            run.close()


if __name__ == "__main__":
    skips.main()
