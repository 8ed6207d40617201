"""Training in autocast regions beside torch.autocast: 20 steps of four nets, and two epochs on a part of Fashion-MNIST.

How far may two computations be apart that both round to bf16? Each net is trained by PyTorch in f32, too: how far its bf16 is
from that is what rounding does to this net. Where tern and PyTorch round at the same places they differ only where a sum in
another order falls on the other side of a step, which is a small part of it. Where they do not (tern adds a residual before it
rounds, and PyTorch after), the two roundings are independent, and the difference of two independent errors is sqrt(2) of one."""
import copy
import ctypes
import gzip
import math
import os
import unittest

import numpy
import torch
import torch.nn.functional as F

import skips
from half import torch_sums_in_f32
from nets import Net, library
from ops import BF16
from test_train import batches, peer

FOLDER = "/usr/share/datasets/fashion-mnist"
HALF_STEP = 2.0**-8  # the relative rounding error of a bf16 number


class LayerNorm(torch.nn.LayerNorm):
    """PyTorch 1.13 refuses f32 parameters with a bf16 input; later versions do this."""

    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


def layer(name, module, *args):
    """The layer that tern's _new function makes with these arguments, and PyTorch's module."""
    return (lambda lib, rng: lib.check(f"tern_{name}_new", *args, *([rng] if rng and name in DRAWN else []))), module


DRAWN = "linear", "conv2d"  # whose parameters are random
size = ctypes.c_int64
linear = lambda i, o: layer("linear", torch.nn.Linear(i, o), size(i), size(o), None)
conv = lambda i, o, k: layer("conv2d", torch.nn.Conv2d(i, o, k), size(i), size(o), size(k), size(k), None)
norm = lambda c: layer("batch_norm2d", torch.nn.BatchNorm2d(c), size(c), None)
layer_norm = lambda n: layer("layer_norm", LayerNorm(n), 1, (size * 1)(n), None)
pool = lambda: layer("max_pool2d", torch.nn.MaxPool2d(2), size(2), size(2), None)
relu = lambda: layer("relu", torch.nn.ReLU())
gelu = lambda: layer("gelu", torch.nn.GELU(), False)
flatten = lambda: layer("flatten", torch.nn.Flatten())

# For each net: the input's shape, its layers, and the allowed difference, in multiples of the rounding's effect.
NETS = {
    "mlp": ((31, 50), lambda: [linear(50, 33), relu(), linear(33, 20), relu(), linear(20, 10)], 0.25),
    "convolutions": ((16, 3, 16, 16), lambda: [conv(3, 16, 3), norm(16), relu(), pool(), conv(16, 32, 3), norm(32), relu(), flatten(),
                                               linear(800, 10)], math.sqrt(2)),
    "layer norm": ((31, 50), lambda: [linear(50, 48), layer_norm(48), gelu(), linear(48, 48), layer_norm(48), gelu(), linear(48, 10)], 0.25),
}


def small_net():
    return [conv(1, 8, 5), relu(), pool(), conv(8, 16, 5), relu(), pool(), flatten(), linear(256, 10)]


def sequential(lib, layers, **sgd):
    """The layers in tern, initialised from the seed of PyTorch's, and in PyTorch."""

    def make(rng):
        net = ctypes.c_void_p(lib.check("tern_sequential_new"))
        for new, _ in layers():
            lib.check("tern_sequential_add", net, ctypes.c_void_p(new(lib, rng)))
        return net.value

    torch.manual_seed(3)
    module = torch.nn.Sequential(*[theirs for _, theirs in layers()])
    return Net(lib, make, seed=3, **sgd), module


