"""tern_ema_update compared with torch.optim.swa_utils.AveragedModel, as a moving average and as SWA's plain mean; and
an average that is saved and resumed. Buffers are copied from the model, as in torch since 2.0. tern_update_bn compared with
update_bn."""
import ctypes
import unittest

import torch
from torch.optim.swa_utils import AveragedModel, update_bn

import datasets
import skips
import tern
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


class LoaderOpts(ctypes.Structure):
    """The first member of tern_loader_opts; the others keep their defaults."""

    _fields_ = [("size", ctypes.c_size_t), ("batch_size", ctypes.c_int64)]


class Statistics(unittest.TestCase):
    """Batch norms' statistics of the batches of a loader, the last of which is smaller."""

    BATCH = 4

    def setUp(self):
        draw = torch.Generator().manual_seed(3)
        self.samples = torch.randn(3 * self.BATCH + 3, 5, generator=draw) * 2 + 3
        self.batches = list(self.samples.split(self.BATCH))
        self.twins = Twins()
        self.addCleanup(self.twins.close)
        state = {name: torch.randn(value.shape, generator=draw).abs() if value.dtype.is_floating_point else value + 9
                 for name, value in self.twins.torch.state_dict().items()}
        state["1.running_mean"][0] = float("nan")  # what was there before does not count
        self.twins.torch.load_state_dict(state)
        self.assertIsNone(self.twins.load(state)[1])
        self.lib, self.run_ = self.twins.lib, self.twins.run

    def update(self, samples):
        data = datasets.over(samples.numpy())
        loader = ctypes.c_void_p(self.lib.check("tern_loader_new", ctypes.byref(data), ctypes.byref(LoaderOpts(ctypes.sizeof(LoaderOpts), self.BATCH))))
        try:
            self.lib.check("tern_update_bn", self.twins.net, self.run_.scope, loader)
        finally:
            self.lib.tern_loader_free(loader)

    def compare(self):
        for name, want in self.twins.torch.state_dict().items():
            got = self.twins.state()[name]
            if "running" in name:
                self.assertTrue(torch.allclose(got, want, rtol=1e-5, atol=1e-5), name)
            else:
                self.assertTrue(torch.equal(got, want), name)

    def test_mean_of_all_batches(self):
        for is_training in (True, False):
            with self.subTest(training=is_training):
                self.twins.torch.train(is_training)
                getattr(self.lib, "tern_train" if is_training else "tern_eval")(self.twins.net)
                update_bn(self.batches, self.twins.torch)
                self.update(self.samples)
                self.compare()
                # The mode is the former one, and in training the momentum.
                x = self.run_.constant(self.batches[0].numpy())
                self.run_.forward(self.twins.net, x)
                self.run_.end()
                with torch.no_grad():
                    self.twins.torch(self.batches[0])
                self.compare()

    def test_a_failed_pass_leaves_the_mode(self):
        self.lib.tern_eval(self.twins.net)
        with self.assertRaisesRegex(tern.TernError, "input is"):
            self.update(torch.zeros(self.BATCH, 6))
        before = self.twins.state()
        self.run_.forward(self.twins.net, self.run_.constant(self.batches[0].numpy()))
        self.run_.end()
        self.assertTrue(torch.equal(before["1.running_mean"], self.twins.state()["1.running_mean"]))


if __name__ == "__main__":
    skips.main()
