"""The activation layers compared with torch.nn's: value, gradient and kind."""
import ctypes
import unittest

import numpy
import torch

import skips
from ops import Module, compare

LAYERS = [
    ("relu", (), torch.nn.ReLU()),
    ("silu", (), torch.nn.SiLU()),
    ("sigmoid", (), torch.nn.Sigmoid()),
    ("tanh", (), torch.nn.Tanh()),
    ("gelu", (ctypes.c_bool(False),), torch.nn.GELU()),
    ("gelu", (ctypes.c_bool(True),), torch.nn.GELU(approximate="tanh")),
    ("leaky_relu", (ctypes.c_double(0.01),), torch.nn.LeakyReLU()),
    ("leaky_relu", (ctypes.c_double(0.3),), torch.nn.LeakyReLU(0.3)),
]


class ActivationTest(unittest.TestCase):
    def beside(self, kind, args, theirs, x, tolerance, device):
        def op(run, a):
            layer = run.layer(f"tern_{kind}_new", *args)
            self.assertEqual(Module.from_address(layer.value).kind, kind.encode())
            return run.forward(layer, a)

        compare(f"{kind} {device}", op, theirs, [x], tolerance, device)

    def test_beside_torch(self):
        rng = numpy.random.default_rng(0)
        for kind, args, theirs in LAYERS:
            x = rng.standard_normal((7, 33)) * 3
            self.beside(kind, args, theirs, x.astype("f"), 2e-6, "cpu")
            self.beside(kind, args, theirs, x, 1e-12, "cpu:reference")


if __name__ == "__main__":
    skips.main()
