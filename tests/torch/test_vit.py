"""tern's vision transformer compared with torchvision's: files in both directions, initial weights, results, gradients, steps; transformers' folders."""
import ctypes
import json
import os
import tempfile
import unittest
from unittest import mock

import numpy
import torch
import torchvision
from torchvision.models.vision_transformer import VisionTransformer

import skips
import tern
import safetensors_file
from language_models import SaveOpts
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
        ("eps", ctypes.c_double),
    ]


NAMES = dict(layers="num_layers", heads="num_heads", classes="num_classes")
SMALL = dict(image_size=24, patch_size=8, layers=2, heads=3, hidden_dim=24, mlp_dim=40, classes=5)


def make_vit(fields, preset=None):
    def make(lib, rng):
        lib.returns(Opts, "tern_vit_defaults", "tern_vit_preset")
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
            twin.close(name, twin.result(x)[0][0], want[0], lambda: f32[0], 8)

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


def transformers_state(state):
    """torchvision's state dict under the names of transformers' ViTForImageClassification."""
    renamed = {}
    for name, value in state.items():
        for ours, theirs in (("class_token", "vit.embeddings.cls_token"), ("conv_proj", "vit.embeddings.patch_embeddings.projection"),
                             ("encoder.pos_embedding", "vit.embeddings.position_embeddings"), ("encoder.layers.encoder_layer_", "vit.encoder.layer."),
                             ("encoder.ln.", "vit.layernorm."), ("heads.head", "classifier"), ("ln_1", "layernorm_before"), ("ln_2", "layernorm_after"),
                             ("self_attention.out_proj", "attention.output.dense"), ("mlp.0", "intermediate.dense"), ("mlp.3", "output.dense")):
            name = name.replace(ours, theirs)
        if "in_proj_" in name:
            for part, rows in zip(("query", "key", "value"), value.chunk(3)):
                renamed[name.replace("self_attention.in_proj_", f"attention.attention.{part}.")] = rows.clone()
        else:
            renamed[name] = value
    return renamed


