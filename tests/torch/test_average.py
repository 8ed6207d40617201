"""tern_ema_update compared with torch.optim.swa_utils.AveragedModel, as a moving average and as SWA's plain mean; and
an average that is saved and resumed. Buffers are copied from the model, as in torch since 2.0."""
import ctypes
import unittest

import torch
from torch.optim.swa_utils import AveragedModel

import skips
from test_state_dict import Twins

STEPS = 30


class Average(unittest.TestCase):
    def twins(self):
        twins = Twins()
        self.addCleanup(twins.close)
        return twins

    def follow(self, average, model, decay):
        """Makes another step of the model; the average follows."""
        state = {
            name: torch.randn(value.shape, generator=self.draw) if value.dtype.is_floating_point else value + 1
            for name, value in model.torch.state_dict().items()
        }
        model.torch.load_state_dict(state)
        self.assertIsNone(model.load(state)[1])
        self.update(average, model, decay)

    def update(self, average, model, decay):
        average.lib.tern_ema_update(average.run.scope, average.net, model.net, ctypes.c_double(decay))
        average.run.raise_error()
        average.run.end()

    def expect(self, average, model, theirs):
        parameters = dict(theirs.module.named_parameters())
        for name, got in average.state().items():
            if name in parameters:
                self.assertLess(float((got - parameters[name]).abs().max()), 1e-6, name)
            else:
                self.assertTrue(torch.equal(got, model.torch.state_dict()[name]), name)

    def beside(self, decay_at, avg_fn):
        self.draw = torch.Generator().manual_seed(1)
        model, average = self.twins(), self.twins()
        theirs = AveragedModel(model.torch, avg_fn=avg_fn)
        for step in range(STEPS):
            self.follow(average, model, decay_at(step))  # 0 in the first: a copy
            theirs.update_parameters(model.torch)
            self.expect(average, model, theirs)

    def test_moving_average(self):
        for decay in (0.5, 0.9, 0.999):
            self.beside(lambda step: decay if step else 0, lambda a, m, count: torch.lerp(a, m, 1 - decay))

    def test_mean(self):
        """torch's default: the mean of all models so far."""
        self.beside(lambda step: step / (step + 1), None)

    def test_resumed(self):
        self.draw = torch.Generator().manual_seed(2)
        model, whole, resumed = self.twins(), self.twins(), self.twins()
        for step in range(STEPS):
            if step == STEPS // 2:
                self.assertIsNone(resumed.load(whole.state())[1])
            self.follow(whole, model, 0.9 if step else 0)
            if step >= STEPS // 2:
                self.update(resumed, model, 0.9)
        for name, value in whole.state().items():
            self.assertTrue(torch.equal(resumed.state()[name], value), name)


if __name__ == "__main__":
    skips.main()
