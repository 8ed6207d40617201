"""tern's RMSprop beside torch's: the same random gradients, 20 steps, every combination of its options, f32 and f64 in
one module, and parameters that have no gradient in some steps."""
import itertools
import unittest

from optims import EVERY, train_beside, two_of_three


def combinations():
    names = "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"
    for values in itertools.product((0.99, 0.5), (1e-8, 0.1), (0, 0.1), (0, 0.9), (False, True), (False, True)):
        yield dict(zip(names, values), lr=0.001)


class Rmsprop(unittest.TestCase):
    def test_every_combination(self):
        for options in combinations():
            train_beside(self, "rmsprop", **options)

    def test_a_parameter_without_gradient_is_passed_by(self):
        for options in combinations():
            train_beside(self, "rmsprop", two_of_three, **options)

    def test_reference(self):
        for options in combinations():
            train_beside(self, "rmsprop", two_of_three, device="cpu:reference", **options)

    def test_defaults(self):
        train_beside(self, "rmsprop")

    def test_groups(self):
        groups = {(0, 3): dict(weight_decay=0), (1, 2, 5): dict(lr=0.003, alpha=0.5, momentum=0.5, centered=True, maximize=True)}
        for used in (lambda step: EVERY, two_of_three):
            train_beside(self, "rmsprop", used, groups=groups, lr=0.001, weight_decay=0.1)
            train_beside(self, "rmsprop", used, groups={(4, 5): dict(momentum=0)}, lr=0.001, momentum=0.9)


if __name__ == "__main__":
    unittest.main()
