"""tern's SGD beside torch.optim.SGD: the same random gradients, 9 steps of every combination of its options, f32 and
f64 in one module, and parameters that have no gradient in some steps."""
import ctypes
import itertools
import unittest

import numpy

import skips
from optims import EVERY, STEPS, EveryCombination, Pair, train_beside, two_of_three


def combinations():
    names = "momentum", "dampening", "nesterov", "maximize", "weight_decay", "lr"
    for values in itertools.product((0, 0.5, 0.9), (0, 0.3), (False, True), (False, True), (0, 0.01), (0.1, 0)):
        options = dict(zip(names, values))
        if not options["nesterov"] or (options["momentum"] and not options["dampening"]):
            yield options


class Sgd(EveryCombination, unittest.TestCase):
    kind, combinations = "sgd", staticmethod(combinations)

    def test_groups(self):
        groups = {(0, 3): dict(weight_decay=0), (1, 2, 5): dict(lr=0.3, momentum=0, nesterov=False, maximize=True)}
        for used in (lambda step: EVERY, two_of_three):
            train_beside(self, "sgd", used, groups=groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
            train_beside(self, "sgd", used, groups={(4, 5): dict(momentum=0.9, dampening=0.5)}, lr=0.1)

    def test_the_rate_may_change(self):
        pair = Pair("sgd", lr=0.1, momentum=0.9)
        for step in range(STEPS):
            rate = 0.1 / (1 + step)
            pair.lib.tern_optim_lr_set(pair.optim, 0, ctypes.c_double(rate))
            pair.torch_optim.param_groups[0]["lr"] = rate
            pair.backward(EVERY)
            pair.step()
            self.assertLessEqual(pair.error(), 4 * (step + 1))
        pair.close()

    def test_a_step_forgets_the_gradients(self):
        pair = Pair("sgd", lr=0.1)
        pair.backward([0])
        pair.step()
        before = pair.run.value(pair.ours[0])
        pair.lib.tern_optim_step(pair.optim, pair.run.scope)
        self.assertIsNone(pair.run.grad(pair.ours[0]))
        self.assertTrue(numpy.array_equal(pair.run.value(pair.ours[0]), before))
        pair.close()


if __name__ == "__main__":
    skips.main()
