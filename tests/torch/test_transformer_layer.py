"""tern's layers of transformers, and stacks of them, compared with torch.nn's: state dicts, initial weights, values, gradients, masks,
training and evaluation."""
import ctypes
import itertools
import unittest

import numpy
import torch
from torch import nn

import skips
from amp_rank import AmpOpts
from layers import Pair, refused
from nets import SgdOpts
from ops import BF16, F16, F32, Run, error_of

DEVICES = [("cpu", "f", 1e-5), ("cpu", "d", 1e-12), ("cpu:reference", "f", 1e-5)]
SHAPE, RANGE, INVALID = -2, -7, -1
RELU, GELU = range(2)


class Opts(ctypes.Structure):
    """tern_transformer_layer_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("feedforward", ctypes.c_int64),
        ("dropout", ctypes.c_double),
        ("activation", ctypes.c_int),
        ("eps", ctypes.c_double),
        ("batch_first", ctypes.c_bool),
        ("norm_first", ctypes.c_bool),
        ("bias", ctypes.c_bool),
    ]


class EncoderCall(ctypes.Structure):
    """tern_transformer_encoder_call_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("src_mask", ctypes.c_void_p), ("src_key_padding_mask", ctypes.c_void_p), ("is_causal", ctypes.c_bool)]


class DecoderCall(ctypes.Structure):
    """tern_transformer_decoder_call_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("tgt_mask", ctypes.c_void_p),
        ("memory_mask", ctypes.c_void_p),
        ("tgt_key_padding_mask", ctypes.c_void_p),
        ("memory_key_padding_mask", ctypes.c_void_p),
        ("tgt_is_causal", ctypes.c_bool),
        ("memory_is_causal", ctypes.c_bool),
    ]


def opts_of(run, fields):
    run.lib.returns(Opts, "tern_transformer_layer_defaults")
    opts = run.lib.tern_transformer_layer_defaults()
    for name, value in fields.items():
        setattr(opts, name, value)
    return opts


def make(kind, embed, heads, layers=None, norm=False, **fields):
    """`kind`: encoder or decoder; with `layers` a stack."""

    def new(run, rng):
        opts, sizes = opts_of(run, fields), [ctypes.c_int64(embed), ctypes.c_int64(heads)]
        if layers is None:
            return run.layer(f"tern_transformer_{kind}_layer_new", *sizes, ctypes.byref(opts), rng)
        last = ctypes.c_void_p(run.lib.check("tern_layer_norm_new", 1, (ctypes.c_int64 * 1)(embed), None)) if norm else None
        return run.layer(f"tern_transformer_{kind}_new", layers, *sizes, ctypes.byref(opts), last, rng)

    return new


def torch_make(kind, embed, heads, layers=None, norm=False, feedforward=2048, activation=RELU, eps=1e-5, **fields):
    layer_kind, stack = (nn.TransformerEncoderLayer, nn.TransformerEncoder) if kind == "encoder" else (nn.TransformerDecoderLayer, nn.TransformerDecoder)

    def new():
        layer = layer_kind(embed, heads, feedforward, activation=("relu", "gelu")[activation], layer_norm_eps=eps, **fields)
        return layer if layers is None else stack(layer, layers, nn.LayerNorm(embed) if norm else None)

    return new


def encode(run, layer, src, is_stack=False, **masks):
    opts = EncoderCall(ctypes.sizeof(EncoderCall), **masks)
    return run.op_of(f"tern_transformer_encoder_{'' if is_stack else 'layer_'}forward", layer, src, ctypes.byref(opts))


def decode(run, layer, tgt, memory, is_stack=False, **masks):
    opts = DecoderCall(ctypes.sizeof(DecoderCall), **masks)
    return run.op_of(f"tern_transformer_decoder_{'' if is_stack else 'layer_'}forward", layer, tgt, memory, ctypes.byref(opts))


def causal(t, s=None):
    return torch.ones(t, s or t).triu(1).bool()


class TransformerLayerTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, *shape):
        return self.rng.standard_normal(shape)

    def bools(self, *shape):
        mask = self.rng.random(shape) < 0.35
        mask[..., 0] = False
        return mask

    def pair(self, kind, device="cpu", dtype="f", embed=12, heads=3, randomise=True, **fields):
        fields = {"feedforward": 20, "dropout": 0.0, **fields}
        pair = Pair(self, make(kind, embed, heads, **fields), torch_make(kind, embed, heads, **fields), device, dtype)
        self.addCleanup(pair.close)
        if randomise:
            pair.randomise()
        return pair

    def kinds(self):
        for norm_first, activation, batch_first in itertools.product((False, True), (RELU, GELU), (False, True)):
            yield dict(norm_first=norm_first, activation=activation, batch_first=batch_first, eps=(1e-5, 1e-3)[activation])

    def test_defaults(self):
        run = Run("cpu")
        opts = opts_of(run, {})
        run.close()
        self.assertEqual((opts.feedforward, opts.dropout, opts.activation, opts.eps), (2048, 0.1, RELU, 1e-5))
        self.assertEqual((opts.batch_first, opts.norm_first, opts.bias), (False, False, True))

    def test_encoder_layer(self):
        for device, dtype, tolerance in DEVICES:
            for fields in self.kinds():
                pair = self.pair("encoder", device, dtype, **fields)
                n, t = (3, 7) if fields["batch_first"] else (7, 3)
                x = self.draw(n, t, 12)
                length, batch = x.shape[fields["batch_first"]], x.shape[not fields["batch_first"]]
                pair.compare(f"{device} {fields}", lambda run, layer, x: run.forward(layer, x), lambda m, x: m(x), [x], tolerance)
                ours = lambda run, layer, x, mask, padding: encode(run, layer, x, src_mask=mask, src_key_padding_mask=padding)
                theirs = lambda m, x, mask, padding: m(x, src_mask=mask, src_key_padding_mask=padding)
                for mask in (self.bools(length, length), self.draw(length, length)):
                    pair.compare(f"{device} {fields} masks", ours, theirs, [x, mask, self.bools(batch, length)], tolerance)
                ours = lambda run, layer, x: encode(run, layer, x, is_causal=True)
                pair.compare(f"{device} {fields} causal", ours, lambda m, x: m(x, src_mask=causal(length)), [x], tolerance)

    def test_decoder_layer(self):
        t, s, n = 6, 9, 2
        for device, dtype, tolerance in DEVICES:
            for fields in self.kinds():
                pair = self.pair("decoder", device, dtype, **fields)
                shape = lambda length: (n, length, 12) if fields["batch_first"] else (length, n, 12)
                x, memory = self.draw(*shape(t)), self.draw(*shape(s))
                pair.compare(f"{device} {fields}", decode, lambda m, x, memory: m(x, memory), [x, memory], tolerance)
                names = "tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask"
                ours = lambda run, layer, x, memory, *masks: decode(run, layer, x, memory, **dict(zip(names, masks)))
                theirs = lambda m, x, memory, *masks: m(x, memory, **dict(zip(names, masks)))
                masks = [self.bools(t, t), self.draw(t, s), self.bools(n, t), self.bools(n, s)]
                pair.compare(f"{device} {fields} masks", ours, theirs, [x, memory, *masks], tolerance)
                ours = lambda run, layer, x, memory: decode(run, layer, x, memory, tgt_is_causal=True, memory_is_causal=True)
                theirs = lambda m, x, memory: m(x, memory, tgt_mask=causal(t), memory_mask=causal(t, s))
                pair.compare(f"{device} {fields} causal", ours, theirs, [x, memory], tolerance)

    def test_without_bias(self):
        """As torch's layer whose biases are 0: 1.13 has no bias=False."""
        for kind, norm_first in itertools.product(("encoder", "decoder"), (False, True)):
            run = Run("cpu")
            self.addCleanup(run.close)
            rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(7)))
            layer = make(kind, 12, 3, feedforward=20, dropout=0.0, norm_first=norm_first, bias=False)(run, rng)
            run.lib.tern_rng_free(rng)
            module = torch_make(kind, 12, 3, feedforward=20, dropout=0.0, norm_first=norm_first)()
            names = [name for name in module.state_dict() if "bias" not in name]
            self.assertEqual(run.lib.tern_state_count(layer), len(names))
            for name, p in module.named_parameters():
                p.data = torch.zeros_like(p) if "bias" in name else torch.tensor(self.draw(*p.shape) * 0.3).float()
                if "bias" not in name:
                    run.write(ctypes.c_void_p(run.lib.tern_state_find(layer, name.encode())), p.detach().numpy())
            x, memory = (self.draw(5, 2, 12).astype("f") for _ in range(2))
            inputs = [torch.tensor(a).double() for a in ((x, memory) if kind == "decoder" else (x,))]
            want = module.double()(*inputs).detach().numpy()
            y = decode(run, layer, run.constant(x), run.constant(memory)) if kind == "decoder" else run.forward(layer, run.constant(x))
            self.assertLess(error_of(run.value(y), want), 1e-5)

    def test_stacks(self):
        """Layers begin alike; masks reach each of them."""
        for (device, dtype, tolerance), norm, norm_first in itertools.product(DEVICES, (False, True), (False, True)):
            fields = dict(layers=3, norm=norm, norm_first=norm_first, batch_first=True)
            pair = self.pair("encoder", device, dtype, **fields)
            x, mask, padding = self.draw(2, 7, 12), self.draw(7, 7), self.bools(2, 7)
            pair.compare("encoder", lambda run, layer, x: run.forward(layer, x), lambda m, x: m(x), [x], 3 * tolerance)
            ours = lambda run, layer, x, mask, padding: encode(run, layer, x, True, src_mask=mask, src_key_padding_mask=padding)
            pair.compare("encoder, masks", ours, lambda m, x, mask, padding: m(x, mask, padding), [x, mask, padding], 3 * tolerance)
            pair.compare("encoder, causal", lambda run, layer, x: encode(run, layer, x, True, is_causal=True), lambda m, x: m(x, causal(7)), [x], 3 * tolerance)
            pair = self.pair("decoder", device, dtype, **fields)
            ours = lambda run, layer, x, memory, padding: decode(run, layer, x, memory, True, tgt_is_causal=True, memory_key_padding_mask=padding)
            theirs = lambda m, x, memory, padding: m(x, memory, tgt_mask=causal(7), memory_key_padding_mask=padding)
            pair.compare("decoder", ours, theirs, [x, self.draw(2, 5, 12), self.bools(2, 5)], 3 * tolerance)

    def test_unbatched(self):
        pair = self.pair("decoder")
        pair.compare("unbatched", decode, lambda m, x, memory: m(x, memory), [self.draw(7, 12), self.draw(4, 12)], 1e-5)

    def test_evaluation_and_dropout(self):
        """In evaluation a dropout changes nothing; in training one of 1 leaves what goes past the parts."""
        pair = self.pair("encoder", dropout=1.0, norm_first=True)
        x = self.draw(7, 2, 12).astype("f")
        run = pair.run
        numpy.testing.assert_array_equal(run.value(run.forward(pair.layer, run.constant(x))), x)
        run.end()
        for kind, layers in itertools.product(("encoder", "decoder"), (None, 2)):
            pair = self.pair(kind, dropout=0.3, layers=layers)
            pair.train(False)
            arrays = [x, self.draw(5, 2, 12)][: 1 + (kind == "decoder")]
            ours = (lambda run, layer, *a: decode(run, layer, *a, is_stack=layers is not None)) if kind == "decoder" else lambda run, layer, a: run.forward(layer, a)
            pair.compare(f"{kind} {layers}", ours, lambda m, *a: m(*a), arrays, 3e-5)
            pair.train(True)
            values = {run.value(ours(run, pair.layer, *[run.constant(a.astype('f')) for a in arrays])).tobytes() for run in [pair.run] * 2}
            self.assertEqual(len(values), 2)
            pair.run.end()

    def test_halves(self):
        """A model in 16 bits, with a mask of its dtype, of f32 and of bool; and an amp of level O2, whose results are f32."""
        t, s, n = 6, 9, 2
        x, memory, mask, padding = self.draw(t, n, 12), self.draw(s, n, 12), self.draw(t, t), self.bools(n, s)
        for kind in ("bf16", "f16", "amp"):
            pair = self.pair("decoder")
            run, lib = pair.run, pair.lib
            inputs = [torch.tensor(a.astype("f").astype("d"), requires_grad=True) for a in (x, memory)]
            want = pair.module(*inputs, tgt_mask=torch.tensor(mask.astype("f")).double(), memory_key_padding_mask=torch.tensor(padding))
            amp = None
            if kind == "amp":
                lib.returns(AmpOpts, "tern_amp_defaults")
                opts = lib.tern_amp_defaults(2)
                amp = ctypes.c_void_p(lib.check("tern_amp_new", pair.layer, ctypes.byref(opts)))
            else:
                lib.check("tern_module_cast", pair.layer, BF16 if kind == "bf16" else F16)
            for masked_by in (F32, None):
                leaves = [run.constant(a.astype("f")) for a in (x, memory)]
                for leaf in leaves:
                    lib.check("tern_requires_grad_set", leaf, True)
                cast = lambda tensor: tensor if amp else run.op("tern_cast", tensor, BF16 if kind == "bf16" else F16)
                own = run.constant(mask.astype("f"))
                y = decode(run, pair.layer, *map(cast, leaves), tgt_mask=own if masked_by else cast(own), memory_key_padding_mask=run.constant(padding))
                if amp:
                    self.assertEqual(lib.tern_tensor_dtype(y), F32)
                self.assertLess(error_of(run.value(y).astype("f"), want.detach().numpy()), 4e-2)
                dy = self.draw(t, n, 12).astype("f")
                run.backward(run.op("tern_cast", y, F32), dy)
                grads = torch.autograd.grad(want, inputs, torch.tensor(dy.astype("d")), retain_graph=True)
                for leaf, grad in zip(leaves, grads):
                    self.assertLess(error_of(run.grad(leaf), grad.numpy()), 8e-2)
                lib.tern_zero_grad(pair.layer)
                run.end()
            if amp:
                lib.tern_amp_free(amp)

    def test_checkpoint(self):
        """tern_checkpoint of a layer gives the bits of its call, with the same draws of dropout."""
        pair = self.pair("encoder", dropout=0.2, layers=2, norm=True)
        run, x, dy, got = pair.run, self.draw(7, 2, 12).astype("f"), self.draw(7, 2, 12).astype("f"), []
        for call in ("tern_forward", "tern_checkpoint"):
            run.lib.tern_scope_seed(run.scope, ctypes.c_uint64(5), ctypes.c_uint64(7))
            leaf = run.constant(x)
            run.lib.check("tern_requires_grad_set", leaf, True)
            y = run.op_of(call, pair.layer, leaf)
            value = run.value(y)
            run.lib.tern_zero_grad(pair.layer)
            run.backward(y, dy)
            got.append([value, run.grad(leaf)] + [run.grad(tensor) for tensor in pair.entries().values()])
            run.end()
        for a, b in zip(*got):
            numpy.testing.assert_array_equal(a, b)

    def test_steps(self):
        """Twenty steps of SGD reach the same losses as torch's."""
        pair = self.pair("encoder", layers=2, norm=True, randomise=False, batch_first=True)
        run, module, lib = pair.run, pair.module, pair.lib
        xs, target = [self.draw(4, 9, 12).astype("f") for _ in range(20)], self.draw(4, 9, 12).astype("f")
        lib.returns(SgdOpts, "tern_sgd_defaults")
        opts = lib.tern_sgd_defaults()
        opts.lr = 0.05
        optim = ctypes.c_void_p(lib.check("tern_sgd_new", pair.layer, ctypes.byref(opts)))
        theirs = torch.optim.SGD(module.parameters(), 0.05)
        for x in xs:
            loss = run.op("tern_mse_loss", run.forward(pair.layer, run.constant(x)), run.constant(target), 0)
            run.backward(loss)
            ours = lib.tern_item(loss)
            lib.tern_optim_step(optim, run.scope)
            run.end()
            want = nn.functional.mse_loss(module(torch.tensor(x).double()), torch.tensor(target).double())
            theirs.zero_grad()
            want.backward()
            theirs.step()
            self.assertLess(abs(ours - want.item()), 1e-4 * want.item())
        lib.tern_optim_free(optim)

    def test_refused(self):
        run = Run("cpu")
        self.addCleanup(run.close)
        rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(0)))
        for kind in ("encoder", "decoder"):
            for fields, code, text in (
                (dict(feedforward=0), RANGE, "transformer: feedforward is 0, expected at least 1"),
                (dict(activation=7), INVALID, "transformer: activation is 7"),
                (dict(dropout=-0.5), RANGE, "multihead_attention: expected a dropout in [0, 1], got -0.5"),
                (dict(heads=5), RANGE, "features divisible by the heads; got 5 heads, 12 features"),
                (dict(layers=0, norm=True), RANGE, "transformer: expected at least 1 layer, got 0"),
                (dict(layers=2, feedforward=0, norm=True), RANGE, "transformer: feedforward is 0"),
            ):
                with refused(self, run, text, code):
                    make(kind, 12, **{"heads": 3, **fields})(run, rng)
        layers = {(kind, stack): make(kind, 12, 3, stack, feedforward=4)(run, rng) for kind in ("encoder", "decoder") for stack in (None, 1)}
        run.lib.tern_rng_free(rng)
        x = lambda *shape: run.constant(numpy.ones(shape or (5, 2, 12), "f"))
        for stack, name in ((None, "_layer"), (1, "")):
            encoder, decoder = layers["encoder", stack], layers["decoder", stack]
            for call, code, text in (
                (lambda: run.forward(decoder, x()), INVALID, f"transformer_decoder{name}: it needs memory too: call tern_transformer_decoder{name}_forward"),
                (lambda: encode(run, decoder, x(), bool(stack)), INVALID, f"expected a transformer_encoder{name} with its own forward, got transformer_decoder{name}"),
                (lambda: decode(run, encoder, x(), x(), bool(stack)), INVALID, f"expected a transformer_decoder{name} with its own forward, got transformer_encoder{name}"),
                (lambda: run.forward(encoder, x(5, 2, 11)), SHAPE, "got (5, 2, 11)"),
                (lambda: encode(run, encoder, x(), bool(stack), src_mask=x(4, 5)), SHAPE, "expected attn_mask (5, 5) or (6, 5, 5), got (4, 5)"),
                (lambda: decode(run, decoder, x(), x(4, 2, 12), bool(stack), memory_key_padding_mask=x(4, 2)), SHAPE, "expected key_padding_mask (2, 4), got (4, 2)"),
                (lambda: decode(run, decoder, x(), x(4, 3, 12), bool(stack)), SHAPE, "got (5, 2, 12), (4, 3, 12) and (4, 3, 12)"),
            ):
                with refused(self, run, text, code):
                    call()


if __name__ == "__main__":
    skips.main()
