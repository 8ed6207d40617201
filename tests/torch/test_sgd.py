"""tern's SGD beside torch.optim.SGD: the same random gradients, 20 steps, every combination of its options, f32 and
f64 in one module, and parameters that have no gradient in some steps."""
import ctypes
import itertools
import unittest

import numpy
import torch

from nets import SgdOpts
from ops import Run

STEPS = 20
SHAPES = [((5, 7), "float32"), ((3,), "float32"), ((4, 2), "float64"), ((33, 17), "float32"), ((), "float64"), ((6,), "float64")]


class Pair:
    """The same parameters in a module of tern and as torch tensors, each with its optimizer."""

    def __init__(self, seed, **options):
        self.rng = numpy.random.default_rng(seed)
        self.run = Run("cpu", 1)
        self.run.lib.returns(ctypes.c_void_p, "tern_sgd_new")
        self.run.lib.returns(SgdOpts, "tern_sgd_defaults")
        arrays = [numpy.asarray(self.rng.standard_normal(shape), dtype) for shape, dtype in SHAPES]
        self.ours = [self.run.parameter(a) for a in arrays]
        self.theirs = [torch.nn.Parameter(torch.tensor(a)) for a in arrays]
        opts = self.run.lib.tern_sgd_defaults()
        for name, value in options.items():
            setattr(opts, name, value)
        make = ctypes.byref(self.run.module), ctypes.byref(opts)
        self.optim = ctypes.c_void_p(self.run.lib.check("tern_sgd_new", *make))
        self.torch_optim = torch.optim.SGD(self.theirs, **options)

    def step(self, used):
        """One step in which the parameters in `used` get a random gradient: that of sum(p * c) is c."""
        run = self.run
        self.torch_optim.zero_grad(set_to_none=True)
        for i in used:
            c = numpy.asarray(self.rng.standard_normal(SHAPES[i][0]), SHAPES[i][1])
            run.backward(run.op("tern_sum", run.op("tern_mul", self.ours[i], run.constant(c))))
            self.theirs[i].grad = torch.tensor(c)
        run.lib.tern_optim_step(self.optim, run.scope)
        run.end()
        self.torch_optim.step()

    def error(self):
        """The largest difference in units of the last place of 1, or of the value where that is larger."""
        worst = 0.0
        for ours, theirs in zip(self.ours, self.theirs):
            got, want = self.run.value(ours), theirs.detach().numpy()
            unit = numpy.finfo(want.dtype).eps * numpy.maximum(1, numpy.abs(want))
            worst = max(worst, float((numpy.abs(got - want) / unit).max()))
        return worst

    def close(self):
        self.run.lib.tern_optim_free(self.optim)
        self.run.close()


class Sgd(unittest.TestCase):
    def beside(self, used, **options):
        pair = Pair(5, **options)
        try:
            for step in range(STEPS):
                pair.step(used(step))
                self.assertLessEqual(pair.error(), 4 * (step + 1), f"{options} step {step}")
        finally:
            pair.close()

    def combinations(self):
        for momentum, nesterov, weight_decay, lr in itertools.product((0, 0.5, 0.9), (False, True), (0, 0.01), (0.1, 0)):
            if momentum or not nesterov:
                yield dict(momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, lr=lr)

    def test_every_combination(self):
        for options in self.combinations():
            self.beside(lambda step: range(len(SHAPES)), **options)

    def test_a_parameter_without_gradient_is_passed_by(self):
        for options in self.combinations():
            self.beside(lambda step: [i for i in range(len(SHAPES)) if (step + i) % 3], **options)

    def test_the_rate_may_change(self):
        pair = Pair(6, lr=0.1, momentum=0.9)
        for step in range(STEPS):
            rate = 0.1 / (1 + step)
            pair.run.lib.tern_optim_lr_set(pair.optim, 0, ctypes.c_double(rate))
            pair.torch_optim.param_groups[0]["lr"] = rate
            pair.step(range(len(SHAPES)))
            self.assertLessEqual(pair.error(), 4 * (step + 1))
        pair.close()

    def test_a_step_forgets_the_gradients(self):
        pair = Pair(7, lr=0.1)
        pair.step([0])
        before = pair.run.value(pair.ours[0])
        pair.run.lib.tern_optim_step(pair.optim, pair.run.scope)
        self.assertIsNone(pair.run.grad(pair.ours[0]))
        self.assertTrue(numpy.array_equal(pair.run.value(pair.ours[0]), before))
        pair.close()


if __name__ == "__main__":
    unittest.main()
