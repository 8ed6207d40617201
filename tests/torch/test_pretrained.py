"""Folders of Hugging Face: written and read again in one file and in shards; files of torch.save with and without prefixes; damaged ones."""
import ctypes
import itertools
import json
import math
import os
import shutil
import tempfile
import unittest

import numpy
import torch

import skips
import tern
from language_models import TWINS, LanguageNet, language_library, scatter
from safetensors_file import read
from test_rotary_embedding import LONGROPE, YARN

FIELDS = {
    "gpt2": dict(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3),
    "llama": dict(vocab_size=53, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=16),
    "bert": dict(vocab_size=59, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, max_position_embeddings=16),
}
OTHERS = {
    "gpt2": dict(n_inner=30, activation_function=1, tie_word_embeddings=False, layer_norm_epsilon=1e-3),
    "llama": dict(tie_word_embeddings=True, rope_scaling=3, rope_factor=8.0, rope_original_positions=8, rope_theta=500.0, head_dim=10,
                  attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5, pad_token_id=2),
    "bert": dict(add_pooling_layer=False, pad_token_id=-1, type_vocab_size=3, layer_norm_eps=1e-3, hidden_dropout_prob=0.2),
}
BODY = {"gpt2": "transformer.", "llama": "model."}
BUFFER = {"gpt2": "h.0.attn.bias", "llama": "layers.1.self_attn.rotary_emb.inv_freq"}


