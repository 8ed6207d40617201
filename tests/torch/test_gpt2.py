"""tern's GPT-2 beside the same net in PyTorch: names, logits, gradients, AdamW steps, autocast; its initial weights and errors."""
import ctypes
import unittest

import numpy

import skips
import tern
from language_models import LanguageNet, compare, language_library, make_language_model, train
from ops import BF16

SMALL = dict(vocab_size=97, n_positions=24, n_embd=36, n_layer=2, n_head=3)


class Gpt2s(unittest.TestCase):
    def setUp(self):
        self.lib = language_library()

    def test_gradients(self):
        compare(self, self.lib, "gpt2", SMALL, 3, 17)

    def test_other_options(self):
        compare(self, self.lib, "gpt2", dict(SMALL, n_inner=50, activation_function=1, tie_word_embeddings=False), 2, 24)
        compare(self, self.lib, "gpt2", dict(SMALL, activation_function=2, layer_norm_epsilon=1e-3, n_layer=1), 1, 2)
        compare(self, self.lib, "gpt2", dict(SMALL, activation_function=3, n_head=1, n_layer=3), 4, 5, threads=1)

    def test_adamw_steps(self):
        ours, theirs = train(self, self.lib, "gpt2", SMALL, 4, 20)
        numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)

    def test_autocast(self):
        ours, theirs = train(self, self.lib, "gpt2", SMALL, 4, 20, region=BF16)
        numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-2)

    def test_initial_weights(self):
        net = LanguageNet.new(self.lib, "gpt2", dict(vocab_size=300, n_positions=50, n_embd=128, n_layer=8, n_head=4))
        self.addCleanup(net.close)
        for name, value in net.state().items():
            if value.ndim == 2:
                std = 0.02 / (16 ** 0.5 if "c_proj" in name else 1)
                self.assertLess(abs(value.std() / std - 1), 5 / (2 * value.size) ** 0.5, name)
                self.assertLess(abs(value.mean()), 5 * std / value.size ** 0.5, name)
            else:
                self.assertTrue((value == (1 if name.endswith("weight") else 0)).all(), name)

    def test_labels(self):
        """Shifted by the caller or by the call, ignored by another index, i32; one token predicts nothing."""
        net = LanguageNet.new(self.lib, "gpt2", SMALL)
        self.addCleanup(net.close)
        tokens = numpy.random.default_rng(4).integers(0, 97, (2, 9))
        want = net.backward(tokens)
        shifted = numpy.concatenate([tokens[:, 1:], numpy.full((2, 1), -100)], 1)
        self.assertEqual(net.backward(tokens, shifted, shifted=True), want)
        self.assertEqual(net.backward(tokens.astype("int32"), tokens.astype("int32")), want)
        shifted[:, -1] = -7
        self.assertEqual(net.backward(tokens, shifted, shifted=True, ignore_index=-7), want)
        self.assertEqual(net.backward(tokens, None, ignore_index=-7), want)
        self.assertTrue(numpy.isnan(net.backward(tokens[:, :1])))

    def refused(self, call, text):
        with self.assertRaises(tern.TernError) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_what_there_is_not(self):
        new = lambda **fields: make_language_model(self.lib, "gpt2", None, **{**SMALL, **fields})
        for fields, text in ((dict(n_head=5), "n_embd 36 is not a multiple of n_head 5"), (dict(vocab_size=0), "vocab_size 0"),
                             (dict(n_positions=0), "n_positions 0"), (dict(n_layer=-1), "n_layer -1"),
                             (dict(attn_pdrop=1.5), "a dropout in [0, 1], got 1.5"), (dict(activation_function=4), "activation_function is 4"),
                             (dict(layer_norm_epsilon=-1), "layer_norm_epsilon -1")):
            self.refused(lambda: new(**fields), text)
        net = LanguageNet.new(self.lib, "gpt2", SMALL)
        self.addCleanup(net.close)
        for tokens, text in ((numpy.zeros((1, 25), int), "a context of 25 tokens is longer than the model's 24 positions"),
                             (numpy.zeros((1, 4), "float32"), "expected tokens of i64 or i32, got f32"),
                             (numpy.zeros(4, int), "expected tokens (N, T), got (4)"),
                             (numpy.full((1, 4), 97), "97")):
            self.refused(lambda: net.logits(tokens), text)
            self.lib.tern_scope_end(net.scope, None)
        self.refused(lambda: net.backward(numpy.zeros((2, 4), int), numpy.zeros((2, 3), int)), "expected labels of i64 or i32")
        self.lib.tern_scope_end(net.scope, None)
        mlp = LanguageNet.mlp(self.lib, [4, 3])
        self.addCleanup(mlp.close)
        self.refused(lambda: mlp.backward(numpy.zeros((2, 4), int)), "expected a language model, got sequential")


if __name__ == "__main__":
    skips.main()