class Folders(unittest.TestCase):
    """Folders of transformers' ViTForImageClassification; tests/torch/test_pretrained_newest.py has transformers itself."""

    FIELDS = dict(SMALL, layers=12, dropout=0.1, attention_dropout=0.2)

    def setUp(self):
        self.lib = library()
        self.lib.returns(SaveOpts, "tern_pretrained_save_defaults")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.state = torch_vit(self.FIELDS, 5).state_dict()
        for value in self.state.values():
            value.normal_()
        self.config = dict(architectures=["ViTForImageClassification"], model_type="vit", id2label={str(i): f"LABEL_{i}" for i in range(5)}, num_channels=3,
                           image_size=24, patch_size=8, num_hidden_layers=12, num_attention_heads=3, hidden_size=24, intermediate_size=40,
                           hidden_act="gelu", layer_norm_eps=1e-3, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2, qkv_bias=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, change=lambda state: None, shards=1, **config):
        """A folder as transformers writes it, in shards that part each layer's query, key and value."""
        state = transformers_state(self.state)
        change(state)
        names = list(state)
        files = ["model.safetensors"] if shards == 1 else [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
        parts = [names[i::shards] for i in range(shards)]
        for name in os.listdir(self.folder):
            os.remove(self.path(name))
        for file, part in zip(files, parts):
            safetensors_file.write(self.path(file), {name: state[name] for name in part}, {"format": "pt"})
        if shards > 1:
            with open(self.path("model.safetensors.index.json"), "w", encoding="utf-8") as file:
                json.dump({"weight_map": {name: where for where, part in zip(files, parts) for name in part}}, file)
        with open(self.path("config.json"), "w", encoding="utf-8") as file:
            json.dump({name: value for name, value in {**self.config, **config}.items() if value is not None}, file)

    def open(self):
        net = Net(self.lib, lambda rng: self.lib.check("tern_pretrained_open", self.folder.encode(), None))
        self.addCleanup(net.close)
        return net

    def save(self, net, most):
        opts = self.lib.tern_pretrained_save_defaults()
        opts.max_shard_bytes = most
        self.lib.check("tern_pretrained_save", net.module, self.folder.encode(), ctypes.byref(opts))

    def result(self, net, x):
        self.lib.tern_eval(net.module)
        y = net.forward(x)
        net.raise_error()
        value = net.read(y)
        self.lib.check("tern_scope_end", net.scope)
        return value

    def same(self, net):
        ours = net.state()
        self.assertEqual(list(ours), list(self.state))
        for name, value in self.state.items():
            self.assertTrue(numpy.array_equal(ours[name], value.numpy()), name)

    def test_open(self):
        """In one file or in shards, 16-bit weights, a pooler that is not needed; the config's numbers count."""
        x = numpy.random.default_rng(1).standard_normal((2, 3, 24, 24)).astype("f")
        module = VisionTransformer(24, 8, 12, 3, 24, 40, num_classes=5, norm_layer=lambda size: torch.nn.LayerNorm(size, 1e-3)).eval()
        module.load_state_dict(self.state)
        pooler = lambda state: state.update({"vit.pooler.dense.weight": torch.ones(24, 24), "vit.pooler.dense.bias": torch.ones(24)})
        for change, shards in ((lambda state: None, 1), (pooler, 1), (lambda state: None, 2), (pooler, 5)):
            self.write(change, shards)
            net = self.open()
            self.same(net)
            want = module(torch.tensor(x)).detach().numpy()
            numpy.testing.assert_allclose(self.result(net, x), want, rtol=0, atol=1e-5 * abs(want).max())
        self.write(lambda state: state.update({name: value.bfloat16() for name, value in state.items()}))
        self.state = {name: value.bfloat16().float() for name, value in self.state.items()}
        self.same(self.open())

    def test_save(self):
        """The names, the rows of query, key and value, and the config are transformers'; shards open again."""
        self.write()
        net = self.open()
        for most in (5 * 10**9, 9000):
            self.save(net, most)
            files = [name for name in os.listdir(self.folder) if name.endswith(".safetensors")]
            self.assertEqual(len(files) == 1, most > 9000)
            found = {}
            for name in files:
                found.update(safetensors_file.read(self.path(name))[0])
            want = transformers_state(self.state)
            self.assertEqual(set(found), set(want))
            for name, value in want.items():
                self.assertTrue(torch.equal(found[name], value), name)
            with open(self.path("config.json"), encoding="utf-8") as file:
                config = json.load(file)
            self.assertEqual({name: config[name] for name in self.config}, self.config)
            self.same(self.open())

    def refused(self, text):
        with self.assertRaises(tern.TernError) as caught:
            self.open()
        self.assertIn(text, str(caught.exception))

    def test_what_there_is_not(self):
        for name in ("image_size", "patch_size", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"):
            self.write(**{name: None})
            self.refused(f'"{name}" is missing')
        for config, text in ((dict(hidden_act="relu"), '"hidden_act" is relu, which tern does not have'),
                             (dict(qkv_bias=False), '"qkv_bias" is false, which tern does not have'), (dict(image_size="24"), '"image_size" is not an integer'),
                             (dict(num_attention_heads=5), "got 5 heads, 24 features"), (dict(model_type=None, architectures=["DeiTModel"]), '"architectures" is DeiTModel'),
                             (dict(id2label={"0": "cat"}), "size mismatch for heads.head.weight: copying a param with shape (5, 24)")):
            self.write(**config)
            self.refused(text)
        layer = "vit.encoder.layer.7."
        self.write(lambda state: [state.pop(name) for name in list(state) if name.startswith(layer)])
        self.refused(f'the weights of 12 names are missing, the first is "{layer}layernorm_before.weight"')
        for shards in (1, 3):
            self.write(lambda state: state.pop(f"{layer}attention.attention.key.weight"), shards)
            self.refused(f'the weights of 1 names are missing, the first is "{layer}attention.attention.key.weight"')
        self.write(lambda state: state.update({"vit.encoder.layer.12.layernorm_before.weight": torch.ones(24)}))
        self.refused('vit has no "vit.encoder.layer.12.layernorm_before.weight"')
        self.write(lambda state: state.update({f"{layer}attention.attention.value.weight": torch.ones(25, 24)}))
        self.refused(f'"{layer}attention.attention.value.weight" is (25, 24), expected (24, 24)')
        net = Net(self.lib, lambda rng: make_vit(dict(SMALL, representation_size=7))(self.lib, rng))
        self.addCleanup(net.close)
        with self.assertRaises(tern.TernError) as caught:
            self.save(net, 10**9)
        self.assertIn('vit: transformers\' ViTForImageClassification has no "heads.pre_logits.weight"', str(caught.exception))


if __name__ == "__main__":
    skips.main()
