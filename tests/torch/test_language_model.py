"""Language models on several ranks, and groups of parameters without weight decay; masks, positions, and a cache of keys and values."""
import ctypes
import os
import subprocess
import unittest

import numpy
import torch

import forked
import skips
import tern
from language_models import TWINS, LanguageNet, language_library, next_token_loss, scatter
from language_model_rank import FIELDS
from ops import BF16, F64, error_of
from test_rotary_embedding import LONGROPE

HERE = os.path.dirname(os.path.abspath(__file__))


class LanguageModels(unittest.TestCase):
    def test_ddp(self):
        """The ranks have the same bits, and the losses of one process with all batches."""
        command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", "2", *forked.interpreter()]
        done = subprocess.run([*command, os.path.join(HERE, "language_model_rank.py")], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), 2)

    def test_no_decay(self):
        """Biases, norms and embeddings have a group without decay, as in torch's list of two groups."""
        lib = language_library()
        for kind, fields in FIELDS.items():
            net = LanguageNet.new(lib, kind, fields, adam=dict(lr=1e-2, weight_decay=0.5))
            self.addCleanup(net.close)
            self.assertEqual(lib.check("tern_optim_no_decay_group_add", net.optim), 1)
            module = TWINS[kind](**fields)
            module.load_state_dict({name: torch.tensor(value) for name, value in net.state().items()})
            apart = {id(p): not (p.ndim < 2 or any(part in name for part in ("wte", "wpe", "embed_tokens"))) for name, p in module.named_parameters()}
            groups = [dict(params=[p for p in module.parameters() if apart[id(p)] == decays], weight_decay=0.5 * decays) for decays in (True, False)]
            optim = torch.optim.AdamW(groups, 1e-2)
            rng = numpy.random.default_rng(1)
            for _ in range(5):
                tokens = rng.integers(0, 41, (3, 12))
                net.step(tokens)
                optim.zero_grad()
                next_token_loss(module(torch.tensor(tokens)), torch.tensor(tokens)).backward()
                optim.step()
            for name, value in module.state_dict().items():
                numpy.testing.assert_allclose(net.state()[name], value.numpy(), rtol=0, atol=1e-3, err_msg=name)
            with self.assertRaises(tern.TernError) as caught:
                lib.check("tern_optim_no_decay_group_add", net.optim)
            self.assertIn("add all groups before the first", str(caught.exception))
        plain = LanguageNet.new(lib, "llama", FIELDS["llama"])
        self.addCleanup(plain.close)
        lib.tern_optim_free(plain.optim)
        plain.optim = ctypes.c_void_p(lib.check("tern_adagrad_new", plain.module, None))
        self.assertEqual(lib.check("tern_optim_no_decay_group_add", plain.optim), 1)
        with self.assertRaises(tern.TernError) as caught:
            lib.check("tern_optim_no_decay_group_add", None)
        self.assertIn("the optimizer is NULL", str(caught.exception))


LONG = {"gpt2": dict(vocab_size=53, n_positions=40, n_embd=36, n_layer=3, n_head=3),
        "llama": dict(vocab_size=53, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=8,
                      num_key_value_heads=2, max_position_embeddings=40)}
ODD = {"gpt2": dict(n_head=1, activation_function=3), "llama": dict(num_key_value_heads=8, head_dim=6, rope_scaling=3, rope_factor=4.0, rope_original_positions=16)}


