"""tern's 3-D U-Net compared with the same net in PyTorch: files in both directions, results, gradients, running
statistics."""
import ctypes
import unittest

import numpy
import torch
from torch import nn

import skips
import tern
from twin import Twin


class Unet3dOpts(ctypes.Structure):
    """tern_unet3d_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("in_channels", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("levels", ctypes.c_int),
        ("norm", ctypes.c_int),
        ("groups", ctypes.c_int64),
        ("deconv", ctypes.c_bool),
    ]


def make_unet(**fields):
    def make(lib, rng):
        lib.returns(Unet3dOpts, "tern_unet3d_defaults")
        opts = lib.tern_unet3d_defaults()
        for name, value in fields.items():
            setattr(opts, name, value)
        return lib.check("tern_unet3d_new", ctypes.byref(opts), rng)

    return make


class Unet3d(nn.Module):
    def __init__(self, in_channels=1, classes=1, width=32, levels=4, groups=0, deconv=True):
        super().__init__()

        def pair(inside, out):
            norm = (lambda: nn.GroupNorm(groups, out)) if groups else (lambda: nn.BatchNorm3d(out))
            return nn.Sequential(nn.Conv3d(inside, out, 3, padding=1, bias=False), norm(), nn.ReLU(),
                                 nn.Conv3d(out, out, 3, padding=1, bias=False), norm(), nn.ReLU())

        widths = [width << i for i in range(levels)]
        self.encoder = nn.ModuleList(pair(a, b) for a, b in zip([in_channels] + widths, widths))
        self.up = nn.ModuleList()
        self.decoder = nn.ModuleList()
        for below, out in zip(widths[:0:-1], widths[-2::-1]):
            self.up.append(nn.ConvTranspose3d(below, out, 2, 2) if deconv else nn.Upsample(scale_factor=2, mode="trilinear"))
            self.decoder.append(pair(out + (out if deconv else below), out))
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x):
        kept = []
        for i, pair in enumerate(self.encoder):
            x = pair(nn.functional.max_pool3d(x, 2) if i else x)
            kept.append(x)
        for up, pair, skip in zip(self.up, self.decoder, kept[-2::-1]):
            x = pair(torch.cat([skip, up(x)], 1))
        return self.head(x)


class Unets(unittest.TestCase):
    def beside(self, shape, norm=0, **fields):
        torch.manual_seed(5)
        shared = {name: value for name, value in fields.items() if name != "groups"}
        module = Unet3d(groups=fields.get("groups", 8) if norm else 0, **shared)
        twin = Twin(self, make_unet(norm=norm, **fields), module, seed=5)
        ours = twin.net.state()
        for name, tensor in module.state_dict().items():
            self.assertTrue(torch.equal(torch.tensor(ours[name]), tensor), name)
        twin.exchange()
        twin.compare(shape)
        return twin

    def test_default(self):
        self.beside((1, 1, 16, 24, 16))

    def test_group_norm(self):
        self.beside((2, 2, 8, 4, 12), norm=1, groups=3, in_channels=2, classes=6, width=6, levels=3)

    def test_interpolation(self):
        self.beside((2, 1, 8, 8, 4), width=16, levels=3, deconv=False)

    def test_two_levels(self):
        self.beside((2, 3, 2, 6, 10), in_channels=3, classes=2, width=5, levels=2)

    def refused(self, call, text):
        with self.assertRaises(tern.TernError) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_what_there_is_not(self):
        for fields, text in ((dict(levels=7), "unet3d: levels is 7, expected 2 to 6"), (dict(levels=1), "unet3d: levels is 1"),
                             (dict(norm=2), "unet3d: norm is 2"), (dict(width=0), "expected at least 1 channel"),
                             (dict(norm=1, groups=5), "group_norm: expected at least 1 group")):
            self.refused(lambda: Twin(self, make_unet(**fields), None), text)
        net = Twin(self, make_unet(width=4), None).net
        net.forward(numpy.zeros((1, 1, 16, 20, 16), "float32"))
        self.refused(net.raise_error, "unet3d: expected (N, C, D, H, W) with sizes divisible by 8, got input (1, 1, 16, 20, 16)")
        net.lib.tern_scope_end(net.scope, None)
        net.forward(numpy.zeros((1, 16, 16), "float32"))
        self.refused(net.raise_error, "got input (1, 16, 16)")


if __name__ == "__main__":
    skips.main()
