"""tern_scaled_dot_product_attention compared with torch's matmul and softmax in f64 (PyTorch 1.13 has no public
scaled_dot_product_attention), over shapes, masks, groups of heads, dtypes and views; dropout with tern_dropout's own draw."""
import ctypes
import itertools
import math
import unittest

import numpy
import torch

import skips
import tern
from ops import BF16, F16, F32, Run, compare, error_of, gradient_check, in_16_bits, rounded

DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
# Blocks of 96 queries and 128 keys, vectors of 16, 8 or 4 numbers, panels of 8 or 4 rows: sizes beside all of these.
SHAPES = [
    # B, H, T, S, D, E
    (1, 1, 1, 2, 1, 1), (2, 3, 1, 70, 8, 8), (2, 1, 5, 2, 3, 7), (1, 2, 17, 33, 16, 16), (2, 2, 64, 64, 32, 32),
    (1, 2, 97, 129, 64, 64), (1, 1, 200, 131, 40, 24), (1, 2, 95, 260, 5, 80), (1, 1, 130, 128, 100, 33),
]
FEW = SHAPES[:2] + SHAPES[3:4] + SHAPES[5:7]


class Opts(ctypes.Structure):
    """tern_attention_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("is_causal", ctypes.c_bool),
        ("dropout", ctypes.c_double),
        ("scale", ctypes.c_double),
        ("enable_gqa", ctypes.c_bool),
        ("bthd", ctypes.c_bool),
    ]


def attention(run, q, k, v, mask=None, causal=False, dropout=0.0, scale=0.0, gqa=False, bthd=False):
    opts = Opts(ctypes.sizeof(Opts), causal, dropout, scale, gqa, bthd)
    return run.op("tern_scaled_dot_product_attention", q, k, v, mask, ctypes.byref(opts))


def oracle(q, k, v, mask=None, causal=False, scale=None, factor=None):
    """By definition. Rows without a key are 0, as in PyTorch since 2.5."""
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * (scale if scale else 1 / math.sqrt(q.shape[-1]))
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    dead = (scores == -math.inf).all(-1, keepdim=True)
    p = scores.masked_fill(dead, 0).softmax(-1).masked_fill(dead, 0)
    return (p if factor is None else p * factor) @ v


class AttentionTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, *shapes, dtype="f"):
        return [self.rng.standard_normal(shape).astype(dtype) for shape in shapes]

    def operands(self, shape, dtype="f", key_heads=None):
        b, h, t, s, d, e = shape
        return self.draw((b, h, t, d), (b, key_heads or h, s, d), (b, key_heads or h, s, e), dtype=dtype)

    def beside(self, what, arrays, tolerance, device="cpu", constant=(), threads=None, wrap=lambda op: op, **opts):
        ours = wrap(lambda r, q, k, v, mask=None: attention(r, q, k, v, mask, **opts))
        theirs = lambda q, k, v, mask=None: oracle(q, k, v, mask, opts.get("causal"), opts.get("scale"))
        compare(what, ours, theirs, arrays, tolerance, device, constant, threads, 4 * tolerance)

    def test_beside_torch(self):
        for device, dtype, tolerance in DEVICES:
            for shape in SHAPES if device == "cpu" else FEW:
                for causal in (False, True)[: 1 + (shape[2] > 1)]:  # the gradient for one key is nothing but rounding
                    what = f"{device} {dtype} {shape} {causal}"
                    self.beside(what, self.operands(shape, dtype), tolerance, device, causal=causal)

    def test_random_shapes(self):
        for i in range(25):
            b, h, groups = self.rng.integers(1, 3, 3)
            t, s = self.rng.integers(2, 260, 2)
            d, e = self.rng.integers(1, 70, 2)
            dtype, tolerance = (("f", 2e-6), ("d", 1e-13))[i % 2]
            shape = tuple(map(int, (b, h * groups, t, s, d, e)))
            opts = dict(causal=bool(self.rng.integers(2)), scale=float(self.rng.choice([0, 0.3, -0.2])), gqa=True)
            self.beside(f"{shape} {groups} {opts}", self.operands(shape, dtype, int(h)), tolerance, **opts)

    def test_one_key(self):
        """The result is its value, and queries and key have no gradient but rounding."""
        for device, dtype, tolerance in DEVICES:
            arrays, dy = self.operands((2, 2, 30, 1, 9, 5), dtype), self.draw((2, 2, 30, 5), dtype=dtype)[0]
            run = Run(device)
            leaves = [run.parameter(a) for a in arrays]
            y = attention(run, *leaves)
            run.backward(y, dy)
            numpy.testing.assert_allclose(run.value(y), numpy.broadcast_to(arrays[2], dy.shape), tolerance)
            self.assertLess(error_of(run.grad(leaves[2]), dy.sum(2, keepdims=True, dtype="d")), tolerance)
            for leaf in leaves[:2]:
                self.assertLess(numpy.abs(run.grad(leaf)).max(), 100 * tolerance)
            run.close()

    def test_few_queries(self):
        """One to nine, as when a model generates, with blocks of keys, groups of heads, masks, and rows of any size and distance."""
        for device, dtype, tolerance in DEVICES:
            for t, s, d, e in ((1, 300, 64, 64), (2, 129, 16, 33), (7, 260, 5, 8), (8, 128, 20, 16), (9, 131, 32, 7))[: 5 if device == "cpu" else 1]:
                arrays = self.operands((2, 4, t, s, d, e), dtype, 2)
                masks = [self.rng.random((t, s)) < 0.5, self.draw((2, 4, t, s), dtype=dtype)[0], self.draw((1, s), dtype=dtype)[0]]
                masks[0][0] = False  # a query without a key
                self.beside(f"{device} {t}", arrays, tolerance, device, gqa=True)
                for mask in masks[: 3 if device == "cpu" else 1]:
                    constant = (3,) if mask.dtype == bool else ()
                    self.beside(f"{device} {t} {mask.dtype} {mask.shape}", arrays + [mask], tolerance, device, constant, gqa=True)
                turned = [numpy.ascontiguousarray(a.swapaxes(1, 2)) for a in arrays]
                compare(f"{device} {t} bthd", lambda r, q, k, v: attention(r, q, k, v, gqa=True, bthd=True),
                        lambda q, k, v: oracle(*(a.transpose(1, 2) for a in (q, k, v))).transpose(1, 2), turned, tolerance, device,
                        gradient_tolerance=4 * tolerance)

    def test_few_queries_are_the_last_of_many(self):
        """A step of generation gives what the whole sequence gives for its last position, in each dtype."""
        for dtype, kind, tolerance in ((F32, torch.float32, 2e-6), (BF16, torch.bfloat16, 8e-3), (F16, torch.float16, 1e-3)):
            q, k, v = [rounded(a, kind) for a in self.operands((1, 3, 150, 150, 24, 24))]
            run = Run("cpu")
            results = []
            for queries, causal in ((q, True), (q[:, :, -1:], False)):
                inputs = [run.op("tern_cast", run.constant(a), dtype) for a in (numpy.ascontiguousarray(queries), k, v)]
                results.append(run.value(run.op("tern_cast", attention(run, *inputs, causal=causal), F32)))
            self.assertLess(error_of(results[1], results[0][:, :, -1:]), tolerance)
            run.close()

    def test_bf16_is_as_near_as_torch(self):
        """The largest error of results and gradients beside f64 is not above that of torch's products and softmax in bf16."""
        for t, s, d, causal in ((200, 200, 64, True), (97, 131, 33, False), (130, 257, 128, False)):
            arrays = [rounded(a, torch.bfloat16) for a in self.operands((1, 2, t, s, d, d))]
            dy = rounded(self.draw((1, 2, t, d))[0], torch.bfloat16)

            def of_torch(kind):
                leaves = [torch.tensor(a.astype("d")).to(kind).requires_grad_() for a in arrays]
                with torch.backends.mkldnn.flags(enabled=False):  # whose bf16 needs AVX-512
                    y = oracle(*leaves, causal=causal)
                    y.backward(torch.tensor(dy.astype("d")).to(kind))
                return [x.detach().double().numpy() for x in (y, *(leaf.grad for leaf in leaves))]

            run = Run("cpu")
            leaves = [run.parameter(a) for a in arrays]
            y = run.op("tern_cast", attention(run, *(run.op("tern_cast", x, BF16) for x in leaves), causal=causal), F32)
            run.backward(y, dy)
            got = [run.value(y), *(run.grad(leaf) for leaf in leaves)]
            for ours, theirs, want in zip(got, of_torch(torch.bfloat16), of_torch(torch.float64)):
                self.assertLessEqual(numpy.abs(ours - want).max(), numpy.abs(theirs - want).max())
            run.close()

    def test_fewer_dimensions(self):
        for ndim, device in itertools.product((2, 3), ("cpu", "cpu:reference")):
            for causal in (False, True):
                arrays = [a.reshape(a.shape[4 - ndim :]) for a in self.operands((1, 3 if ndim == 3 else 1, 19, 23, 6, 5))]
                self.beside(f"{ndim} dimensions, {device}", arrays, 2e-6, device, causal=causal)
                mask = self.draw((19, 23))
                if not causal:
                    self.beside(f"{ndim} dimensions, mask", arrays + mask, 2e-6, device)

    def test_groups_of_heads(self):
        for device, dtype, tolerance in DEVICES:
            for heads, key_heads in ((4, 2), (6, 1), (3, 3)):
                arrays = self.operands((2, heads, 33, 70, 12, 9), dtype, key_heads)
                self.beside(f"{device} {heads} {key_heads}", arrays, tolerance, device, causal=True, gqa=True)

    def test_positions_before_heads(self):
        """bthd: the same numbers as of permuted operands, also with a mask, groups and dropout."""
        for device, dtype, tolerance in DEVICES:
            for shape, key_heads, causal in (((2, 4, 33, 70, 12, 9), 2, False), ((1, 6, 20, 20, 5, 5), 6, True), ((3, 2, 1, 2, 4, 4), 1, False)):
                arrays = self.operands(shape, dtype, key_heads)
                turned = lambda *x: [a.transpose(1, 2) for a in x]
                mask = [] if causal else self.draw((shape[1], shape[2], shape[3]), dtype=dtype)
                compare(f"{device} {shape}", lambda r, q, k, v, m=None: attention(r, q, k, v, m, causal, gqa=True, bthd=True),
                        lambda q, k, v, m=None: oracle(*turned(q, k, v), m, causal).transpose(1, 2),
                        [numpy.ascontiguousarray(a.swapaxes(1, 2)) for a in arrays] + mask, tolerance, device, gradient_tolerance=4 * tolerance)
        results = []
        for bthd in (False, True):
            run = Run("cpu")
            rng = numpy.random.default_rng(2)
            arrays = [rng.standard_normal((2, 3, 17, 8)).astype("f") for _ in range(3)]
            y = attention(run, *(run.constant(numpy.ascontiguousarray(a.swapaxes(1, 2)) if bthd else a) for a in arrays), dropout=0.4, bthd=bthd)
            results.append(run.value(y).swapaxes(1, 2) if bthd else run.value(y))
            run.close()
        numpy.testing.assert_array_equal(*results)

    def test_parts_of_one_product(self):
        """q, k and v are slices of one tensor that no leaf is, so their gradients are written into its own: side by side, overlapping,
        the same one, with a gap, and used by something else, too."""
        for device, dtype, tolerance in DEVICES:
            for starts, extra in (((0, 2, 4), None), ((0, 1, 2), None), ((0, 0, 0), None), ((4, 0, 2), 0), ((1, 5, 3), 2), ((0, 2, 4), 1)):
                for early in (False, True):
                    def mixed(twice, cut, attend, add, x):
                        x = twice(x)
                        parts = {start: cut(x, start) for start in starts}
                        other = twice(parts[starts[extra]]) if extra is not None and early else None
                        y = attend(*(parts[start] for start in starts))
                        if extra is not None:
                            y = add(y, other if early else twice(parts[starts[extra]]))
                        return y

                    def ours(run, x):
                        zero = ctypes.c_int64(0)
                        cut = lambda x, at: run.op("tern_slice", x, 2, ctypes.c_int64(at), ctypes.c_int64(at + 2), ctypes.c_int64(1))
                        return mixed(lambda y: run.op("tern_affine", y, ctypes.c_double(2), ctypes.c_double(zero.value)), cut,
                                     lambda q, k, v: attention(run, q, k, v, causal=True, bthd=True), lambda a, b: run.op("tern_add", a, b), x)

                    def theirs(x):
                        heads = lambda q, k, v: oracle(*(a.transpose(1, 2) for a in (q, k, v)), causal=True).transpose(1, 2)
                        return mixed(lambda y: 2 * y, lambda x, at: x[:, :, at : at + 2], heads, lambda a, b: a + b, x)

                    compare(f"{device} {starts} {extra} {early}", ours, theirs, self.draw((2, 21, 7, 6), dtype=dtype), tolerance, device,
                            gradient_tolerance=20 * tolerance)

    def test_queries_of_some_positions(self):
        """q is a slice of the tensor that k and v are, or of k: it has a gradient of its own before it is added."""
        for device, dtype, tolerance in DEVICES:
            for first, last in ((0, 5), (3, 9), (8, 13)):
                def ours(run, x):
                    x = run.op("tern_affine", x, ctypes.c_double(2), ctypes.c_double(0))
                    q = run.op("tern_slice", x, 1, ctypes.c_int64(first), ctypes.c_int64(last), ctypes.c_int64(1))
                    return attention(run, q, x, x, bthd=True)

                def theirs(x):
                    x = 2 * x
                    return oracle(*(a.transpose(1, 2) for a in (x[:, first:last], x, x))).transpose(1, 2)

                compare(f"{device} {first} {last}", ours, theirs, self.draw((2, 13, 3, 6), dtype=dtype), tolerance, device,
                        gradient_tolerance=8 * tolerance)

    def test_masks(self):
        """Bool and added ones, broadcast along any dimensions; the gradient of an added one is summed over these."""
        b, h, t, s = 2, 3, 101, 67
        for device, dtype, tolerance in DEVICES:
            if device != "cpu":
                t, s = 9, 7
            arrays = self.operands((b, h, t, s, 10, 6), dtype)
            for sizes in [(b, h, t, s), (b, 1, 1, s), (1, h, t, 1), (t, s), (s,), (1, 1), (h, 1, s), (b, 1, t, s)]:
                bools = self.rng.random(sizes) < 0.7
                self.beside(f"{device} bool {sizes}", arrays + [bools], tolerance, device, constant=(3,))
                added = self.draw(sizes, dtype=dtype)
                added[0][self.rng.random(sizes) < 0.2] = -numpy.inf
                self.beside(f"{device} added {sizes}", arrays + added, tolerance, device, constant=(3,))
                if sizes[-1] > 1:  # softmax does not depend on what is added to all scores
                    self.beside(f"{device} learnt {sizes}", arrays + self.draw(sizes, dtype=dtype), tolerance, device)

    def test_strided_masks(self):
        """A slice of a larger one, transposed."""
        arrays = self.operands((2, 2, 40, 50, 8, 8))
        for kind in ("bool", "f"):
            whole = (self.rng.standard_normal((100, 41)) > -1).astype(kind)

            def op(run, q, k, v, mask):
                mask = run.op("tern_slice", mask, 0, *map(ctypes.c_int64, (0, 100, 2)))
                mask = run.op("tern_slice", mask, 1, *map(ctypes.c_int64, (1, 41, 1)))
                return attention(run, q, k, v, run.op("tern_transpose", mask, 0, 1))

            for device in ("cpu", "cpu:reference"):
                constant = (3,) if kind == "bool" else ()
                compare(kind, op, lambda q, k, v, mask: oracle(q, k, v, mask[::2, 1:].T), arrays + [whole], 2e-6, device, constant, gradient_tolerance=8e-6)

    def test_queries_without_keys(self):
        """Result and gradients are 0, with no NaN, also where whole blocks of keys are masked before others."""
        for device, dtype, tolerance in DEVICES:
            arrays = self.operands((2, 2, 20, 150, 8, 8), dtype)
            mask = numpy.ones((2, 1, 20, 150), bool)
            mask[0, 0, 3:7] = mask[1] = False
            mask[0, 0, 9, :130] = mask[0, 0, 10, 70:] = mask[0, 0, 11, 30:140] = False
            added = numpy.where(mask, 0, -numpy.inf).astype(dtype)
            for m, constant in ((mask, (3,)), (added, (3,)), (added, ())):
                self.beside(f"{device} {m.dtype}", arrays + [m], tolerance, device, constant)

    def test_views_of_one_product(self):
        """q, k and v are parts of (B, T, 3, H, D) with heads and positions permuted; and of (B, T, H, 3, D)."""
        b, t, h, d = 2, 70, 3, 8
        numbers = lambda *dims: (ctypes.c_int * len(dims))(*dims)
        for order, back in (((2, 0, 3, 1, 4), (b, t, 3, h, d)), ((3, 0, 2, 1, 4), (b, t, h, 3, d))):

            def op(run, x):
                parts = run.op("tern_permute", x, 5, numbers(*order))
                return attention(run, *[run.op("tern_select", parts, 0, ctypes.c_int64(i)) for i in range(3)], causal=True)

            for device, dtype, tolerance in DEVICES:
                x = self.draw(back, dtype=dtype)
                compare(f"{device} {order}", op, lambda x: oracle(*x.permute(order), causal=True), x, tolerance, device, gradient_tolerance=4 * tolerance)

    def test_rows_that_are_not_adjacent(self):
        for device in ("cpu", "cpu:reference"):
            turned = lambda run, x: run.op("tern_transpose", x, 2, 3)
            q, k, v = self.operands((2, 2, 18, 21, 6, 6))
            arrays = [a.transpose(0, 1, 3, 2).copy() for a in (q, k, v)]
            op = lambda run, *a: attention(run, *[turned(run, x) for x in a])
            compare(device, op, lambda *a: oracle(*[x.transpose(2, 3) for x in a]), arrays, 2e-6, device, gradient_tolerance=8e-6)

    def test_one_tensor_for_all(self):
        """Its gradient is the sum of three."""
        for device, dtype, tolerance in DEVICES:
            x = self.draw((2, 2, 130, 24), dtype=dtype)
            for ours, theirs in ((lambda r, x: x, lambda x: x), (lambda r, x: r.op("tern_tanh", x), torch.tanh)):
                op = lambda r, a: attention(r, *[ours(r, a)] * 3, causal=True)
                compare(device, op, lambda a: oracle(*[theirs(a)] * 3, causal=True), x, tolerance, device, gradient_tolerance=4 * tolerance)

    def test_large_scores(self):
        """No exponential overflows, and one key takes all."""
        for device, dtype, tolerance in DEVICES:
            arrays = self.operands((1, 2, 50, 140, 16, 16), dtype)
            arrays[0] *= 100
            self.beside(f"{device}", arrays, 50 * tolerance, device)

    def test_halves(self):
        for device in ("cpu", "cpu:reference"):
            for dtype, kind, tolerance in ((BF16, torch.bfloat16, 8e-3), (F16, torch.float16, 1e-3)):
                for shape in SHAPES[1:] if device == "cpu" else FEW[1:3]:
                    arrays = [rounded(a, kind) for a in self.operands(shape)]
                    wrap = lambda op: in_16_bits(op, dtype)
                    self.beside(f"{device} {dtype} {shape}", arrays, tolerance, device, wrap=wrap, causal=shape[2] > 1)
                    b, h, t, s, _, _ = shape
                    bools = self.rng.random((t, s)) < 0.8
                    self.beside(f"{device} {dtype} {shape} bool", arrays + [bools], tolerance, device, constant=(3,), wrap=wrap)
                    added = rounded(self.draw((h, t, s))[0], kind)
                    self.beside(f"{device} {dtype} {shape} added", arrays + [added], tolerance, device, wrap=wrap)

    def test_a_mask_of_f32_beside_halves(self):
        """Its gradient is f32's: those of many queries are added before they are rounded."""
        for device in ("cpu", "cpu:reference"):
            for dtype, kind, tolerance in ((BF16, torch.bfloat16, 8e-3), (F16, torch.float16, 1e-3)):
                arrays = [rounded(a, kind) for a in self.operands((2, 2, 40, 70, 16, 16))]

                def op(run, q, k, v, mask):
                    halves = [run.op("tern_cast", x, dtype) for x in (q, k, v)]
                    return run.op("tern_cast", attention(run, *halves, mask), F32)

                for sizes in ((40, 70), (1, 70)):
                    compare(f"{device} {dtype}", op, oracle, arrays + self.draw(sizes), tolerance, device, gradient_tolerance=4 * tolerance)

    def test_a_half_is_rounded_once(self):
        """Sums over many keys are those of f32."""
        q, k, v = [rounded(a, torch.float16) for a in self.operands((1, 1, 50, 1000, 32, 32))]
        want = oracle(*[torch.tensor(a.astype("d")) for a in (q, k, v)]).half().numpy()
        run = Run("cpu")
        got = run.value(attention(run, *[run.constant(a.astype("float16")) for a in (q, k, v)]))
        steps = numpy.abs(got.view("int16").astype(int) - want.view("int16").astype(int))
        self.assertLess((steps > 0).mean(), 0.02)
        run.close()

    def test_threads_give_the_same_bits(self):
        """More heads of k and v than threads, and fewer; with a mask's gradient that is one thread's, and one that is not."""
        for half, dtype, shape, key_heads in ((None, "f", (2, 4, 150, 140, 24, 16), 2), (None, "f", (1, 4, 290, 300, 24, 16), 1),
                                              (None, "d", (1, 2, 290, 300, 8, 8), 2), (BF16, "f", (1, 4, 150, 140, 24, 16), 1)):  # fmt: skip
            arrays, (b, h, t, s, _, e) = self.operands(shape, dtype, key_heads), shape
            dy = self.draw((b, h, t, e), dtype=dtype)[0]
            for opts, masks in (({}, [(t, s)]), ({}, [(b, h, t, s)]), ({"causal": True}, [])):
                masks, got = self.draw(*masks, dtype=dtype), set()
                for threads in (1, 2, 3, 5):
                    run = Run("cpu", threads)
                    leaves = [run.parameter(a) for a in arrays + masks]
                    inputs = [run.op("tern_cast", x, half) if half else x for x in leaves]
                    y = attention(run, *inputs, dropout=0.2, gqa=True, **opts)
                    y = run.op("tern_cast", y, F32) if half else y
                    run.backward(y, dy)
                    got.add(run.value(y).tobytes() + b"".join(run.grad(x).tobytes() for x in leaves))
                    run.close()
                self.assertEqual(len(got), 1)

    def test_dropout(self):
        """The weights that tern_dropout keeps of a tensor of ones (B, H, T, S) in the same draw; drawn again in backward."""
        for device, dtype, tolerance in DEVICES:
            b, h, t, s = (2, 2, 100, 131) if device == "cpu" else (1, 2, 7, 9)
            for p, causal in ((0.3, False), (0.5, True), (1, False)):
                arrays, dy = self.operands((b, h, t, s, 8, 5), dtype), self.draw((b, h, t, 5), dtype=dtype)[0]
                run = Run(device)
                seed = lambda: run.lib.tern_scope_seed(run.scope, ctypes.c_uint64(5), ctypes.c_uint64(7))
                seed()
                factor = run.value(run.op("tern_dropout", run.constant(numpy.ones((b, h, t, s), dtype)), ctypes.c_double(p)))
                run.end()
                seed()
                leaves = [run.parameter(a) for a in arrays]
                y = attention(run, *leaves, causal=causal, dropout=p)
                run.backward(y, dy)
                theirs = [torch.tensor(a.astype("d"), requires_grad=True) for a in arrays]
                want = oracle(*theirs, causal=causal, factor=torch.tensor(factor.astype("d")))
                want.backward(torch.tensor(dy.astype("d")))
                self.assertLess(error_of(run.value(y), want.detach().numpy()), 2 * tolerance)
                for leaf, their in zip(leaves, theirs):
                    self.assertLess(error_of(run.grad(leaf), their.grad.numpy()), 8 * tolerance)
                run.close()

    def test_dropout_draws_once_a_call(self):
        """0 draws nothing, and two calls have different weights."""
        arrays = self.operands((1, 1, 20, 20, 4, 4))
        run = Run("cpu")
        inputs = [run.constant(a) for a in arrays]
        plain = run.value(attention(run, *inputs))
        first, second = (run.value(attention(run, *inputs, dropout=0.5)) for _ in range(2))
        self.assertFalse((first == second).all() or (first == plain).all())
        run.end()
        run.lib.tern_scope_seed(run.scope, ctypes.c_uint64(0), ctypes.c_uint64(0))
        inputs = [run.constant(a) for a in arrays]
        numpy.testing.assert_array_equal(run.value(attention(run, *inputs, dropout=0.5)), first)
        run.close()

    def test_special_values(self):
        """A NaN is in its own query's result, or in all; an infinite score makes NaN, as in torch."""
        for device, dtype, _ in DEVICES:
            q, k, v = self.operands((1, 1, 30, 80, 4, 4), dtype)
            for which, place in ((0, (0, 0, 5, 1)), (1, (0, 0, 70, 1)), (2, (0, 0, 3, 2))):
                for value in (numpy.nan, numpy.inf):
                    arrays = [q.copy(), k.copy(), v.copy()]
                    arrays[which][place] = value
                    run = Run(device)
                    got = run.value(attention(run, *map(run.constant, arrays)))
                    want = oracle(*map(torch.tensor, arrays)).numpy()
                    numpy.testing.assert_array_equal(numpy.isnan(got), numpy.isnan(want))
                    run.close()

    def test_nothing(self):
        for device in ("cpu", "cpu:reference"):
            for shape in ((0, 2, 3, 4, 5, 6), (2, 0, 3, 4, 5, 6), (2, 2, 0, 4, 5, 6), (2, 2, 3, 0, 5, 6), (2, 2, 3, 4, 5, 0)):
                run = Run(device)
                leaves = [run.parameter(a) for a in self.operands(shape)]
                y = attention(run, *leaves)
                run.backward(run.op("tern_sum", y))
                self.assertEqual(run.value(y).shape, (*shape[:3], shape[5]))
                numpy.testing.assert_array_equal(run.value(y), 0)
                for leaf in leaves:
                    numpy.testing.assert_array_equal(run.grad(leaf), 0)
                run.close()

    def test_gradients_by_finite_differences(self):
        rng = numpy.random.default_rng(3)
        arrays = [rng.standard_normal(s) for s in ((1, 2, 3, 4), (1, 1, 5, 4), (1, 1, 5, 3), (3, 5))]
        gradient_check("attention", lambda run, *a: attention(run, *a, gqa=True), arrays)
        gradient_check("causal", lambda run, *a: attention(run, *a, causal=True, scale=0.7, gqa=True), arrays[:3])

    def test_some_gradients(self):
        """Each subset of the inputs wants one."""
        arrays = self.operands((1, 2, 40, 30, 8, 8)) + self.draw((40, 30))
        for device in ("cpu", "cpu:reference"):
            for constant in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(1, 4)):
                self.beside(f"{device} {constant}", arrays, 2e-6, device, constant)

    def test_errors(self):
        f = lambda *shape, dtype="f": numpy.zeros(shape, dtype)
        shapes = "tern_scaled_dot_product_attention: scaled_dot_product_attention: expected q ([[B,] H,] T, D), k ([[B,] {0},] S, D) and v ([[B,] {0},] S, E){1}, got "
        plain, grouped = shapes.format("H", ""), shapes.format("G", " with H a multiple of G")
        begin = "tern_scaled_dot_product_attention: scaled_dot_product_attention: expected "
        q = f(2, 4, 5, 8)
        for arrays, opts, code, text in (
            ((q, f(2, 4, 6, 7), f(2, 4, 6, 8)), {}, -2, plain + "(2, 4, 5, 8), (2, 4, 6, 7) and (2, 4, 6, 8)"),
            ((q, f(2, 4, 6, 8), f(2, 4, 7, 8)), {}, -2, plain + "(2, 4, 5, 8), (2, 4, 6, 8) and (2, 4, 7, 8)"),
            ((q, f(2, 2, 6, 8), f(2, 2, 6, 8)), {}, -2, plain + "(2, 4, 5, 8), (2, 2, 6, 8) and (2, 2, 6, 8)"),
            ((q, f(2, 3, 6, 8), f(2, 3, 6, 8)), {"gqa": True}, -2, grouped + "(2, 4, 5, 8), (2, 3, 6, 8) and (2, 3, 6, 8)"),
            ((q, f(2, 2, 6, 8), f(2, 4, 6, 8)), {"gqa": True}, -2, grouped + "(2, 4, 5, 8), (2, 2, 6, 8) and (2, 4, 6, 8)"),
            ((q, f(1, 4, 6, 8), f(1, 4, 6, 8)), {}, -2, plain + "(2, 4, 5, 8), (1, 4, 6, 8) and (1, 4, 6, 8)"),
            ((q, f(4, 6, 8), f(4, 6, 8)), {}, -2, plain + "(2, 4, 5, 8), (4, 6, 8) and (4, 6, 8)"),
            ((f(8), f(8), f(8)), {}, -2, plain + "(8), (8) and (8)"),
            ((f(1, 1, 1, 1, 1),) * 3, {}, -2, plain + "(1, 1, 1, 1, 1), (1, 1, 1, 1, 1) and (1, 1, 1, 1, 1)"),
            ((q, f(2, 4, 6, 8, dtype="d"), f(2, 4, 6, 8)), {}, -3, begin + "q, k and v of one floating-point dtype, got f32, f64 and f32"),
            ((f(2, 3, dtype="int64"),) * 3, {}, -3, begin + "q, k and v of one floating-point dtype, got i64, i64 and i64"),
            ((q, q, q, f(5, 5, dtype="d")), {}, -3, begin + "a mask of bool or f32, got f64"),
            ((q, q, q, f(5, 5, dtype="u1")), {}, -3, begin + "a mask of bool or f32, got u8"),
            ((f(2, 3, dtype="f2"),) * 3 + (f(2, 2, dtype="d"),), {}, -3, begin + "a mask of bool, f32 or f16, got f64"),
            ((q, q, q, f(4, 5)), {}, -2, begin + "a mask that is broadcast to (2, 4, 5, 5), got (4, 5)"),
            ((q[0, 0], q[0, 0], q[0, 0], f(2, 5, 5)), {}, -2, begin + "a mask that is broadcast to (5, 5), got (2, 5, 5)"),
            ((q, q, q, f(5, 5)), {"causal": True}, -1, begin + "a mask or is_causal, got both"),
            ((q, q, q), {"dropout": -0.5}, -7, begin + "a dropout in [0, 1], got -0.5"),
            ((q, q, q), {"dropout": math.nan}, -7, begin + "a dropout in [0, 1], got nan"),
        ):
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                attention(run, *[run.constant(a) for a in arrays], **opts)
            self.assertEqual((caught.exception.code, str(caught.exception)), (code, text))
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