class Calls(unittest.TestCase):
    """tern_language_model_forward beside PyTorch. What a mask leaves over of a sequence is the same as that sequence alone."""

    def setUp(self):
        self.lib = language_library()
        self.rng = numpy.random.default_rng(7)

    def pair(self, kind, dtype=None, **more):
        fields = {**LONG[kind], **more}
        torch.manual_seed(0)
        module = TWINS[kind](**fields)
        scatter(module, 3)
        net = LanguageNet.new(self.lib, kind, fields, dtype=dtype)
        self.addCleanup(net.close)
        as_bits = {None: lambda value: value, F64: torch.Tensor.double, BF16: lambda value: value.bfloat16().view(torch.int16)}[dtype]
        net.load({name: as_bits(value) for name, value in module.state_dict().items()})
        return net, module

    def pairs(self, dtype=None):
        for kind in LONG:
            for more in ({}, ODD[kind]):
                yield self.pair(kind, dtype, **more)

    def cache(self, net, batch, tokens):
        cache = ctypes.c_void_p(self.lib.check("tern_kv_cache_new", net.module, ctypes.c_int64(batch), ctypes.c_int64(tokens)))
        self.addCleanup(self.lib.tern_kv_cache_free, cache)
        return cache

    def tokens(self, *shape):
        return self.rng.integers(0, 53, shape)

    def splits(self, length):
        """Lengths of pieces: each token alone, the whole, and at random; a piece may be empty."""
        cuts = sorted(self.rng.integers(0, length + 1, 4))
        return [1] * length, [length], [length - 3, 1, 1, 1], [int(n) for n in numpy.diff([0, *cuts, length])]

    def pieces(self, net, cache, tokens, split, mask=None):
        """The logits of all tokens, by calls of so many each."""
        self.lib.tern_kv_cache_reset(cache)
        found, done = [], 0
        for count in split:
            options = {} if mask is None else dict(attention_mask=mask[:, : done + count])
            found.append(net.call(tokens[:, done : done + count], cache, **options))
            done += count
            self.assertEqual(self.lib.tern_kv_cache_length(cache), done)
        return numpy.concatenate(found, 1)

    def of_torch(self, module, tokens, mask, dtype=torch.float64):
        """The logits of the tokens that take part, one after the other, of each sequence alone."""
        return numpy.concatenate([module.to(dtype)(torch.tensor(row[on])[None])[0].detach().numpy() for row, on in zip(tokens, mask)])

    def close(self, module, got, tokens, mask):
        want, single = (self.of_torch(module, tokens, mask, dtype) for dtype in (torch.float64, torch.float32))
        self.assertLessEqual(error_of(got[mask], want), max(2e-5, 8 * error_of(single, want)))

    def masks(self, batch, length):
        """Padding on the left, on the right, and at random places."""
        counts = self.rng.integers(1, length + 1, batch)
        counts[0] = length
        left = numpy.arange(length) >= length - counts[:, None]
        return left, left[:, ::-1].copy(), self.rng.random((batch, length)) < 0.6

    def test_mask(self):
        for net, module in self.pairs():
            tokens = self.tokens(4, 23)
            for mask in self.masks(4, 23):
                for dtype in ("bool", "int64", "float32"):
                    self.close(module, net.call(tokens, attention_mask=mask.astype(dtype)), tokens, mask)

    def test_cache(self):
        for net, module in self.pairs():
            tokens, cache = self.tokens(3, 21), self.cache(net, 3, 25)
            for split in self.splits(21):
                self.close(module, self.pieces(net, cache, tokens, split), tokens, numpy.ones((3, 21), bool))

    def test_cache_under_a_mask(self):
        for net, module in self.pairs():
            tokens, cache = self.tokens(3, 21), self.cache(net, 3, 21)
            for mask in self.masks(3, 21):
                for split in self.splits(21):
                    self.close(module, self.pieces(net, cache, tokens, split, mask), tokens, mask)

    def test_whole_context(self):
        """The last position can be used, with and without padding; one more is refused."""
        for net, module in self.pairs():
            tokens, cache, mask = self.tokens(2, 40), self.cache(net, 2, 40), numpy.ones((2, 40), bool)
            self.close(module, self.pieces(net, cache, tokens, [39, 1]), tokens, mask)
            self.refused(lambda: net.call(tokens[:, :1], cache), "a context of 41 tokens is longer than the model's 40 positions")
            mask[1, :13] = False
            self.close(module, self.pieces(net, cache, tokens, [39, 1], mask), tokens, mask)

    def test_f64(self):
        """In f64 pieces and the whole differ by f64's rounding only."""
        for net, _ in self.pairs(dtype=F64):
            tokens, cache = self.tokens(2, 30), self.cache(net, 2, 30)
            for mask in self.masks(2, 30):
                want = net.call(tokens, attention_mask=mask)
                for split in self.splits(30):
                    self.assertLess(error_of(self.pieces(net, cache, tokens, split, mask)[mask], want[mask]), 1e-13)

    def test_16_bits(self):
        """In an autocast region and of 16-bit weights, pieces are as near to PyTorch as the whole is. A cache with tokens keeps its dtype."""
        for kind in LONG:
            single, module = self.pair(kind)
            cast, _ = self.pair(kind, BF16)
            tokens, mask = self.tokens(2, 30), self.masks(2, 30)[0]
            want = self.of_torch(module, tokens, mask)
            single.region = BF16
            for net in (single, cast):
                cache, whole = self.cache(net, 2, 30), error_of(net.call(tokens, attention_mask=mask)[mask], want)
                for split in self.splits(30):
                    self.assertLess(error_of(self.pieces(net, cache, tokens, split, mask)[mask], want), 1.5 * whole)
            single.region = 0
            cache = self.cache(single, 2, 30)
            single.call(tokens[:, :3], cache)
            single.region = BF16
            self.refused(lambda: single.call(tokens[:, 3:], cache), "kv_cache: it has tokens of f32, and those of this call are bf16")
            self.lib.tern_kv_cache_reset(cache)
            single.call(tokens[:, 3:], cache)

    def test_positions(self):
        """Any ids, of one sequence for all or of each; those of generate() are what a mask means."""
        for net, module in self.pairs():
            tokens = self.tokens(3, 11)
            for ids in (self.rng.integers(0, 40, (3, 11)), self.rng.permutation(40)[None, :11], numpy.arange(29, 40)[None]):
                want, single = (module.to(dtype)(torch.tensor(tokens), torch.tensor(ids)).detach().numpy() for dtype in (torch.float64, torch.float32))
                got = net.call(tokens, position_ids=ids)
                self.assertLessEqual(error_of(got, want), max(2e-5, 8 * error_of(single, want)))
                self.assertTrue(numpy.array_equal(net.call(tokens, position_ids=ids.astype("int32")), got))
            mask = self.masks(3, 11)[0]
            ids = (numpy.cumsum(mask, 1) - 1).clip(0)
            self.assertTrue(numpy.array_equal(net.call(tokens, attention_mask=mask, position_ids=ids), net.call(tokens, attention_mask=mask)))

    def test_longrope(self):
        """The long factors are those of a call with a position from the original length on, however many tokens it has."""
        net, module = self.pair("llama", head_dim=4, rope_scaling=LONGROPE, rope_factor=4.0, rope_original_positions=16, rope_short_factor=[1.0, 1.25],
                                rope_long_factor=[3.0, 9.0])
        tokens = self.tokens(3, 11)
        for highest in (15, 16, 39):
            ids = self.rng.integers(0, highest, (3, 11))
            ids[1, 4] = highest
            want, single = (module.to(dtype)(torch.tensor(tokens), torch.tensor(ids)).detach().numpy() for dtype in (torch.float64, torch.float32))
            self.assertLessEqual(error_of(net.call(tokens, position_ids=ids), want), max(2e-5, 8 * error_of(single, want)))
        tokens, mask = self.tokens(3, 24), numpy.arange(24) >= 24 - numpy.array([[16], [9], [1]])
        for side in (mask, mask[:, ::-1].copy()):
            self.close(module, net.call(tokens, attention_mask=side), tokens, side)
        cache, all_on = self.cache(net, 1, 40), numpy.ones((1, 16), bool)
        self.close(module, self.pieces(net, cache, tokens[:1, :16], [9, 7], all_on), tokens[:1, :16], all_on)

    def test_logits_to_keep(self):
        for net, _ in self.pairs(dtype=F64):
            tokens = self.tokens(2, 9)
            want = net.call(tokens)
            for keep in (1, 4, 9, 12):
                got = net.call(tokens, keep=keep)
                self.assertEqual(got.shape, (2, min(keep, 9), 53))
                self.assertLess(error_of(got, want[:, -keep:]), 1e-13)

    def test_loss_under_a_mask(self):
        """Loss and gradients of padded sequences are those of the sequences alone."""
        for net, module in self.pairs():
            tokens = self.tokens(3, 15)
            mask = self.masks(3, 15)[0]
            labels = numpy.where(mask, tokens, -100)
            labels[numpy.arange(3), mask.argmax(1)] = -100  # the first token is predicted by none
            module.to(torch.float64).zero_grad()
            loss = sum(next_token_loss(module(torch.tensor(row[on])[None]), torch.tensor(row[on])[None]) * (on.sum() - 1)
                       for row, on in zip(tokens, mask) if on.sum() > 1) / (labels != -100).sum()
            loss.backward()
            self.assertLess(abs(net.backward(tokens, labels, attention_mask=mask) - loss.item()), 1e-5)
            grads = net.grads()
            for name, p in module.named_parameters():
                self.assertLess(error_of(grads[name], p.grad.numpy()), 2e-4, name)

    def refused(self, call, text):
        with self.assertRaises(tern.TernError) as caught:
            call()
        self.assertIn(text, str(caught.exception))

    def test_what_there_is_not(self):
        for kind in LONG:
            net, other = self.pair(kind)[0], self.pair(kind)[0]
            tokens, cache = self.tokens(2, 6), self.cache(net, 2, 8)
            new = lambda *numbers: self.lib.check("tern_kv_cache_new", net.module, *map(ctypes.c_int64, numbers))
            for numbers in ((0, 8), (2, 0), (2, 41)):
                self.refused(lambda: new(*numbers), f"max_tokens from 1 to the model's 40 positions, got {numbers[0]} and {numbers[1]}")
            net.call(tokens, cache)
            self.refused(lambda: net.call(tokens[:, :3], cache), "kv_cache: 3 tokens after 6 are more than its max_tokens of 8")
            self.refused(lambda: net.call(tokens[:1, :1], cache), "kv_cache: expected tokens (2, T), got (1, 1)")
            self.refused(lambda: other.call(tokens[:, :1], cache), "kv_cache: it was made for another model")
            self.refused(lambda: net.call(tokens[:, :1], cache, attention_mask=numpy.ones((2, 1), int)), "expected attention_mask (2, 7), got (2, 1)")
            self.refused(lambda: net.call(tokens, attention_mask=numpy.ones((1, 6), int)), "expected attention_mask (2, 6), got (1, 6)")
            self.refused(lambda: net.call(tokens, attention_mask=numpy.ones((2, 1, 6), int)), "expected attention_mask (2, 6), got (2, 1, 6)")
            self.refused(lambda: net.call(tokens, position_ids=numpy.ones((2, 5), int)), "expected position_ids (2 or 1, 6), got (2, 5)")
            self.refused(lambda: net.call(tokens, position_ids=numpy.full((1, 6), 40)), "40")
            self.refused(lambda: net.call(tokens, position_ids=numpy.ones((1, 6), "float32")), "expected an index of i64 or i32, got f32")
            self.refused(lambda: net.call(tokens, keep=-1), "logits_to_keep is -1, expected at least 0")
            self.refused(lambda: net.call(tokens[0], cache), "expected tokens (N, T), got (6)")
            self.assertEqual(self.lib.tern_kv_cache_length(cache), 6)
            self.assertEqual(net.call(tokens[:, :2], cache).shape, (2, 2, 53))
            self.lib.tern_kv_cache_reset(cache)
            opts = self.lib.tern_language_model_call_defaults()
            opts.cache = cache
            self.lib.tern_language_model_forward(net.module, net.scope, net.tensor(tokens), ctypes.byref(opts))
            self.refused(net.raise_error, "kv_cache: it passes no gradients on; turn their recording off")
            self.lib.tern_scope_end(net.scope, None)
            for part in ("", "_body"):  # computed again in backward, a part would append once more
                self.assertEqual(self.lib.tern_module_checkpoint_set(net.module, (kind + part).encode(), True), 1)
                self.lib.tern_language_model_forward(net.module, net.scope, net.tensor(tokens), ctypes.byref(opts))
                self.refused(net.raise_error, "kv_cache: it passes no gradients on; turn their recording off")
                self.lib.tern_scope_end(net.scope, None)
                self.assertEqual(self.lib.tern_kv_cache_length(cache), 0)
                net.call(tokens, cache)
                self.lib.tern_kv_cache_reset(cache)
                self.lib.tern_module_checkpoint_set(net.module, (kind + part).encode(), False)
        mlp = LanguageNet.mlp(self.lib, [4, 3])
        self.addCleanup(mlp.close)
        self.refused(lambda: mlp.call(self.tokens(2, 4)), "expected a language model, got sequential")
        self.refused(lambda: self.lib.check("tern_kv_cache_new", mlp.module, ctypes.c_int64(1), ctypes.c_int64(1)), "expected a language model, got sequential")


if __name__ == "__main__":
    skips.main()
