"""tern's Llama beside the same net in PyTorch: names, logits, gradients, AdamW steps, autocast; grouped heads and rotary scalings."""
import unittest

import numpy

import skips
import tern
from language_models import LanguageNet, compare, language_library, make_language_model, train
from ops import BF16
from test_rotary_embedding import LONGROPE, YARN

SMALL = dict(vocab_size=89, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=32)


class Llamas(unittest.TestCase):
    def setUp(self):
        self.lib = language_library()

    def test_gradients(self):
        compare(self, self.lib, "llama", SMALL, 3, 19)

    def test_other_options(self):
        compare(self, self.lib, "llama", dict(SMALL, num_key_value_heads=0, head_dim=10, attention_bias=True, mlp_bias=True), 2, 32)
        compare(self, self.lib, "llama", dict(SMALL, tie_word_embeddings=True, rms_norm_eps=1e-2, pad_token_id=3), 2, 7)
        compare(self, self.lib, "llama", dict(SMALL, rope_theta=500.0, rope_scaling=1, rope_factor=3.0, num_key_value_heads=1), 1, 13)
        compare(self, self.lib, "llama", dict(SMALL, head_dim=16, rope_scaling=3, rope_factor=8.0, rope_original_positions=16), 2, 31)

    def test_yarn_and_longrope(self):
        """The factors of longrope are the short ones up to the original length, and the long ones beyond."""
        compare(self, self.lib, "llama", dict(SMALL, head_dim=16, rope_scaling=YARN, rope_factor=4.0, rope_original_positions=8), 2, 31)
        compare(self, self.lib, "llama", dict(SMALL, rope_theta=50.0, rope_scaling=YARN, rope_beta_fast=1.5, rope_beta_slow=0.5, rope_truncate=False,
                                              rope_attention_factor=1.3, rope_original_positions=20), 1, 9)
        long = dict(SMALL, head_dim=8, rope_scaling=LONGROPE, rope_factor=4.0, rope_original_positions=12,
                    rope_short_factor=[1.0, 1.1, 1.3, 2.0], rope_long_factor=[1.0, 3.0, 7.0, 9.0])
        for length in (7, 12, 13, 32):
            compare(self, self.lib, "llama", long, 2, length)
        compare(self, self.lib, "llama", dict(long, rope_original_positions=0, rope_attention_factor=0.7), 1, 32)

    def test_adamw_steps(self):
        ours, theirs = train(self, self.lib, "llama", SMALL, 4, 20)
        numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)

    def test_autocast(self):
        ours, theirs = train(self, self.lib, "llama", SMALL, 4, 20, region=BF16)
        numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-2)

    def test_f64(self):
        """In f64 the tables are, too: the logits are closer to those of f32 than f32 resolves, but not equal."""
        long = dict(rope_scaling=LONGROPE, head_dim=4, rope_original_positions=12, rope_short_factor=[1.0, 2.0], rope_long_factor=[3.0, 9.0])
        for scaling in (dict(rope_scaling=3, rope_factor=8.0), dict(rope_scaling=YARN, rope_factor=4.0), long):
            nets = [LanguageNet.new(self.lib, "llama", {**SMALL, **scaling}, seed=2, dtype=dtype) for dtype in (None, 1)]
            for net in nets:
                self.addCleanup(net.close)
            for length in (30, 12):
                tokens = numpy.random.default_rng(1).integers(0, 89, (2, length))
                single, double = (net.logits(tokens) for net in nets)
                self.assertEqual((single.dtype, double.dtype), ("float32", "float64"))
                self.assertLess(abs(single - double).max(), 1e-5 * abs(double).max())

    def refused(self, call, text):
        with self.assertRaises(tern.TernError) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_what_there_is_not(self):
        new = lambda **fields: make_language_model(self.lib, "llama", None, **{**SMALL, **fields})
        for fields, text in ((dict(num_attention_heads=5), "hidden_size 24 is not a multiple of num_attention_heads 5"),
                             (dict(num_key_value_heads=4), "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
                             (dict(head_dim=5), "head_dim 5 is odd"), (dict(vocab_size=0), "vocab_size 0"),
                             (dict(rope_theta=0.0), "base"), (dict(rms_norm_eps=-1), "rms_norm_eps -1"), (dict(pad_token_id=89), "89"),
                             (dict(attention_dropout=-1), "a dropout in [0, 1], got -1"), (dict(rope_scaling=LONGROPE), "longrope: short_factor or long_factor is NULL"),
                             (dict(rope_scaling=YARN, rope_beta_slow=-1.0), "yarn: expected beta_fast and beta_slow above 0"), (dict(rope_scaling=9), "scaling 9")):
            self.refused(lambda: new(**fields), text)
        net = LanguageNet.new(self.lib, "llama", SMALL)
        self.addCleanup(net.close)
        self.refused(lambda: net.logits(numpy.zeros((1, 33), int)), "a context of 33 tokens is longer than the model's 32 positions")


if __name__ == "__main__":
    skips.main()
