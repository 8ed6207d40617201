"""20 training steps beside PyTorch: same seed, same data, an MLP and a small residual net with batch norm."""
import importlib
import os
import sys
import unittest

import numpy
import torch
import torch.nn.functional as F

from nets import Net, library

STEPS = 20


def peer():
    """The demo's net in PyTorch, as the benchmark has it."""
    sys.path.append(os.path.join(os.environ["TERN_SOURCE"], "bench", "peers"))
    return importlib.import_module("fashion")


def batches(shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        yield torch.randn(shape, generator=generator), torch.randint(0, 10, (shape[0],), generator=generator)


class Train(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.lib = library()

    def assert_same_state(self, net, module, tolerance):
        ours, theirs = net.state(), module.state_dict()
        self.assertEqual(list(ours), list(theirs))
        for name, tensor in theirs.items():
            want = tensor.numpy()
            self.assertEqual(ours[name].shape, want.shape, name)
            if tolerance == 0:
                self.assertTrue(numpy.array_equal(ours[name], want), name)
            else:
                scale = max(1.0, float(numpy.abs(want).max()))
                self.assertLessEqual(float(numpy.abs(ours[name] - want).max()), tolerance * scale, name)

    def train_beside(self, net, module, shape, **sgd):
        optimizer = torch.optim.SGD(module.parameters(), **sgd)
        self.assert_same_state(net, module, 0)
        for step, (x, y) in enumerate(batches(shape)):
            ours = net.step(x.numpy(), y.numpy())
            theirs = F.cross_entropy(module(x), y)
            optimizer.zero_grad()
            theirs.backward()
            optimizer.step()
            self.assertLessEqual(abs(ours - theirs.item()), 1e-4 * abs(theirs.item()), f"step {step}")
        self.assert_same_state(net, module, 1e-4)

    def test_mlp(self):
        sgd = dict(lr=0.05, momentum=0.9)
        torch.manual_seed(3)
        layers = torch.nn.Linear(50, 33), torch.nn.ReLU(), torch.nn.Linear(33, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10)
        net = Net.mlp(self.lib, [50, 33, 20, 10], seed=3, **sgd)
        self.train_beside(net, torch.nn.Sequential(*layers), (31, 50), **sgd)
        net.close()

    def test_small_resnet(self):
        # A rate at which the net itself does not amplify rounding: at 0.05 PyTorch in f32 is 1e-3 away from itself in f64.
        sgd = dict(lr=0.0005, momentum=0.9, nesterov=True, weight_decay=5e-4)
        fields = dict(in_channels=1, blocks=[1, 1, 1], channels=[16, 32, 64], small_stem=True, kaiming=False, classes=10)
        torch.manual_seed(0)
        net = Net.resnet(self.lib, fields, seed=0, **sgd)
        self.train_beside(net, peer().Net(), (32, 1, 28, 28), **sgd)
        net.close()


if __name__ == "__main__":
    unittest.main()