class PretrainedOpts(ctypes.Structure):
    """tern_pretrained_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("rng", ctypes.c_void_p)]


class Pretrained(unittest.TestCase):
    def setUp(self):
        self.lib = language_library()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def new(self, kind, **more):
        net = LanguageNet.new(self.lib, kind, {**FIELDS[kind], **more}, seed=3)
        self.addCleanup(net.close)
        return net

    def open(self, folder=None):
        net = LanguageNet.open(self.lib, folder or self.folder)
        self.addCleanup(net.close)
        return net

    def save(self, net, folder, most=None):
        opts = self.lib.tern_pretrained_save_defaults()
        opts.max_shard_bytes = most or opts.max_shard_bytes
        self.lib.check("tern_pretrained_save", net.module, folder.encode(), ctypes.byref(opts))

    def same(self, one, other):
        want, got = one.state(), other.state()
        self.assertEqual(list(got), list(want))
        for name, value in want.items():
            self.assertTrue(numpy.array_equal(got[name], value), name)
        tokens = numpy.random.default_rng(0).integers(0, 50, (2, 9))
        self.lib.tern_eval(one.module)
        self.lib.tern_eval(other.module)
        self.assertTrue(numpy.array_equal(one.logits(tokens), other.logits(tokens)))

    def test_one_file(self):
        for kind in FIELDS:
            for number, fields in enumerate(({}, OTHERS[kind])):
                net, folder = self.new(kind, **fields), self.path(kind, str(number))
                self.save(net, folder)
                self.assertEqual(sorted(os.listdir(folder)), ["config.json", "model.safetensors"])
                self.same(net, self.open(folder))

    def test_tied_head_is_left_out(self):
        for kind, tied in (("gpt2", True), ("llama", False)):
            self.save(self.new(kind), self.path(kind))
            names = read(self.path(kind, "model.safetensors"))[0]
            self.assertEqual("lm_head.weight" in names, not tied)

    def test_shards(self):
        for kind in FIELDS:
            net, folder = self.new(kind, **OTHERS[kind]), self.path(kind)
            self.save(net, folder)
            self.save(net, folder, most=9000)
            files = sorted(os.listdir(folder))
            self.assertNotIn("model.safetensors", files)
            with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
                index = json.load(file)
            shards = sorted(set(index["weight_map"].values()))
            self.assertEqual(shards, [name for name in files if name.endswith(".safetensors")])
            self.assertEqual(shards[0], f"model-00001-of-{len(shards):05d}.safetensors")
            total = 0
            for shard in shards:
                tensors, metadata = read(os.path.join(folder, shard))
                self.assertEqual(metadata, {"format": "pt"})
                self.assertEqual(set(tensors), {name for name, where in index["weight_map"].items() if where == shard})
                sizes = [4 * tensor.numel() for tensor in tensors.values()]
                self.assertTrue(sum(sizes) <= 9000 or len(sizes) == 1, sizes)
                total += sum(sizes)
            self.assertEqual(total, index["metadata"]["total_size"])
            self.same(net, self.open(folder))
            self.save(net, folder)
            self.assertNotIn("model.safetensors.index.json", os.listdir(folder))
            self.same(net, self.open(folder))
            os.remove(os.path.join(folder, "model.safetensors"))
            self.refused(lambda: self.open(folder), "has neither model.safetensors nor pytorch_model.bin")

    def torch_folder(self, kind, change=lambda state: state, shards=1, **fields):
        """The folder of tern's config and torch.save's weights."""
        net = self.new(kind, **fields)
        self.save(net, self.folder)
        os.remove(self.path("model.safetensors"))
        module = TWINS[kind](**{**FIELDS[kind], **fields})
        scatter(module, 1)
        state = change(dict(module.state_dict()))
        names = list(state)
        parts = [names[i::shards] for i in range(shards)]
        files = ["pytorch_model.bin"] if shards == 1 else [f"pytorch_model-{i + 1:05d}-of-{shards:05d}.bin" for i in range(shards)]
        for file, part in zip(files, parts):
            torch.save({name: state[name].clone() for name in part}, self.path(file))
        if shards > 1:
            with open(self.path("pytorch_model.bin.index.json"), "w", encoding="utf-8") as file:
                json.dump({"weight_map": {name: where for where, part in zip(files, parts) for name in part}}, file)
        return module

    def loads(self, module):
        state = self.open().state()
        for name, value in module.state_dict().items():
            self.assertTrue(numpy.array_equal(state[name], value.numpy()), name)

    def test_torch_files(self):
        for kind in BODY:
            tied = dict(tie_word_embeddings=True)
            body = BODY[kind]
            stale = lambda state: {**state, body + BUFFER[kind]: torch.ones(1, 1, 4, 4)}
            short = lambda state: {n[len(body):]: v for n, v in stale(state).items() if n.startswith(body)}
            untied = lambda state: {n: v for n, v in state.items() if not n.startswith("lm_head")}
            for change, fields in ((lambda state: state, {}), (stale, {}), (short, tied), (untied, tied)):
                self.loads(self.torch_folder(kind, change, **fields))
        for name in os.listdir(self.folder):
            os.remove(self.path(name))
        self.loads(self.torch_folder("llama", shards=3))

    def test_bert_files(self):
        """Names with and without the prefix, heads, buffers of older files, norms' names of the first files, no pooler; also in shards."""
        full = lambda state: {"bert." + n: v for n, v in state.items()}
        heads = lambda state: {"cls.predictions.bias": torch.ones(59), **full(state), "classifier.weight": torch.ones(2, 24)}
        stale = lambda state: {**state, "embeddings.position_ids": torch.arange(16)[None]}
        first = lambda state: {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v for n, v in heads(state).items()}
        headless = lambda state: {n: v for n, v in state.items() if "pooler" not in n}
        for change, shards in itertools.product((lambda state: state, full, heads, stale, first), (1, 4)):
            for name in os.listdir(self.folder):
                os.remove(self.path(name))
            self.loads(self.torch_folder("bert", change, shards=shards))
            for name in os.listdir(self.folder):
                os.remove(self.path(name))
            module = self.torch_folder("bert", lambda state: change(headless(state)), shards=shards)
            self.assertEqual(list(self.open().state()), list(headless(module.state_dict())))
        self.torch_folder("bert", lambda state: heads({n: v for n, v in state.items() if n != "pooler.dense.bias"}))
        os.remove(self.path("pytorch_model.bin.index.json"))
        self.refused(lambda: self.open(), "the weights of 1 names are missing", '"bert.pooler.dense.bias"')
        self.torch_folder("bert", lambda state: heads({**state, "encoder.layer.2.output.LayerNorm.gamma": torch.ones(24)}))
        self.refused(lambda: self.open(), 'bert has no "encoder.layer.2.output.LayerNorm.weight"')

    def test_bert_of_drawn_weights(self):
        """With a generator it has a pooler, as BertModel(config)."""
        self.save(self.new("bert", add_pooling_layer=False), self.folder)
        opts = PretrainedOpts(ctypes.sizeof(PretrainedOpts))
        net = LanguageNet(self.lib, lambda rng: self.open_drawn(opts, rng), seed=3)
        self.addCleanup(net.close)
        self.same(self.new("bert"), net)

    def open_drawn(self, opts, rng):
        opts.rng = rng
        return self.lib.check("tern_pretrained_open", self.folder.encode(), ctypes.byref(opts))

    def test_halves(self):
        module = self.torch_folder("llama", lambda state: {n: v.bfloat16() for n, v in state.items()})
        self.loads(module.bfloat16().float())

    def refused(self, call, *texts):
        with self.assertRaises(tern.TernError) as caught:
            call()
        for text in texts:
            self.assertIn(text, str(caught.exception))

    def config(self, change):
        with open(self.path("config.json"), encoding="utf-8") as file:
            config = json.load(file)
        change(config)
        with open(self.path("config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)

    def test_config(self):
        """What a config may lack, and how newer files say it."""
        net = self.new("llama", rope_scaling=1, rope_factor=2.0, rope_theta=700.0)
        self.save(net, self.folder)

        def newer(config):
            rope = config.pop("rope_scaling")
            config["rope_parameters"] = {**rope, "rope_theta": config.pop("rope_theta")}
            for name in "head_dim attention_bias mlp_bias hidden_act tie_word_embeddings attention_dropout initializer_range".split():
                del config[name]

        self.config(newer)
        self.same(net, self.open())
        self.config(lambda config: config.pop("model_type"))
        self.same(net, self.open())

    def test_scalings(self):
        """yarn and longrope are written and read again; DeepSeek's scales become one attention_factor."""
        yarn = dict(rope_scaling=YARN, rope_factor=4.0, rope_original_positions=8)
        for fields in (dict(yarn, rope_beta_fast=2.5, rope_beta_slow=0.5, rope_truncate=False), dict(yarn, rope_attention_factor=1.2),
                       dict(rope_scaling=LONGROPE, rope_short_factor=[1.0, 1.5, 2.25], rope_long_factor=[2.0, 3.5, 0.1], rope_original_positions=4),
                       dict(rope_scaling=LONGROPE, rope_short_factor=[1.0, 1.5, 2.25], rope_long_factor=[2.0, 3.5, 0.1], rope_factor=3.0)):
            net = self.new("llama", **fields)
            self.save(net, self.folder)
            self.same(net, self.open())
        self.save(self.new("llama", rope_scaling=YARN, rope_factor=4.0, rope_original_positions=4), self.folder)

        def beside(config):
            del config["rope_scaling"]["original_max_position_embeddings"]
            config["rope_scaling"]["factor"], config["original_max_position_embeddings"] = None, 4

        self.config(beside)  # of Phi and DeepSeek: the length beside the scaling, and 16 / 4 as the factor
        self.same(self.new("llama", rope_scaling=YARN, rope_factor=4.0, rope_original_positions=4), self.open())
        self.save(self.new("llama", **yarn), self.folder)
        self.config(lambda config: config["rope_scaling"].update(mscale=1.5, mscale_all_dim=0.5))
        self.same(self.new("llama", rope_attention_factor=(0.15 * math.log(4) + 1) / (0.05 * math.log(4) + 1), **yarn), self.open())

    def test_what_there_is_not(self):
        self.refused(lambda: self.open(self.path("nothing")), "nothing/config.json", "No such file")
        for text, error in (("{", "is not JSON"), ("[]", "is not a JSON object"), ("{}", '"model_type" is missing'),
                            ('{"model_type": "t5"}', '"model_type" is t5, which tern does not have'),
                            ('{"architectures": ["X"]}', '"architectures" is X'), ('{"model_type": "gpt2"}', '"vocab_size" is missing')):
            with open(self.path("config.json"), "w", encoding="utf-8") as file:
                file.write(text)
            self.refused(lambda: self.open(), error)
        changes = {
            "gpt2": (("n_embd", "36", '"n_embd" is not an integer'), ("n_head", 2.5, '"n_head" is not an integer'),
                     ("activation_function", "mish", '"activation_function" is mish, which tern does not have'),
                     ("scale_attn_by_inverse_layer_idx", True, "which tern does not have"), ("resid_pdrop", "x", "is not a number"),
                     ("tie_word_embeddings", 1, "is not true or false"), ("n_head", 7, "not a multiple of n_head 7")),
            "llama": (("hidden_size", None, '"hidden_size" is missing'), ("hidden_act", "gelu", '"hidden_act" is gelu'),
                      ("rope_scaling", {"type": "proportional", "factor": 2.0}, '"rope_type" is proportional, which tern does not have'),
                      ("rope_scaling", {"type": "yarn"}, '"factor" is missing'), ("rope_scaling", {"rope_type": "dynamic"}, '"factor" is missing'),
                      ("rope_scaling", {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}, '"high_freq_factor" is missing'),
                      ("rope_scaling", {"rope_type": "longrope", "short_factor": [1, 1, 1]}, '"long_factor" is missing'),
                      ("rope_parameters", {"rope_type": "longrope", "short_factor": [1, 1, 1], "long_factor": [1, 2]}, '"long_factor" is not a list of 3 numbers'),
                      ("rope_parameters", {"rope_type": "longrope", "short_factor": [1, "1", 1], "long_factor": [1, 1, 1]}, '"short_factor" is not a list'),
                      ("rope_parameters", {"rope_type": "yarn", "factor": 2.0, "truncate": 1}, '"truncate" is not true or false')),
            "bert": (("type_vocab_size", None, '"type_vocab_size" is missing'), ("hidden_act", "relu", '"hidden_act" is relu, which tern does not have'),
                     ("is_decoder", True, '"is_decoder" is true'), ("add_cross_attention", True, '"add_cross_attention" is true'),
                     ("position_embedding_type", "relative_key", '"position_embedding_type" is relative_key'), ("pad_token_id", 99, "padding_idx"),
                     ("vocab_size", 2**52, "GB of memory"), ("hidden_size", 25, "hidden_size divisible by num_attention_heads")),
        }
        for kind, cases in changes.items():
            for name, value, error in cases:
                self.save(self.new(kind), self.folder)
                self.config(lambda config: config.update({name: value}))
                self.refused(lambda: self.open(), error)

    def test_weights_that_do_not_fit(self):
        self.torch_folder("llama", lambda state: {n: v for n, v in state.items() if "layers.1.mlp" not in n})
        self.refused(lambda: self.open(), "the weights of 3 names are missing", '"model.layers.1.mlp.gate_proj.weight"')
        self.torch_folder("gpt2", lambda state: {**state, "transformer.h.7.ln_1.weight": torch.ones(24)})
        self.refused(lambda: self.open(), 'gpt2 has no "transformer.h.7.ln_1.weight"')
        self.torch_folder("gpt2", lambda state: {**state, "transformer.ln_f.weight": torch.ones(25)})
        self.refused(lambda: self.open(), "transformer.ln_f.weight", "(25)")
        self.torch_folder("llama", lambda state: {n[6:]: v for n, v in state.items() if n.startswith("model.")})
        self.refused(lambda: self.open(), '"lm_head.weight"')

    def test_missing_shard(self):
        net = self.new("gpt2")
        self.save(net, self.folder, most=9000)
        shard = sorted(name for name in os.listdir(self.folder) if name.startswith("model-"))[1]
        os.remove(self.path(shard))
        self.refused(lambda: self.open(), shard, "No such file")
        for text, error in (("{}", '"weight_map" is missing'), ('{"weight_map": {"a": 3}}', 'the shard of "a" is no file'),
                            ('{"weight_map": {"a": "../x"}}', "no file's name")):
            with open(self.path("model.safetensors.index.json"), "w", encoding="utf-8") as file:
                file.write(text)
            self.refused(lambda: self.open(), error)

    def test_save_of_something_else(self):
        mlp = LanguageNet.mlp(self.lib, [3, 2])
        self.addCleanup(mlp.close)
        self.refused(lambda: self.save(mlp, self.folder), "expected a language model or a vit, got sequential")
        self.refused(lambda: self.save(self.new("gpt2"), self.folder, most=-1), "max_shard_bytes is -1")
        self.refused(lambda: self.new("bert").backward(numpy.ones((2, 3), int)), "expected a language model, got bert")
        open(self.path("file"), "w", encoding="utf-8").close()
        self.refused(lambda: self.save(self.new("gpt2"), self.path("file", "inner")), "file")


if __name__ == "__main__":
    skips.main()
