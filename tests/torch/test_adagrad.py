"""tern's Adagrad beside torch's: the same random gradients, 9 steps of every combination of its options, f32 and f64 in
one module, and parameters that have no gradient in some steps."""
import itertools
import unittest

import skips
from optims import EVERY, EveryCombination, train_beside, two_of_three


def combinations():
    names = "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "maximize"
    for values in itertools.product((0, 0.1), (1e-10, 0.1), (0, 0.1), (0, 2.5), (False, True)):
        yield dict(zip(names, values), lr=0.1)


class Adagrad(EveryCombination, unittest.TestCase):
    kind, combinations = "adagrad", staticmethod(combinations)

    def test_defaults(self):
        train_beside(self, "adagrad")

    def test_groups(self):
        groups = {(0, 3): dict(weight_decay=0), (1, 2, 5): dict(lr=0.3, lr_decay=0.5, maximize=True)}
        for used in (lambda step: EVERY, two_of_three):
            train_beside(self, "adagrad", used, groups=groups, lr=0.01, weight_decay=0.1)


if __name__ == "__main__":
    skips.main()
