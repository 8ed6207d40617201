"""tern's models compared with the same nets in plain PyTorch: torchvision's names, shapes and order, bit for bit the
same initial weights, and the same values in training and evaluation."""
import ctypes
import unittest

import numpy
import torch
from torch import nn

import skips
from nets import Net, library


class BasicBlock(nn.Module):
    """As in torchvision: the stage makes the downsample before the block, and it is registered last."""

    def __init__(self, inside, out, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = downsample

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet(nn.Module):
    """torchvision.models.ResNet with basic blocks; `small_stem`: 3x3, stride 1 and no max pool."""

    def __init__(self, in_channels=3, classes=1000, blocks=(2, 2, 2, 2), channels=(64, 128, 256, 512), small_stem=False, kaiming=True):
        super().__init__()
        self.inside = channels[0]
        stem = dict(kernel_size=3, padding=1) if small_stem else dict(kernel_size=7, stride=2, padding=3)
        self.conv1 = nn.Conv2d(in_channels, channels[0], bias=False, **stem)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        self.stages = len(blocks)
        for i, (count, out) in enumerate(zip(blocks, channels)):
            setattr(self, f"layer{i + 1}", self.stage(out, count, 2 if i else 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels[-1], classes)
        for module in self.modules():
            if kaiming and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stage(self, out, count, stride):
        downsample = None
        if stride != 1 or self.inside != out:
            downsample = nn.Sequential(nn.Conv2d(self.inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        layers = [BasicBlock(self.inside, out, stride, downsample)]
        self.inside = out
        layers += [BasicBlock(out, out, 1, None) for _ in range(1, count)]
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def mlp(sizes):
    layers = []
    for inside, out in zip(sizes, sizes[1:]):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(inside, out))
    return nn.Sequential(*layers)


class Models(unittest.TestCase):
    def setUp(self):
        self.lib = library()

    def forward(self, net, x):
        y = ctypes.c_void_p(self.lib.tern_forward(net.module, net.scope, net.tensor(x)))
        net.raise_error()
        value = net.read(y.value)
        self.lib.check("tern_scope_end", net.scope)
        return value

    def assert_same_state(self, net, module):
        ours, theirs = net.state(), module.state_dict()
        self.assertEqual(list(ours), list(theirs))
        parameters = [name for name, _ in module.named_parameters()]
        self.assertEqual([e.name.decode() for e in net.entries() if not e.is_buffer], parameters)
        for name, tensor in theirs.items():
            want = tensor.numpy()
            self.assertEqual((ours[name].shape, ours[name].dtype), (want.shape, want.dtype), name)
            self.assertTrue(numpy.array_equal(ours[name], want), name)

    def assert_close(self, got, want, tolerance):
        want = want.detach().numpy()
        self.assertEqual(got.shape, want.shape)
        self.assertLessEqual(float(numpy.abs(got - want).max()), tolerance * float(numpy.abs(want).max()))

    def beside(self, net, module, shape):
        """Compares the state, then a forward in training, which updates the running statistics, then one in
        evaluation with them."""
        x = torch.randn(shape, generator=torch.Generator().manual_seed(9))
        self.assert_same_state(net, module)
        self.assert_close(self.forward(net, x.numpy()), module(x), 1e-4)
        for name, tensor in module.state_dict().items():
            if "running" in name:
                self.assert_close(net.state()[name], tensor, 1e-4)
        self.lib.tern_eval(net.module)
        module.eval()
        self.assert_close(self.forward(net, x.numpy()), module(x), 1e-4)
        self.lib.tern_train(net.module)
        net.close()

    def test_mlp(self):
        for sizes in ([784, 128, 10], [5, 3], [17, 33, 65, 4]):
            torch.manual_seed(21)
            self.beside(Net.mlp(self.lib, sizes, seed=21), mlp(sizes), (6, sizes[0]))

    def test_basic_block(self):
        for inside, out, stride in ((16, 16, 1), (16, 32, 1), (5, 7, 2)):
            torch.manual_seed(4)
            downsample = None
            if stride != 1 or inside != out:
                downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            module = BasicBlock(inside, out, stride, downsample)
            sizes = [ctypes.c_int64(n) for n in (inside, out, stride)]
            net = Net(self.lib, lambda rng: self.lib.check("tern_basic_block_new", *sizes, rng), seed=4)
            self.beside(net, module, (3, inside, 8, 8))

    def test_resnet18(self):
        torch.manual_seed(2)
        net = Net.resnet(self.lib, {}, seed=2, threads=2)
        self.assertEqual(self.lib.tern_module_parameter_count(net.module), 62)
        self.assertEqual(self.lib.tern_module_element_count(net.module), 11689512)  # from torchvision's documentation
        self.beside(net, ResNet(), (2, 3, 64, 64))

    def test_small_stem(self):
        torch.manual_seed(3)
        net = Net.resnet(self.lib, dict(small_stem=True, classes=10), seed=3, threads=2)
        self.beside(net, ResNet(small_stem=True, classes=10), (2, 3, 16, 16))

    def test_uneven_stages(self):
        fields = dict(in_channels=1, classes=7, blocks=[1, 3, 1], channels=[8, 8, 24])
        for kaiming in (True, False):
            torch.manual_seed(4)
            net = Net.resnet(self.lib, dict(fields, kaiming=kaiming), seed=4)
            self.beside(net, ResNet(**fields, kaiming=kaiming), (3, 1, 40, 36))

    def refused(self, make, text):
        with self.assertRaises(Exception) as caught:
            make()
        self.assertIn(text, str(caught.exception))

    def test_nets_that_cannot_be(self):
        lib = self.lib
        self.refused(lambda: Net.mlp(lib, [5]), "mlp: expected at least 2 sizes, got 1")
        self.refused(lambda: Net.mlp(lib, [5, 0, 3]), "linear: expected at least 1 feature in and out, got 5 and 0")
        self.refused(lambda: Net.resnet(lib, dict(stages=5)), "resnet: stages is 5, expected 1 to 4")
        self.refused(lambda: Net.resnet(lib, dict(blocks=[1, 0])), "resnet: stage 2 has 0 blocks of 128 channels, expected at least 1")
        self.refused(lambda: Net.resnet(lib, dict(classes=-1)), "linear: expected at least 1 feature in and out, got 512 and -1")


if __name__ == "__main__":
    skips.main()
