"""tern's vision transformer compared with torchvision's: files in both directions, initial weights, results, gradients, steps."""
import ctypes
import unittest
from unittest import mock

import numpy
import torch
import torchvision
from torchvision.models.vision_transformer import VisionTransformer

import skips
import tern
from nets import Net, library
from twin import Twin


class Opts(ctypes.Structure):
    """tern_vit_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("in_channels", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("image_size", ctypes.c_int64),
        ("patch_size", ctypes.c_int64),
        ("layers", ctypes.c_int),
        ("heads", ctypes.c_int64),
        ("hidden_dim", ctypes.c_int64),
        ("mlp_dim", ctypes.c_int64),
        ("dropout", ctypes.c_double),
        ("attention_dropout", ctypes.c_double),
        ("representation_size", ctypes.c_int64),
    ]


NAMES = dict(layers="num_layers", heads="num_heads", classes="num_classes")
SMALL = dict(image_size=24, patch_size=8, layers=2, heads=3, hidden_dim=24, mlp_dim=40, classes=5)


def make_vit(fields, preset=None):
    def make(lib, rng):
        lib.returns(Opts, "tern_vit_defaults", "tern_vit_preset")
        lib.returns(ctypes.c_void_p, "tern_vit_new")
        opts = lib.tern_vit_preset(preset.encode()) if preset else lib.tern_vit_defaults()
        for name, value in fields.items():
            setattr(opts, name, value)
        return lib.check("tern_vit_new", ctypes.byref(opts), rng)

    return make


def torch_vit(fields, seed):
    torch.manual_seed(seed)
    return VisionTransformer(**{NAMES.get(name, name): value for name, value in fields.items()})


class Vit(unittest.TestCase):
    def twin(self, fields, preset=None, whole=None):
        twin = Twin(self, make_vit(fields, preset), torch_vit(whole or fields, 5), seed=5)
        ours, theirs = twin.net.state(), twin.module.state_dict()
        self.assertEqual(list(ours), list(theirs))
        for name, tensor in theirs.items():
            self.assertTrue(torch.equal(torch.tensor(ours[name]), tensor), name)
        return twin

    def redrawn(self, twin):
        """Other weights: those of the scores begin with 0, which hides all before them."""
        for p in twin.module.parameters():
            p.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(p.numel()))
        twin.exchange()
        return twin

    def test_results_and_gradients(self):
        for fields in (SMALL, dict(SMALL, image_size=20, patch_size=4, representation_size=7), dict(SMALL, heads=1, layers=1, patch_size=24)):
            self.redrawn(self.twin(fields)).compare((3, 3, fields["image_size"], fields["image_size"]))

    def test_dropout(self):
        """None in evaluation. In training some in each place: results differ from call to call."""
        for name in ("dropout", "attention_dropout"):
            twin = self.redrawn(self.twin(dict(SMALL, **{name: 0.4})))
            x = numpy.random.default_rng(0).standard_normal((2, 3, 24, 24)).astype("f")
            self.assertNotEqual(twin.result(x)[0][0].tobytes(), twin.result(x)[0][0].tobytes())
            twin.lib.tern_eval(twin.net.module)
            twin.module.eval()
            (want, _, _), (f32, _, _) = (twin.torch_step(dtype, x, None) for dtype in (torch.float64, torch.float32))
            twin.close(name, twin.result(x)[0][0], want[0], f32[0], 8)

    def test_presets(self):
        """vit_tiny as a whole; of the others the sizes."""
        whole = dict(image_size=32, patch_size=16, layers=12, heads=3, hidden_dim=192, mlp_dim=768, classes=7)
        self.redrawn(self.twin(dict(image_size=32, classes=7), "vit_tiny", whole)).compare((2, 3, 32, 32))
        lib = library()
        lib.returns(Opts, "tern_vit_preset")


        for name in ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"):
            opts, seen = lib.tern_vit_preset(name.encode()), {}
            with mock.patch.object(torchvision.models.vision_transformer, "VisionTransformer", lambda **fields: seen.update(fields)):
                getattr(torchvision.models, name)()
            self.assertEqual({field: getattr(opts, field) for field in ("patch_size", "layers", "heads", "hidden_dim", "mlp_dim", "image_size")},
                             {ours: seen[theirs] for ours, theirs in (("patch_size",) * 2, ("layers", "num_layers"), ("heads", "num_heads"),
                                                                      ("hidden_dim",) * 2, ("mlp_dim",) * 2, ("image_size",) * 2)}, name)

    def test_steps(self):
        """Twenty steps of SGD from the initial weights have torch's losses."""
        twin = Twin(self, make_vit(SMALL), torch_vit(SMALL, 5), seed=5)
        net = Net(twin.lib, lambda rng: make_vit(SMALL)(twin.lib, rng), seed=5, threads=2, lr=0.05, momentum=0.9)
        self.addCleanup(net.close)
        module = twin.module.double()
        optim = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
        rng = numpy.random.default_rng(2)
        y = rng.integers(0, 5, 8)
        losses = []
        for _ in range(20):
            x = (rng.standard_normal((8, 3, 24, 24)) + y[:, None, None, None] / 2).astype("f")
            want = torch.nn.functional.cross_entropy(module(torch.tensor(x).double()), torch.tensor(y))
            optim.zero_grad()
            want.backward()
            optim.step()
            losses.append(want.item())
            self.assertLess(abs(net.step(x, y) - want.item()), 1e-4 * want.item())
        self.assertLess(losses[-1], 0.8 * losses[0])

    def refused(self, call, text):
        with self.assertRaises(tern.TernError) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_refused(self):
        make = lambda **fields: Twin(self, make_vit(dict(SMALL, **fields)), None)
        for fields, text in (
            (dict(layers=0), "vit: expected at least 1 layer, got 0"),
            (dict(image_size=25), "vit: expected an image_size that is a multiple of patch_size, got 25 and 8"),
            (dict(patch_size=0), "got 24 and 0"),
            (dict(heads=5), "features divisible by the heads; got 5 heads, 24 features"),
            (dict(dropout=1.5), "vit: expected a dropout in [0, 1], got 1.5"),
            (dict(attention_dropout=-1), "multihead_attention: expected a dropout in [0, 1], got -1"),
            (dict(representation_size=-1), "vit: representation_size is -1, expected at least 0"),
            (dict(classes=0), "linear: expected at least 1 feature in and out, got 24 and 0"),
            (dict(mlp_dim=0), "linear: expected at least 1 feature in and out, got 24 and 0"),
        ):
            self.refused(lambda: make(**fields), text)
        self.refused(lambda: Twin(self, make_vit({}, "vit_huge"), None), "vit: expected at least 1 layer, got 0")
        for shape in ((2, 3, 24, 16), (2, 1, 24, 24), (3, 24, 24)):
            twin = make()
            twin.results(twin.net.tensor(numpy.zeros(shape, "f")))
            self.refused(twin.net.raise_error, "vit: expected (N, 3, 24, 24), got")


if __name__ == "__main__":
    skips.main()
