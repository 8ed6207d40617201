"""tern's BERT compared with a module of the same formulas and names as transformers' BertModel: state dicts, initial weights, values,
gradients, masks, token types, positions. test_bert_newest.py compares with transformers itself."""
import ctypes
import itertools
import math
import unittest

import numpy
import torch
from torch import nn

import skips
from layers import Pair, refused
from ops import BF16, F32, Run, error_of

DEVICES = [("cpu", "f", 1e-5), ("cpu", "d", 1e-12), ("cpu:reference", "f", 1e-5)]
SHAPE, RANGE, INVALID = -2, -7, -1
SMALL = dict(vocab_size=29, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=12,
             type_vocab_size=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Opts(ctypes.Structure):
    """tern_bert_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_int64),
        ("hidden_size", ctypes.c_int64),
        ("num_hidden_layers", ctypes.c_int),
        ("num_attention_heads", ctypes.c_int64),
        ("intermediate_size", ctypes.c_int64),
        ("max_position_embeddings", ctypes.c_int64),
        ("type_vocab_size", ctypes.c_int64),
        ("pad_token_id", ctypes.c_int64),
        ("layer_norm_eps", ctypes.c_double),
        ("hidden_dropout_prob", ctypes.c_double),
        ("attention_probs_dropout_prob", ctypes.c_double),
        ("initializer_range", ctypes.c_double),
        ("add_pooling_layer", ctypes.c_bool),
    ]


class CallOpts(ctypes.Structure):
    """tern_bert_call_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("attention_mask", ctypes.c_void_p), ("token_type_ids", ctypes.c_void_p), ("position_ids", ctypes.c_void_p)]


def opts_of(run, fields):
    run.lib.returns(Opts, "tern_bert_defaults")
    opts = run.lib.tern_bert_defaults()
    for name, value in fields.items():
        setattr(opts, name, value)
    return opts


def make(**fields):
    return lambda run, rng: run.layer("tern_bert_new", ctypes.byref(opts_of(run, fields)), rng)


def encode(run, layer, ids, **given):
    return run.op_of("tern_bert_forward", layer, ids, ctypes.byref(CallOpts(ctypes.sizeof(CallOpts), **given)))


def pool(run, layer, states):
    return run.op_of("tern_bert_pooler_forward", layer, states)


def group(**modules):
    """A module that only gives its children a name."""
    module = nn.Module()
    for name, child in modules.items():
        module.add_module(name, child)
    return module


class BertLayer(nn.Module):
    def __init__(self, o):
        super().__init__()
        linear = lambda *sizes: nn.Linear(*sizes)
        norm = lambda: nn.LayerNorm(o.hidden_size, eps=o.layer_norm_eps)
        size, wide = o.hidden_size, o.intermediate_size
        self.heads = o.num_attention_heads
        part = group(query=linear(size, size), key=linear(size, size), value=linear(size, size))
        self.attention = group(self=part, output=group(dense=linear(size, size), LayerNorm=norm()))
        self.intermediate = group(dense=linear(size, wide))
        self.output = group(dense=linear(wide, size), LayerNorm=norm())

    def forward(self, x, mask):
        part = getattr(self.attention, "self")
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (part.query, part.key, part.value))
        y = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + mask).softmax(-1) @ v
        y = self.attention.output.dense(y.transpose(1, 2).flatten(2))
        x = self.attention.output.LayerNorm(y + x)
        y = self.output.dense(nn.functional.gelu(self.intermediate.dense(x)))
        return self.output.LayerNorm(y + x)


class Bert(nn.Module):
    """Without dropout."""

    def __init__(self, o):
        super().__init__()
        padding = o.pad_token_id if o.pad_token_id >= 0 else None
        self.embeddings = group(
            word_embeddings=nn.Embedding(o.vocab_size, o.hidden_size, padding_idx=padding),
            position_embeddings=nn.Embedding(o.max_position_embeddings, o.hidden_size),
            token_type_embeddings=nn.Embedding(o.type_vocab_size, o.hidden_size),
            LayerNorm=nn.LayerNorm(o.hidden_size, eps=o.layer_norm_eps),
        )
        self.encoder = group(layer=nn.ModuleList([BertLayer(o) for _ in range(o.num_hidden_layers)]))
        if o.add_pooling_layer:
            self.pooler = group(dense=nn.Linear(o.hidden_size, o.hidden_size))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.data.normal_(0, o.initializer_range)
            if isinstance(module, nn.Linear):
                module.bias.data.zero_()
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()

    def forward(self, ids, attention_mask=None, token_type_ids=None, position_ids=None):
        e = self.embeddings
        types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids.long()
        positions = torch.arange(ids.shape[1])[None] if position_ids is None else position_ids.long()
        x = e.LayerNorm(e.word_embeddings(ids.long()) + e.token_type_embeddings(types.long()) + e.position_embeddings(positions))
        mask = torch.zeros(1, 1, 1, 1, dtype=x.dtype)
        if attention_mask is not None:
            there = (attention_mask != 0)[:, None, None] if attention_mask.ndim == 2 else (attention_mask != 0)[:, None]
            mask = torch.zeros(there.shape, dtype=x.dtype).masked_fill(~there, -math.inf)
        for layer in self.encoder.layer:
            x = layer(x, mask)
        return x

    def pooled(self, states):
        return torch.tanh(self.pooler.dense(states[:, 0]))


class BertTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def pair(self, device="cpu", dtype="f", randomise=True, **fields):
        fields = {**SMALL, **fields}
        run = Run("cpu")
        opts = opts_of(run, fields)
        run.close()
        pair = Pair(self, make(**fields), lambda: Bert(opts), device, dtype)
        self.addCleanup(pair.close)
        if randomise:
            pair.randomise()
        return pair

    def ids(self, *shape, count=29, dtype="i8"):
        return self.rng.integers(0, count, shape).astype(dtype)

    def mask(self, *shape, dtype="i8"):
        mask = (self.rng.random(shape) < 0.7).astype(dtype)
        mask[..., 0] = 1
        return mask

    def test_defaults(self):
        run = Run("cpu")
        opts = opts_of(run, {})
        run.close()
        got = {name: getattr(opts, name) for name, _ in Opts._fields_[1:]}
        self.assertEqual(got, dict(vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
                                   max_position_embeddings=512, type_vocab_size=2, pad_token_id=0, layer_norm_eps=1e-12, hidden_dropout_prob=0.1,
                                   attention_probs_dropout_prob=0.1, initializer_range=0.02, add_pooling_layer=True))

    def test_without_options(self):
        for device, dtype, tolerance in DEVICES:
            for fields in (dict(), dict(pad_token_id=-1, add_pooling_layer=False), dict(pad_token_id=7, num_attention_heads=1, layer_norm_eps=1e-3)):
                pair = self.pair(device, dtype, **fields)
                for shape, kind in (((3, 7), "i8"), ((1, 12), "i4"), ((4, 1), "i8")):
                    pair.compare(f"{device} {fields} {shape}", lambda run, layer, ids: run.forward(layer, ids), lambda m, ids: m(ids.long()), [self.ids(*shape, dtype=kind)], tolerance)

    def test_options(self):
        """Each alone and all together, of several dtypes."""
        names = "attention_mask", "token_type_ids", "position_ids"
        for device, dtype, tolerance in DEVICES:
            pair = self.pair(device, dtype)
            kinds = ("i8", "i4", "?", "f", "u1") if device == "cpu" and dtype == "f" else ("i8",)
            for i, (kind, mask_shape) in enumerate(itertools.product(kinds, ((3, 7), (3, 7, 7)))):
                batch = (1, 3)[i % 2]
                integers = kind if kind == "i4" else "i8"
                values = [self.mask(*mask_shape, dtype=kind), self.ids(3, 7, count=3, dtype=integers), self.ids(batch, 7, count=12, dtype=integers)]
                for which in ((i % 3,), (0, 1, 2)):
                    given = [names[i] for i in which]
                    theirs = lambda m, ids, *rest: m(ids, **dict(zip(given, rest)))
                    ours = lambda run, layer, ids, *rest: encode(run, layer, ids, **dict(zip(given, rest)))
                    arrays = [self.ids(3, 7)] + [values[i] for i in which]
                    if kind == "f" and 0 in which:  # no gradient goes to it
                        mask = values[0]
                        fixed = [a for a in arrays if a.dtype.kind != "f"]
                        ours = lambda run, layer, ids, *rest: encode(run, layer, ids, attention_mask=run.constant(mask), **dict(zip(given[1:], rest)))
                        theirs = lambda m, ids, *rest: m(ids, torch.tensor(mask), **dict(zip(given[1:], rest)))
                        arrays = fixed
                    pair.compare(f"{device} {kind} {given}", ours, theirs, arrays, tolerance)

    def test_pooler(self):
        for device, dtype, tolerance in DEVICES:
            pair = self.pair(device, dtype)
            pair.compare(device, lambda run, layer, ids: pool(run, layer, run.forward(layer, ids)), lambda m, ids: m.pooled(m(ids)), [self.ids(3, 7)], tolerance)

    def test_a_sequence_of_nothing(self):
        """Where no token takes part the attention gives 0, and no gradient is NaN."""
        for device in ("cpu", "cpu:reference"):
            pair = self.pair(device)
            run, mask = pair.run, numpy.ones((2, 5), "i8")
            mask[1] = 0
            y = encode(run, pair.layer, run.constant(self.ids(2, 5)), attention_mask=run.constant(mask))
            self.assertTrue(numpy.isfinite(run.value(y)).all())
            run.backward(y, self.rng.standard_normal((2, 5, 24)).astype("f"))
            grads = [run.grad(t) for name, t in pair.entries().items() if "pooler" not in name]
            self.assertTrue(all(numpy.isfinite(grad).all() for grad in grads))

    def test_dropout(self):
        """In training results differ from call to call; in evaluation they are torch's."""
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            pair, ids = self.pair(**{name: 0.3}), self.ids(3, 7)
            run = pair.run
            values = {run.value(run.forward(pair.layer, run.constant(ids))).tobytes() for _ in range(2)}
            self.assertEqual(len(values), 2)
            run.end()
            pair.train(False)
            pair.compare(name, lambda run, layer, ids: run.forward(layer, ids), lambda m, ids: m(ids), [ids], 1e-5)

    def test_autocast(self):
        pair, ids, mask = self.pair(), self.ids(3, 7), self.mask(3, 7)
        want = pair.module(torch.tensor(ids), torch.tensor(mask)).detach().numpy()
        run = pair.run
        run.lib.tern_autocast_set(run.scope, BF16)
        y = encode(run, pair.layer, run.constant(ids), attention_mask=run.constant(mask))
        self.assertLess(error_of(run.value(y), want), 5e-2)
        run.lib.tern_autocast_set(run.scope, F32)
        run.end()

    def test_on_another_device(self):
        """What the model adds to the inputs is where they are, not at the scope's home."""
        pair, ids, mask = self.pair("cpu:reference"), self.ids(3, 7), self.mask(3, 7)
        run, lib = pair.run, pair.lib
        home = ctypes.c_void_p(lib.check("tern_device_open", b"cpu:0"))
        lib.check("tern_module_to", pair.layer, run.device)
        first, run.scope = run.scope, ctypes.c_void_p(lib.check("tern_scope_new", home, None))
        moved = [run.op("tern_to", run.constant(a), run.device) for a in (ids, mask)]
        kept = [ctypes.c_void_p(lib.check("tern_keep", tensor)) for tensor in moved]  # of no device: it follows the model's
        for tensors in (moved, kept):
            y = encode(run, pair.layer, tensors[0], attention_mask=tensors[1])
            self.assertLess(error_of(run.value(y), pair.module(torch.tensor(ids), torch.tensor(mask)).detach().numpy()), 1e-5)
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
        for fields, text in (
            (dict(num_hidden_layers=0), "bert: num_hidden_layers is 0, expected at least 1"),
            (dict(num_attention_heads=5), "and a hidden_size divisible by num_attention_heads; got 5 heads, 24 features"),
            (dict(num_attention_heads=0), "got 0 heads, 24 features"),
            (dict(hidden_dropout_prob=2), "bert: hidden_dropout_prob is 2 and attention_probs_dropout_prob 0, expected numbers in [0, 1]"),
            (dict(pad_token_id=29), "embedding: expected a padding_idx in [0, 29) or -1, got 29"),
            (dict(vocab_size=0), "embedding: expected at least 1 row"),
            (dict(max_position_embeddings=0), "embedding: expected at least 1 row"),
            (dict(type_vocab_size=0), "embedding: expected at least 1 row"),
            (dict(intermediate_size=0), "linear: expected at least 1 feature in and out, got 24 and 0"),
        ):
            with refused(self, run, text, RANGE):
                make(**{**SMALL, **fields})(run, rng)
        layer, without, other = make(**SMALL)(run, rng), make(**{**SMALL, "add_pooling_layer": False})(run, rng), run.layer("tern_relu_new")
        run.lib.tern_rng_free(rng)
        x = lambda *shape: run.constant(numpy.zeros(shape, "i8"))
        f = lambda *shape: run.constant(numpy.zeros(shape, "f"))
        for call, code, text in (
            (lambda: run.forward(layer, x(2, 13)), SHAPE, "bert: expected input_ids (N, T) with T up to 12, got (2, 13)"),
            (lambda: run.forward(layer, x(5)), SHAPE, "bert: expected input_ids (N, T) with T up to 12, got (5)"),
            (lambda: encode(run, layer, x(2, 5), token_type_ids=x(1, 5)), SHAPE, "bert: expected token_type_ids (2, 5), got (1, 5)"),
            (lambda: encode(run, layer, x(2, 5), position_ids=x(2, 6)), SHAPE, "bert: expected position_ids (2, 5), got (2, 6)"),
            (lambda: encode(run, layer, x(2, 5), attention_mask=x(2, 4)), SHAPE, "bert: expected attention_mask (N, T) or (N, T, T) for input_ids (2, 5), got (2, 4)"),
            (lambda: encode(run, layer, x(2, 5), attention_mask=x(2, 5, 1)), SHAPE, "got (2, 5, 1)"),
            (lambda: encode(run, other, x(2, 5)), INVALID, "expected a bert with its own forward, got relu"),
            (lambda: pool(run, without, f(2, 5, 24)), INVALID, "bert: it was made without a pooler"),
            (lambda: pool(run, layer, f(2, 5, 23)), SHAPE, "bert: expected states (N, T, 24), got (2, 5, 23)"),
            (lambda: run.forward(layer, run.constant(numpy.full((2, 5), 29, "i8"))), RANGE, "29"),
        ):
            with refused(self, run, text, code):
                call()


if __name__ == "__main__":
    skips.main()
