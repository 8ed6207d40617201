"""tern's LAMB compared with the formulas of apex's FusedLAMB: the same random gradients, 9 steps of every combination
of its options, f32 and f64 in one module, parameters without a gradient in some steps, and norms of 0."""
import itertools
import math
import unittest

import numpy

import skips
from ops import thread_counts
from optims import EVERY, FEW, Pair, train_beside, two_of_three


def combinations():
    names = "weight_decay", "max_grad_norm", "bias_correction", "grad_averaging", "adam_w_mode", "use_nvlamb"
    for values in itertools.product((0, 0.1), (1.0, math.inf), *[(False, True)] * 4):
        yield dict(zip(names, values), lr=0.003, betas=(0.8, 0.99))


class Lamb(unittest.TestCase):
    def test_every_combination(self):
        for i, options in enumerate(combinations()):
            train_beside(self, "lamb", two_of_three if i % 3 else lambda step: EVERY, FEW, **options)

    def test_reference(self):
        for options in itertools.islice(combinations(), 0, None, 5):
            train_beside(self, "lamb", two_of_three, FEW, device="cpu:reference", **options)

    def test_defaults(self):
        train_beside(self, "lamb")

    def test_groups(self):
        groups = {(0, 3): dict(weight_decay=0), (1, 2, 5): dict(lr=0.01, betas=(0.5, 0.8), eps=0.1, max_grad_norm=3.0)}
        for used in (lambda step: EVERY, two_of_three):
            train_beside(self, "lamb", used, groups=groups, lr=0.003, weight_decay=0.1)

    def test_norms_of_zero(self):
        train_beside(self, "lamb", zeros=[1, 2, 4], lr=0.003)
        train_beside(self, "lamb", zeros=EVERY, lr=0.003, adam_w_mode=False)

    def test_small_gradients_are_not_raised(self):
        """The norm is that of all gradients together, and only a larger one is scaled."""
        for scale in (1e-3, 0.01, 0.02, 0.1, 10):
            pair = Pair("lamb", lr=0.01, eps=0.1, max_grad_norm=0.5)
            for step in range(5):
                pair.backward(EVERY, scale=scale)
                pair.step()
                self.assertLessEqual(pair.error(), 4 * (step + 1), scale)
            pair.close()

    def test_a_gradient_of_zero(self):
        """The update is 0, and so is its norm; with weight decay the parameter still shrinks."""
        for decay in (0, 0.1):
            pair = Pair("lamb", lr=0.01, weight_decay=decay)
            for step in range(5):
                pair.backward(EVERY, scale=0)
                pair.step()
                self.assertLessEqual(pair.error(), 4 * (step + 1))
            pair.close()

    def test_threads_change_no_bit(self):
        """With a parameter large enough for several threads."""
        found = []
        for threads in thread_counts(1, 2, 3):
            pair = Pair("lamb", lr=0.01, threads=threads, large=True)
            for step in range(3):
                pair.backward(EVERY)
                pair.step()
            found.append([pair.run.value(p) for p in pair.ours])
            self.assertLessEqual(pair.error(), 16)
            pair.close()
        for other in found[1:]:
            for a, b in zip(found[0], other):
                self.assertTrue(numpy.array_equal(a, b))


if __name__ == "__main__":
    skips.main()
