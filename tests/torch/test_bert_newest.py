"""tern's BERT compared with transformers' BertModel, of random weights: initial weights, files, results with masks and token types."""
import ctypes
import itertools
import importlib.util
import os
import tempfile
import unittest

import peers

peers.enter()

import skips  # noqa: E402

if not importlib.util.find_spec("transformers"):
    skips.end("no transformers: run scripts/peers.sh")

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import BertConfig, BertModel  # noqa: E402

from language_models import SaveOpts, scatter  # noqa: E402
from ops import Run, error_of  # noqa: E402
from test_bert import Opts, encode, make, opts_of, pool  # noqa: E402
from nets import StateEntry  # noqa: E402

FIELDS = dict(vocab_size=50, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, max_position_embeddings=20)


def entries_of(lib, layer):
    entries = (lib.tern_state_get(layer, i) for i in range(lib.tern_state_count(layer)))
    return {entry.name.decode(): ctypes.c_void_p(entry.tensor) for entry in entries}


class BertNewestTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.model = BertModel(BertConfig(**FIELDS)).eval()
        self.run_ = Run("cpu")
        self.addCleanup(self.run_.close)
        self.run_.lib.returns(StateEntry, "tern_state_get")
        rng = ctypes.c_void_p(self.run_.lib.check("tern_rng_new", ctypes.c_uint64(3)))
        self.layer = make(**FIELDS)(self.run_, rng)
        self.run_.lib.tern_rng_free(rng)

    def entries(self):
        return entries_of(self.run_.lib, self.layer)

    def test_defaults(self):
        """Every option is one of BertConfig's, with its default."""
        opts, config = opts_of(self.run_, {}), BertConfig()
        for name, _ in Opts._fields_[1:-1]:
            self.assertEqual(getattr(opts, name), getattr(config, name), name)

    def test_initial_weights(self):
        """Bit for bit, under the same names in the same order."""
        ours, theirs = self.entries(), self.model.state_dict()
        self.assertEqual(list(ours), list(theirs))
        for name, tensor in theirs.items():
            self.assertTrue(numpy.array_equal(self.run_.value(ours[name]), tensor.numpy()), name)

    def test_results(self):
        rng = numpy.random.default_rng(0)
        for name, tensor in self.entries().items():
            p = self.model.get_parameter(name)
            p.data = torch.tensor(rng.standard_normal(p.shape).astype("f") * 0.2)
            self.run_.write(tensor, p.data.numpy())
        self.run_.lib.tern_eval(self.layer)
        model = self.model.double()
        ids, types = rng.integers(0, 50, (3, 17)), rng.integers(0, 2, (3, 17))
        mask = (numpy.arange(17) < numpy.array([[17], [9], [1]])).astype("i8")
        positions = rng.permutation(20)[:17][None]
        constant = self.run_.constant
        for given in ({}, dict(attention_mask=mask), dict(token_type_ids=types), dict(position_ids=positions),
                      dict(attention_mask=mask, token_type_ids=types, position_ids=positions)):
            want = model(torch.tensor(ids), **{name: torch.tensor(value) for name, value in given.items()})
            states = encode(self.run_, self.layer, constant(ids), **{name: constant(value) for name, value in given.items()})
            there = mask.astype(bool) if "attention_mask" in given else numpy.ones((3, 17), bool)
            self.assertLess(error_of(self.run_.value(states)[there], want.last_hidden_state.detach().numpy()[there]), 1e-5)
            self.assertLess(error_of(self.run_.value(pool(self.run_, self.layer, states)), want.pooler_output.detach().numpy()), 1e-5)
            self.run_.end()


CLASSES = """BertModel BertForMaskedLM BertForPreTraining BertForNextSentencePrediction BertForSequenceClassification BertForTokenClassification
    BertForQuestionAnswering BertForMultipleChoice""".split()


