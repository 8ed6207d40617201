"""tern_multihead_attention compared with torch.nn.MultiheadAttention: state dicts, initial weights, values, gradients, masks, dropout."""
import ctypes
import itertools
import math
import unittest

import numpy
import torch
from torch import nn

import skips
import tern
from layers import Pair, refused
from ops import BF16, F32, Run, error_of

DEVICES = [("cpu", "f", 3e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 3e-6), ("cpu:reference", "d", 1e-13)]
SHAPE, DTYPE, RANGE, INVALID = -2, -3, -7, -1


class Opts(ctypes.Structure):
    """tern_multihead_attention_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("dropout", ctypes.c_double),
        ("bias", ctypes.c_bool),
        ("batch_first", ctypes.c_bool),
        ("kdim", ctypes.c_int64),
        ("vdim", ctypes.c_int64),
    ]


class CallOpts(ctypes.Structure):
    """tern_multihead_attention_call_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("attn_mask", ctypes.c_void_p), ("key_padding_mask", ctypes.c_void_p), ("is_causal", ctypes.c_bool)]


def make(embed, heads, **fields):
    def new(run, rng):
        opts = Opts(ctypes.sizeof(Opts), 0, True, False, 0, 0)
        for name, value in fields.items():
            setattr(opts, name, value or 0)
        return run.layer("tern_multihead_attention_new", ctypes.c_int64(embed), ctypes.c_int64(heads), ctypes.byref(opts), rng)

    return new


def attend(run, layer, q, k, v, attn_mask=None, key_padding_mask=None, causal=False):
    opts = CallOpts(ctypes.sizeof(CallOpts), attn_mask, key_padding_mask, causal)
    return run.op_of("tern_multihead_attention_forward", layer, q, k, v, ctypes.byref(opts))


def added(mask):
    """A mask of PyTorch's as one that is added."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask


def oracle(module, q, k, v, attn_mask=None, key_padding_mask=None, causal=False):
    """torch's module, for which all masks are added up: 1.13 does not take them in every combination."""
    batch = q.ndim == 3
    lengths = [x.shape[module.batch_first if batch else 0] for x in (q, k)]
    count = q.shape[not module.batch_first] if batch else 1
    mask = torch.zeros(count, module.num_heads, *lengths, dtype=torch.float64)
    if attn_mask is not None:
        mask = mask + (added(attn_mask) if attn_mask.ndim == 2 else added(attn_mask).reshape(mask.shape))
    if key_padding_mask is not None:
        mask = mask + added(key_padding_mask).reshape(count, 1, 1, lengths[1])
    if causal:
        mask = mask + added(torch.ones(lengths).triu(1).bool())
    return module(q, k, v, attn_mask=mask.reshape(-1, *lengths), need_weights=False)[0]


class MultiheadAttentionTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, *shape):
        return self.rng.standard_normal(shape)

    def pair(self, embed, heads, device="cpu", dtype="f", **fields):
        pair = Pair(self, make(embed, heads, **fields), lambda: nn.MultiheadAttention(embed, heads, **fields), device, dtype)
        self.addCleanup(pair.close)
        pair.randomise()
        return pair

    def inputs(self, pair, lengths, batch=2):
        """q, k and v."""
        m, (t, s) = pair.module, lengths
        order = lambda n: () if batch is None else (batch, n) if m.batch_first else (n, batch)
        return [self.draw(*(order(n) or (n,)), e) for n, e in ((t, m.embed_dim), (s, m.kdim), (s, m.vdim))]

    def bools(self, *shape):
        """True for about a third, and never for the first key, which a causal query may need."""
        mask = self.rng.random(shape) < 0.35
        mask[..., 0] = False
        return mask

    def test_self_attention(self):
        for device, dtype, tolerance in DEVICES:
            for embed, heads, t, batch_first, bias in ((12, 3, 7, False, True), (40, 5, 33, True, False), (8, 8, 70, True, True), (7, 1, 1, False, False)):
                pair = self.pair(embed, heads, device, dtype, batch_first=batch_first, bias=bias)
                for batch in (3, None):
                    x = self.inputs(pair, (t, t), batch)[0]
                    what = f"{device} {dtype} {embed} {heads} {batch}"
                    pair.compare(what, lambda run, layer, x: run.forward(layer, x), lambda m, x: oracle(m, x, x, x), [x], tolerance)
                    pair.compare(what, lambda run, layer, x: attend(run, layer, x, x, x, causal=True), lambda m, x: oracle(m, x, x, x, causal=True), [x], tolerance)

    def test_memory(self):
        """One tensor of keys and values, or two, of one width or of others."""
        for device, dtype, tolerance in DEVICES:
            for fields in (dict(), dict(kdim=5), dict(vdim=9), dict(kdim=4, vdim=3, bias=False), dict(batch_first=True, kdim=6, vdim=6)):
                pair = self.pair(12, 2, device, dtype, **fields)
                for lengths, batch in (((5, 11), 2), ((20, 3), None)):
                    arrays = self.inputs(pair, lengths, batch)
                    what = f"{device} {dtype} {fields} {batch}"
                    pair.compare(what, attend, oracle, arrays, tolerance)
                    if pair.module.kdim == pair.module.vdim:
                        pair.compare(what, lambda r, l, q, k: attend(r, l, q, k, k), lambda m, q, k: oracle(m, q, k, k), arrays[:2], tolerance)
                    if pair.module.kdim == 12:
                        pair.compare(what, lambda r, l, q, v: attend(r, l, q, q, v), lambda m, q, v: oracle(m, q, q, v), self.inputs(pair, (lengths[0],) * 2, batch)[::2], tolerance)

    def test_masks(self):
        """Of each kind and shape, alone and together, of bool and added."""
        t, s, n, heads = 9, 13, 3, 2
        for device, dtype, tolerance in DEVICES:
            for batch in (n, None):
                pair = self.pair(8, heads, device, dtype, batch_first=batch is not None)
                shapes = [(t, s), ((batch or 1) * heads, t, s)], [(batch, s) if batch else (s,)]
                kinds = lambda shape: (self.bools(*shape), self.draw(*shape))
                masks = [[None] + [m for shape in of for m in kinds(shape)] for of in shapes]
                for attn_mask, padding, causal in itertools.product(*masks, (False, True)):
                    given = [m is not None for m in (attn_mask, padding)]
                    ours = lambda run, layer, *x: attend(run, layer, *self.spread(given, x), causal=causal)
                    theirs = lambda m, *x: oracle(m, *self.spread(given, x), causal=causal)
                    arrays = self.inputs(pair, (t, s), batch) + [m for m in (attn_mask, padding) if m is not None]
                    what = f"{device} {dtype} {batch} {[None if m is None else (m.dtype, m.shape) for m in (attn_mask, padding)]} {causal}"
                    pair.compare(what, ours, theirs, arrays, tolerance)

    @staticmethod
    def spread(given, x):
        """q, k, v and both masks, of which only the given ones are in x."""
        rest = iter(x[3:])
        return list(x[:3]) + [next(rest) if there else None for there in given]

    def test_a_query_without_keys(self):
        """Gets the output's bias, and no gradient is NaN."""
        for device, dtype, tolerance in DEVICES:
            pair = self.pair(6, 2, device, dtype, batch_first=True)
            run = pair.run
            x, padding = self.draw(2, 5, 6).astype(dtype), numpy.zeros((2, 5), bool)
            padding[1] = True
            leaf = run.parameter(x)
            y = attend(run, pair.layer, leaf, leaf, leaf, None, run.constant(padding))
            bias = pair.module.out_proj.bias.detach().numpy()
            numpy.testing.assert_allclose(run.value(y)[1], numpy.broadcast_to(bias, (5, 6)), 1e-6)
            run.backward(y, self.draw(2, 5, 6).astype(dtype))
            numpy.testing.assert_array_equal(run.grad(leaf)[1], 0)
            self.assertTrue(all(numpy.isfinite(run.grad(t)).all() for t in [leaf, *pair.entries().values()]))

    def test_dropout(self):
        """The weights that tern_dropout keeps in the same draw, in training; none is dropped in evaluation."""
        for p, device in itertools.product((0.4, 1.0), ("cpu", "cpu:reference")):
            pair = self.pair(8, 2, device, dropout=p, batch_first=True)
            run, m = pair.run, pair.module
            x = self.draw(3, 6, 8).astype("f")
            seed = lambda: run.lib.tern_scope_seed(run.scope, ctypes.c_uint64(5), ctypes.c_uint64(7))
            seed()
            factor = torch.tensor(run.value(run.op("tern_dropout", run.constant(numpy.ones((3, 2, 6, 6), "f")), ctypes.c_double(p)))).double()
            seed()
            got = run.value(run.forward(pair.layer, run.constant(x)))
            q, k, v = nn.functional.linear(torch.tensor(x).double(), m.in_proj_weight, m.in_proj_bias).reshape(3, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(2, 3) / 2).softmax(-1) * factor
            want = m.out_proj((weights @ v).transpose(1, 2).reshape(3, 6, 8)).detach()
            self.assertLess(error_of(got, want.numpy()), 1e-5)
            run.end()
            pair.train(False)
            pair.compare("evaluation", lambda run, layer, x: run.forward(layer, x), lambda m, x: oracle(m, x, x, x), [x], 3e-6)

    def test_autocast(self):
        """In bf16, with masks of f32 and of bool."""
        pair = self.pair(16, 2, batch_first=True)
        run = pair.run
        x, mask, padding = self.draw(2, 9, 16).astype("f"), self.draw(9, 9).astype("f"), self.bools(2, 9)
        want = oracle(pair.module, *[torch.tensor(x).double()] * 3, torch.tensor(mask).double(), torch.tensor(padding))
        run.lib.tern_autocast_set(run.scope, BF16)
        tensor = run.constant(x)
        y = attend(run, pair.layer, tensor, tensor, tensor, run.constant(mask), run.constant(padding))
        self.assertEqual(run.lib.tern_tensor_dtype(y), BF16)
        self.assertLess(error_of(run.value(y), want.detach().numpy()), 3e-2)
        run.lib.tern_autocast_set(run.scope, F32)
        run.end()

    def test_nothing(self):
        """No sequence, or none of a batch."""
        for shape in ((0, 4, 8), (2, 0, 8), (0, 8)):
            pair = self.pair(8, 2, batch_first=True)
            y = pair.run.forward(pair.layer, pair.run.constant(numpy.zeros(shape, "f")))
            self.assertEqual(pair.run.shape(y), shape)

    def test_on_another_device(self):
        """What the module makes of the masks is where they are, not at the scope's home."""
        pair = self.pair(8, 2, "cpu:reference", batch_first=True)
        x, padding, masks = self.draw(3, 5, 8).astype("f"), self.bools(3, 5), (self.draw(5, 5).astype("f"), self.bools(5, 5))
        run, lib = pair.run, pair.lib
        home = ctypes.c_void_p(lib.check("tern_device_open", b"cpu:0"))
        lib.check("tern_module_to", pair.layer, run.device)
        first, run.scope = run.scope, ctypes.c_void_p(lib.check("tern_scope_new", home, None))
        for mask in masks:
            moved = [run.op("tern_to", run.constant(a), run.device) for a in (x, mask, padding)]
            kept = [ctypes.c_void_p(lib.check("tern_keep", tensor)) for tensor in moved]  # of no device: it follows the module's
            want = oracle(pair.module, *[torch.tensor(x).double()] * 3, *[torch.tensor(a.astype("d") if a.dtype == "f" else a) for a in (mask, padding)])
            for tensors in (moved, kept):
                y = attend(run, pair.layer, *[tensors[0]] * 3, *tensors[1:])
                self.assertLess(error_of(run.value(y), want.detach().numpy()), 1e-5)
            run.end()
            for tensor in kept:
                lib.tern_tensor_free(tensor)
        lib.tern_scope_free(run.scope)
        lib.tern_device_close(home)
        run.scope = first

    def test_refused(self):
        run = Run("cpu")
        self.addCleanup(run.close)
        rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(0)))
        for (embed, heads, fields), text in (
            ((10, 3, {}), "multihead_attention: expected at least 1 head, and features divisible by the heads; got 3 heads, 10 features"),
            ((0, 1, {}), "got 1 heads, 0 features"),
            ((4, 0, {}), "got 0 heads, 4 features"),
            ((4, 2, dict(kdim=-1)), "expected a kdim and vdim of at least 1, or 0, got -1 and 0"),
            ((4, 2, dict(dropout=1.5)), "expected a dropout in [0, 1], got 1.5"),
        ):
            with refused(self, run, text, RANGE):
                make(embed, heads, **fields)(run, rng)
        layer, other = make(4, 2, vdim=3)(run, rng), run.layer("tern_relu_new")
        run.lib.tern_rng_free(rng)
        f = lambda *shape: run.constant(numpy.ones(shape, "f"))
        b = lambda *shape: run.constant(numpy.zeros(shape, "?"))
        good = lambda: (f(5, 2, 4), f(6, 2, 4), f(6, 2, 3))
        for call, code, text in (
            (lambda: attend(run, layer, f(5, 2, 4), f(6, 2, 4), f(6, 2, 4)), SHAPE, "expected q (T, N, 4), k (S, N, 4) and v (S, N, 3), or none with N, got (5, 2, 4), (6, 2, 4) and (6, 2, 4)"),
            (lambda: attend(run, layer, f(5, 2, 4), f(6, 1, 4), f(6, 1, 3)), SHAPE, "got (5, 2, 4), (6, 1, 4) and (6, 1, 3)"),
            (lambda: attend(run, layer, f(5, 2, 4), f(6, 2, 4), f(7, 2, 3)), SHAPE, "got (5, 2, 4), (6, 2, 4) and (7, 2, 3)"),
            (lambda: attend(run, layer, f(5, 4), f(6, 2, 4), f(6, 2, 3)), SHAPE, "got (5, 4), (6, 2, 4) and (6, 2, 3)"),
            (lambda: attend(run, layer, f(4), f(4), f(3)), SHAPE, "got (4), (4) and (3)"),
            (lambda: attend(run, layer, *good(), b(6, 5)), SHAPE, "expected attn_mask (5, 6) or (4, 5, 6), got (6, 5)"),
            (lambda: attend(run, layer, *good(), b(2, 5, 6)), SHAPE, "expected attn_mask (5, 6) or (4, 5, 6), got (2, 5, 6)"),
            (lambda: attend(run, layer, *good(), None, b(6, 2)), SHAPE, "expected key_padding_mask (2, 6), got (6, 2)"),
            (lambda: attend(run, layer, *good(), run.constant(numpy.zeros((5, 6), "i8"))), DTYPE, "expected attn_mask of bool or floating point, got i64"),
            (lambda: attend(run, other, *good()), INVALID, "expected a multihead_attention with its own forward, got relu"),
        ):
            with refused(self, run, text, code):
                call()


if __name__ == "__main__":
    skips.main()
