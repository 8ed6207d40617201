"""tern's Adam and AdamW beside torch's: the same random gradients, 9 steps of every combination of their options, f32
and f64 in one module, and parameters that have no gradient in some steps."""
import itertools
import unittest

import skips
from optims import EVERY, FEW, train_beside, two_of_three


def combinations():
    names = "betas", "eps", "weight_decay", "amsgrad", "maximize"
    for values in itertools.product(((0.9, 0.999), (0.0, 0.5)), (1e-8, 0.1), (0, 0.1), (False, True), (False, True)):
        yield dict(zip(names, values), lr=0.01)


class Adam(unittest.TestCase):
    def test_every_combination(self):
        for kind, options in itertools.product(("adam", "adamw"), combinations()):
            train_beside(self, kind, steps=FEW, **options)

    def test_a_parameter_without_gradient_is_passed_by(self):
        for kind, options in itertools.product(("adam", "adamw"), combinations()):
            train_beside(self, kind, two_of_three, FEW, **options)

    def test_reference(self):
        for kind, options in itertools.product(("adam", "adamw"), combinations()):
            train_beside(self, kind, two_of_three, FEW, device="cpu:reference", **options)

    def test_defaults(self):
        for kind in ("adam", "adamw"):
            train_beside(self, kind)

    def test_groups(self):
        groups = {(0, 3): dict(weight_decay=0), (1, 2, 5): dict(lr=0.3, betas=(0.5, 0.8), amsgrad=True, maximize=True)}
        for kind, used in itertools.product(("adam", "adamw"), (lambda step: EVERY, two_of_three)):
            train_beside(self, kind, used, groups=groups, lr=0.01, weight_decay=0.1)


if __name__ == "__main__":
    skips.main()
