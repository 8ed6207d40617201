"""LARC on tern's optimizers compared with apex's wrapper around torch's: the same random gradients, 9 steps."""
import itertools
import unittest

import skips
from optims import EVERY, FEW, Pair, train_beside, two_of_three

KINDS = [
    ("sgd", dict(lr=0.1)),
    ("sgd", dict(lr=0.1, momentum=0.9, nesterov=True)),
    ("sgd", dict(lr=0.1, momentum=0.9, maximize=True)),
    ("adam", dict(lr=0.01, eps=0.01)),
    ("adamw", dict(lr=0.01, eps=0.01, amsgrad=True)),
    ("rmsprop", dict(lr=0.001, eps=0.01)),
    ("adagrad", dict(lr=0.01, eps=0.01)),
]
LARCS = [dict(), dict(clip=False), dict(trust_coefficient=0.5), dict(trust_coefficient=0.001, clip=False, eps=1.0)]


class Larc(unittest.TestCase):
    def every(self):
        for (kind, options), larc, decay in itertools.product(KINDS, LARCS, (0, 0.1)):
            yield kind, dict(options, larc=larc, weight_decay=decay)

    def test_every_optimizer(self):
        for i, (kind, options) in enumerate(self.every()):
            train_beside(self, kind, two_of_three if i % 3 else lambda step: EVERY, FEW, **options)

    def test_reference(self):
        for kind, options in itertools.islice(self.every(), 0, None, 5):
            train_beside(self, kind, two_of_three, FEW, device="cpu:reference", **options)

    def test_groups(self):
        groups = {(0, 3): dict(weight_decay=0), (1, 2, 5): dict(lr=0.003)}
        train_beside(self, "sgd", two_of_three, groups=groups, larc={}, lr=0.1, momentum=0.9, weight_decay=0.1)

    def test_norms_of_zero(self):
        """The rate is not adapted, and there is no weight decay."""
        for kind, options in itertools.islice(self.every(), 0, None, 3):
            train_beside(self, kind, steps=FEW, zeros=[0, 1, 4], **options)

    def test_gradients_of_zero(self):
        for kind, options in self.every():
            pair = Pair(kind, **options)
            for step in range(3):
                pair.backward(EVERY, scale=0)
                pair.step()
                self.assertEqual(pair.error(), 0)
            pair.close()


if __name__ == "__main__":
    skips.main()