class Theirs:
    """A PyTorch net in training, in bf16 or in f32."""

    def __init__(self, module, half, **sgd):
        self.module, self.half = module, half
        self.optimizer = torch.optim.SGD(module.parameters(), **sgd)

    def step(self, x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = F.cross_entropy(self.module(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state(self):
        return {name: t.numpy() for name, t in self.module.state_dict().items()}


def learned(state, start):
    """The changes by training, as one vector."""
    return numpy.concatenate([(state[name].astype("d") - start[name].astype("d")).reshape(-1) for name in start if state[name].dtype == "f"])


def fashion(kind, count):
    """The first images and labels of Debian's package."""
    def read(what, header):
        with gzip.open(f"{FOLDER}/{kind}-{what}-ubyte.gz") as file:
            return numpy.frombuffer(file.read(), "u1", offset=header)
    images = read("images-idx3", 16)[: count * 784].reshape(count, 1, 28, 28)
    return torch.tensor((images / 255 - 0.2860).astype("f") / numpy.float32(0.3530)), torch.tensor(read("labels-idx1", 8)[:count].astype("q"))


@unittest.skipUnless(torch_sums_in_f32(), "PyTorch sums products of bf16 in bf16 on this CPU")
class Train(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.lib = library()

    def trio(self, net, module, data, **sgd):
        """tern and PyTorch in bf16, PyTorch in f32, all trained on the same data: the changes of each, and their
        losses."""
        net.region = BF16
        half, full = Theirs(module, True, **sgd), Theirs(copy.deepcopy(module), False, **sgd)
        start = {name: array.copy() for name, array in half.state().items()}
        for name, array in net.state().items():
            self.assertTrue(numpy.array_equal(array, start[name]), name)
        losses = [(net.step(x.numpy(), y.numpy()), half.step(x, y), full.step(x, y)) for x, y in data]
        return [learned(s.state(), start) for s in (net, half, full)], losses

    def assert_losses(self, losses):
        """Only the scores are rounded, by half a step."""
        for step, (ours, theirs, _) in enumerate(losses):
            self.assertLessEqual(abs(ours - theirs), HALF_STEP * theirs, f"step {step}")

    def assert_near(self, what, ours, theirs, exact, limit):
        """ours - theirs is at most `limit` times the effect of rounding on theirs."""
        apart, rounding, own = (numpy.linalg.norm(d) for d in (ours - theirs, theirs - exact, ours - exact))
        self.assertGreater(rounding, 1e-4 * numpy.linalg.norm(exact), f"{what}: PyTorch has not rounded")
        self.assertGreater(own, 0.25 * rounding, f"{what}: tern has not rounded")
        self.assertLessEqual(apart, limit * rounding, f"{what}: {apart / rounding:.3f} of what rounding does")

    def test_nets(self):
        for name, (shape, layers, limit) in NETS.items():
            with self.subTest(net=name):
                sgd = dict(lr=0.01, momentum=0.9)
                net, module = sequential(self.lib, layers, **sgd)
                states, losses = self.trio(net, module, batches(shape), **sgd)
                self.assert_losses(losses)
                self.assert_near(name, *states, limit)
                net.close()

    def test_resnet(self):
        sgd = dict(lr=0.005, momentum=0.9)
        fields = dict(in_channels=1, blocks=[1, 1, 1], channels=[16, 32, 64], small_stem=True, kaiming=False, classes=10)
        torch.manual_seed(0)
        net, module = Net.resnet(self.lib, fields, seed=0, **sgd), peer().Net()
        states, losses = self.trio(net, module, batches((32, 1, 28, 28)), **sgd)
        self.assert_losses(losses)
        self.assert_near("resnet", *states, math.sqrt(2))
        net.close()

    @unittest.skipUnless(os.path.isdir(FOLDER), "no Fashion-MNIST (the package dataset-fashion-mnist)")
    def test_two_epochs(self):
        """The mean loss of images that were not learned from: by then less than a step of bf16 apart, relative."""
        sgd = dict(lr=0.005, momentum=0.9)
        net, module = sequential(self.lib, small_net, **sgd)
        (x, y), (new, label) = fashion("train", 2048), fashion("t10k", 500)
        order = [torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(32) for epoch in (1, 2)]
        states, _ = self.trio(net, module, [(x[rows], y[rows]) for epoch in order for rows in epoch], **sgd)
        net.lib.tern_eval(net.module)
        ours, theirs = torch.tensor(net.read(net.forward(new.numpy()))), module.eval()(new).detach()
        ours, theirs = F.cross_entropy(ours, label).item(), F.cross_entropy(theirs, label).item()
        self.assertLess(theirs, 0.8)
        self.assertLessEqual(abs(ours - theirs), 2 * HALF_STEP * theirs)
        self.assert_near("weights", *states, 2)
        net.close()


if __name__ == "__main__":
    skips.main()
