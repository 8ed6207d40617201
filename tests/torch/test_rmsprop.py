"""tern's RMSprop beside torch's: the same random gradients, 9 steps of every combination of its options, f32 and f64 in
one module, and parameters that have no gradient in some steps."""
import ctypes
import itertools
import unittest

import numpy

import skips
from ops import Run
from optims import EVERY, EveryCombination, RmspropOpts, train_beside, two_of_three


def combinations():
    names = "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"
    for values in itertools.product((0.99, 0.5), (1e-8, 0.1), (0, 0.1), (0, 0.9), (False, True), (False, True)):
        yield dict(zip(names, values), lr=0.001)


class Rmsprop(EveryCombination, unittest.TestCase):
    kind, combinations = "rmsprop", staticmethod(combinations)

    def test_defaults(self):
        train_beside(self, "rmsprop")

    def test_equal_gradients_centred(self):
        """Rounding makes the mean of equal gradients' squares less than the square of their mean. The root of such a
        variance is 0: parameters keep moving against their gradient."""
        rng = numpy.random.default_rng(3)
        for device, alpha, momentum in itertools.product(("cpu", "cpu:reference"), (0.5, 0.9), (0, 0.9)):
            run = Run(device)
            run.lib.returns(RmspropOpts, "tern_rmsprop_defaults")
            gradients = [rng.standard_normal(1000).astype(dtype) for dtype in "fd"]
            p = [run.parameter(0 * g) for g in gradients]
            opts = run.lib.tern_rmsprop_defaults()
            opts.alpha, opts.momentum, opts.centered, opts.lr = alpha, momentum, True, 1e-3
            optim = ctypes.c_void_p(run.lib.check("tern_rmsprop_new", ctypes.byref(run.module), ctypes.byref(opts)))
            for _ in range(60):
                run.lib.tern_zero_grad(ctypes.byref(run.module))
                for tensor, g in zip(p, gradients):
                    run.backward(tensor, g)
                before = [run.value(tensor) for tensor in p]
                run.lib.tern_optim_step(optim, run.scope)
                run.end()
                for tensor, was, g in zip(p, before, gradients):
                    self.assertTrue((numpy.sign(run.value(tensor) - was) == -numpy.sign(g)).all(), f"{device} {alpha} {momentum} {g.dtype}")
            run.lib.tern_optim_free(optim)
            run.close()

    def test_groups(self):
        groups = {(0, 3): dict(weight_decay=0), (1, 2, 5): dict(lr=0.003, alpha=0.5, momentum=0.5, centered=True, maximize=True)}
        for used in (lambda step: EVERY, two_of_three):
            train_beside(self, "rmsprop", used, groups=groups, lr=0.001, weight_decay=0.1)
            train_beside(self, "rmsprop", used, groups={(4, 5): dict(momentum=0)}, lr=0.001, momentum=0.9)


if __name__ == "__main__":
    skips.main()
