"""tern's layers of transformers beside the newest PyTorch: bias=False, which 1.13 lacks, is_causal, masks of mixed kinds."""
import itertools
import unittest

import peers

peers.enter()

import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import skips  # noqa: E402
import test_multihead_attention  # noqa: E402
from layers import Pair  # noqa: E402
from test_transformer_layer import GELU, causal, decode, encode, make, torch_make  # noqa: E402


class TransformerLayerNewestTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def pair(self, kind, **fields):
        fields = {"feedforward": 20, "dropout": 0.0, "batch_first": True, **fields}
        pair = Pair(self, make(kind, 12, 3, **fields), torch_make(kind, 12, 3, **fields))
        self.addCleanup(pair.close)
        pair.randomise()
        return pair

    def test_layers(self):
        x, memory = self.rng.standard_normal((2, 6, 12)), self.rng.standard_normal((2, 9, 12))
        added, hidden = self.rng.standard_normal((6, 6)), numpy.arange(9) >= numpy.array([[5], [9]])
        for bias, norm_first, activation in itertools.product((False, True), (False, True), (0, GELU)):
            fields = dict(bias=bias, norm_first=norm_first, activation=activation)
            pair = self.pair("encoder", **fields)
            what = f"{fields}"
            pair.compare(what, lambda run, layer, x: run.forward(layer, x), lambda m, x: m(x), [x], 1e-5)
            pair.compare(what, lambda run, layer, x: encode(run, layer, x, is_causal=True), lambda m, x: m(x, causal(6), is_causal=True), [x], 1e-5)
            pair = self.pair("decoder", **fields)
            ours = lambda run, layer, x, memory, mask, padding: decode(run, layer, x, memory, tgt_mask=mask, memory_key_padding_mask=padding)
            theirs = lambda m, x, memory, mask, padding: m(x, memory, tgt_mask=mask, memory_key_padding_mask=padding)
            pair.compare(what, ours, theirs, [x, memory, added, hidden], 1e-5)

    def test_a_query_without_keys(self):
        """Gets 0 from the attention of both, beside a query that has some."""
        pair = Pair(self, test_multihead_attention.make(4, 2, batch_first=True), lambda: nn.MultiheadAttention(4, 2, batch_first=True))
        self.addCleanup(pair.close)
        pair.randomise()
        ours = lambda run, layer, x, hidden: test_multihead_attention.attend(run, layer, x, x, x, None, hidden)
        theirs = lambda m, x, hidden: m(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        pair.compare("hidden", ours, theirs, [self.rng.standard_normal((2, 3, 4)), numpy.array([[True] * 3, [False, True, False]])], 1e-5)


if __name__ == "__main__":
    skips.main()