class BertFolderTest(unittest.TestCase):
    """Folders in both directions, and states and gradients of what was read, with and without shards, heads and a pooler."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def open(self, folder):
        run = Run("cpu")
        self.addCleanup(run.close)
        run.lib.returns(StateEntry, "tern_state_get")
        layer = ctypes.c_void_p(run.lib.check("tern_pretrained_open", folder.encode(), None))
        self.addCleanup(run.lib.tern_module_free, layer)
        run.lib.tern_eval(layer)
        return run, layer

    def compare(self, run, layer, encoder):
        entries, state = entries_of(run.lib, layer), encoder.state_dict()
        self.assertEqual(list(entries), list(state))
        for name, tensor in state.items():
            self.assertTrue(numpy.array_equal(run.value(entries[name]), tensor.numpy()), name)
        rng = numpy.random.default_rng(1)
        ids, types = rng.integers(0, 50, (3, 13)), rng.integers(0, 2, (3, 13))
        mask = (numpy.arange(13) < numpy.array([[13], [9], [2]])).astype("i8")
        weight = (rng.standard_normal((3, 13, FIELDS["hidden_size"])) * mask[:, :, None]).astype("f")
        out = encoder.eval()(torch.tensor(ids), attention_mask=torch.tensor(mask), token_type_ids=torch.tensor(types))
        states = encode(run, layer, run.constant(ids), attention_mask=run.constant(mask), token_type_ids=run.constant(types))
        there = mask.astype(bool)
        self.assertLess(error_of(run.value(states)[there], out.last_hidden_state.detach().numpy()[there]), 1e-5)
        if out.pooler_output is not None:
            self.assertLess(error_of(run.value(pool(run, layer, states)), out.pooler_output.detach().numpy()), 1e-5)
        encoder.zero_grad()
        (out.last_hidden_state * torch.tensor(weight)).sum().backward()
        run.backward(states, weight)
        for name, parameter in encoder.named_parameters():
            if name.endswith("attention.self.key.bias"):  # it adds the same to all scores of a query: 0 but for rounding
                largest = abs(run.grad(entries[name[:-4] + "weight"])).max()
                self.assertLess(abs(run.grad(entries[name])).max(), 1e-5 * largest, name)
            elif parameter.grad is not None:
                self.assertLess(error_of(run.grad(entries[name]), parameter.grad.numpy()), 2e-5, name)
        run.end()

    def model(self, kind):
        torch.manual_seed(4)
        model = getattr(transformers, kind)(BertConfig(**FIELDS))
        scatter(model, 6)
        return model

    def test_theirs(self):
        for kind, size in itertools.product(CLASSES, ("1GB", "30KB")):
            model, folder = self.model(kind), os.path.join(self.folder, kind + size)
            model.save_pretrained(folder, max_shard_size=size)
            self.assertEqual(os.path.exists(os.path.join(folder, "model.safetensors.index.json")), size != "1GB")
            with self.subTest(kind=kind, size=size):
                self.compare(*self.open(folder), getattr(model, "bert", model))

    def test_ours(self):
        """The heads that transformers then asks for are new, nothing else is."""
        for kind in ("BertModel", "BertForMaskedLM"):
            self.model(kind).save_pretrained(os.path.join(self.folder, kind))
            run, layer = self.open(os.path.join(self.folder, kind))
            ours = os.path.join(self.folder, kind + "ours")
            for most in (5 * 10**9, 30000):
                run.lib.check("tern_pretrained_save", layer, ours.encode(), ctypes.byref(SaveOpts(ctypes.sizeof(SaveOpts), most)))
                model, report = getattr(transformers, kind).from_pretrained(ours, output_loading_info=True)
                self.assertFalse(report["unexpected_keys"] or report["mismatched_keys"], report)
                self.assertTrue(all(name.startswith("cls.") for name in report["missing_keys"]), report)
                self.compare(*self.open(ours), getattr(model, "bert", model))


if __name__ == "__main__":
    skips.main()
