"""tern's DeepLabV3 compared with torchvision's: files in both directions, results of both classifiers, gradients,
statistics."""
import ctypes
import unittest
from unittest import mock

import numpy
import torch
import torchvision
from torch import nn
from torchvision.models.segmentation import deeplabv3, deeplabv3_resnet50

import skips
import tern
from light_deeplab import light_deeplab
from twin import Twin


class Deeplabv3Opts(ctypes.Structure):
    """tern_deeplabv3_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("depth", ctypes.c_int),
        ("in_channels", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("channels", ctypes.c_int64 * 4),
        ("small_stem", ctypes.c_bool),
        ("aux", ctypes.c_bool),
        ("output_stride", ctypes.c_int),
        ("rates", ctypes.c_int64 * 3),
        ("head_channels", ctypes.c_int64),
        ("dropout", ctypes.c_double),
        ("aux_dropout", ctypes.c_double),
    ]


def make_deeplab(**fields):
    def make(lib, rng):
        lib.returns(Deeplabv3Opts, "tern_deeplabv3_defaults")
        opts = lib.tern_deeplabv3_defaults()
        for name, value in fields.items():
            if name in ("channels", "rates"):
                getattr(opts, name)[:] = value
            else:
                setattr(opts, name, value)
        return lib.check("tern_deeplabv3_new", ctypes.byref(opts), rng)

    return make


class Both(Twin):
    """With the auxiliary scores."""

    def results(self, x):
        aux = ctypes.c_void_p()
        y = self.lib.tern_deeplabv3_forward(self.net.module, self.net.scope, x, ctypes.byref(aux))
        return [y, aux.value]

    def wanted(self, module, x):
        y = module(x)
        return [y["out"], y["aux"]]


class One(Twin):
    def wanted(self, module, x):
        return [module(x)["out"]]


def without_dropout(module):
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


class DeepLab(unittest.TestCase):
    def beside(self, kind, make, module, shape, **slack):
        twin = kind(self, make, without_dropout(module), seed=5)
        ours = twin.net.state()
        for name, tensor in module.state_dict().items():
            self.assertTrue(torch.equal(torch.tensor(ours[name]), tensor), name)
        twin.exchange()
        twin.compare(shape, **slack)
        return twin

    def test_resnet50(self):
        torch.manual_seed(5)
        with mock.patch.object(nn.Linear, "reset_parameters", lambda self: None):  # of the backbone's fc, which is left out
            module = deeplabv3_resnet50(weights=None, weights_backbone=None, aux_loss=True, num_classes=5)
        self.beside(Both, make_deeplab(classes=5, aux=True, dropout=0, aux_dropout=0), module, (2, 3, 65, 49))

    def test_resnet101_stride_16(self):
        torch.manual_seed(5)
        with mock.patch.object(nn.Linear, "reset_parameters", lambda self: None):
            backbone = torchvision.models.resnet101(replace_stride_with_dilation=[False, False, True])
        module = deeplabv3._deeplabv3_resnet(backbone, 4, None)
        self.beside(One, make_deeplab(depth=101, classes=4, output_stride=16, rates=[12, 24, 36], dropout=0), module, (2, 3, 33, 47))

    def test_light(self):
        """A small stem, basic blocks, output stride 4, and custom rates and widths."""
        torch.manual_seed(5)
        channels, rates = [8, 16, 24, 40], [3, 5, 7]
        out = 20
        module = light_deeplab(channels, [1, 2, 2, 1], [(1, 1), (1, 1), (1, 1), (1, 2)], rates, out, 3)
        make = make_deeplab(depth=18, classes=3, channels=channels, small_stem=True, output_stride=4, rates=rates,
                            head_channels=out, dropout=0)
        twin = self.beside(One, make, module, (3, 3, 37, 50))
        twin.exchange()
        twin.compare((2, 3, 8, 9))

    def refused(self, call, text):
        with self.assertRaises(tern.TernError) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_what_there_is_not(self):
        for fields, text in ((dict(depth=51), "deeplabv3: depth is 51, expected 18, 34, 50, 101 or 152"),
                             (dict(output_stride=2), "deeplabv3: output_stride is 2, expected 4, 8, 16 or 32"),
                             (dict(small_stem=True, output_stride=16), "expected 1, 2, 4 or 8 with a small stem"),
                             (dict(dropout=1.0), "deeplabv3: dropout is 1 and aux_dropout 0.1"),
                             (dict(classes=0), "conv2d: expected at least 1 channel"),
                             (dict(aux=True, classes=0), "conv2d: expected at least 1 channel")):
            self.refused(lambda: Both(self, make_deeplab(**fields), None), text)
        small = dict(depth=18, channels=[4, 4, 4, 4], head_channels=4)
        image = numpy.zeros((2, 3, 32, 32), "float32")
        without = Both(self, make_deeplab(**small), None)
        self.assertEqual(without.results(without.net.tensor(image))[1], None)
        without.lib.check("tern_scope_end", without.net.scope)
        other = Both(self, lambda lib, rng: lib.check("tern_relu_new"), None, lib=without.lib)
        other.results(other.net.tensor(image))
        self.refused(other.net.raise_error, "expected a deeplabv3, got relu")


if __name__ == "__main__":
    skips.main()
