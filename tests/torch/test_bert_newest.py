"""tern's BERT compared with transformers' BertModel, of random weights: initial weights, files, results with masks and token types."""
import ctypes
import importlib.util
import unittest

import peers

peers.enter()

import skips  # noqa: E402

if not importlib.util.find_spec("transformers"):
    skips.end("no transformers: run scripts/peers.sh")

import numpy  # noqa: E402
import torch  # noqa: E402
from transformers import BertConfig, BertModel  # noqa: E402

from ops import Run, error_of  # noqa: E402
from test_bert import Opts, encode, make, opts_of, pool  # noqa: E402
from nets import StateEntry  # noqa: E402

FIELDS = dict(vocab_size=50, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, max_position_embeddings=20)


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
        lib = self.run_.lib
        return {e.name.decode(): ctypes.c_void_p(e.tensor) for e in (lib.tern_state_get(self.layer, i) for i in range(lib.tern_state_count(self.layer)))}

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


if __name__ == "__main__":
    skips.main()
