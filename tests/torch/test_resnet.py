"""tern's residual nets compared with torchvision's: files in both directions, results, gradients, running statistics."""
import ctypes
import unittest

import torch
import torchvision

import skips
import tern
from twin import Twin

MODELS = {18: torchvision.models.resnet18, 34: torchvision.models.resnet34, 50: torchvision.models.resnet50,
          101: torchvision.models.resnet101}


def make_preset(depth, **fields):
    def make(lib, rng):
        opts = lib.tern_resnet_preset(depth)
        for name, value in fields.items():
            if name == "dilate":
                opts.dilate[:] = value
            else:
                setattr(opts, name, value)
        return lib.check("tern_resnet_new", ctypes.byref(opts), rng)

    return make


class Resnets(unittest.TestCase):
    def same_initial_weights(self, twin):
        """From a generator of the same seed, bit for bit."""
        ours = twin.net.state()
        self.assertEqual(list(ours), list(twin.module.state_dict()))
        for name, tensor in twin.module.state_dict().items():
            self.assertTrue(torch.equal(torch.tensor(ours[name]), tensor), name)

    def beside(self, depth, shape, classes=1000, replace=None, **slack):
        torch.manual_seed(5)
        module = MODELS[depth](num_classes=classes, replace_stride_with_dilation=replace)
        dilate = [False, *(replace or [False] * 3)]
        twin = Twin(self, make_preset(depth, classes=classes, dilate=dilate), module, seed=5)
        self.same_initial_weights(twin)
        torch.manual_seed(6)
        for p in module.parameters():
            if p.ndim == 4:  # other numbers, as if drawn by fan in
                p.data.mul_(-((p.shape[0] / p.shape[1]) ** 0.5))
            else:
                torch.nn.init.normal_(p, 1 if p.ndim == 1 else 0, 0.1 if p.ndim == 1 else (2 / p[0].numel()) ** 0.5)
        twin.exchange()
        twin.compare(shape, **slack)
        return twin

    def test_resnet18(self):
        self.beside(18, (2, 3, 65, 47))

    def test_resnet34(self):
        self.beside(34, (3, 3, 64, 64), classes=10)

    def test_resnet50(self):
        self.beside(50, (4, 3, 64, 64))

    def test_resnet101(self):
        self.beside(101, (4, 3, 64, 64), classes=5)

    def test_dilated(self):
        self.beside(50, (2, 3, 49, 65), classes=7, replace=[False, True, True])
        self.beside(50, (2, 3, 40, 32), classes=7, replace=[True, False, True])

    def test_what_there_is_not(self):
        for depth, fields, text in ((19, {}, "resnet: stages is 0, expected 1 to 4"),
                                    (50, dict(dilate=[True, False, False, False]), "resnet: dilate is set for stage 1")):
            with self.assertRaises(tern.TernError) as caught:
                Twin(self, make_preset(depth, **fields), None)
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    skips.main()
