"""Rotary position embedding compared with the formulas of transformers' models in torch, and its tables with those of
modeling_rope_utils.py in f64."""
import ctypes
import itertools
import math
import unittest

import numpy
import torch

import skips
import tern
from half import compare_half
from layers import refused
from ops import Run, compare, error_of, shape_of

DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-14), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-14)]
# x and the tables' shape, whose last size is the number of pairs
SHAPES = [((7, 6), (7, 3)), ((2, 3, 5, 8), (5, 4)), ((2, 3, 5, 8), (2, 1, 5, 4)), ((2, 5, 3, 10), (5, 1, 3)), ((3, 40, 64), (40, 32)), ((4, 33, 80), (33, 10)),
          ((1, 2), (1, 1)), ((5, 7), (7 - 4,)), ((2, 3, 300, 128), (300, 64)), ((6, 5), (6, 0))]


def rotary(run, x, c, s, interleaved=False):
    return run.op("tern_rotary_embedding", x, c, s, interleaved)


def halves(x, cos, sin):
    """apply_rotary_pos_emb of transformers' Llama, and of GPT-NeoX, which leaves what is beyond the tables."""
    k = cos.shape[-1]
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    x, rest = x[..., : 2 * k], x[..., 2 * k :]
    rotate_half = torch.cat([-x[..., k:], x[..., :k]], -1)
    return torch.cat([x * cos + rotate_half * sin, rest], -1)


def interleaved(x, cos, sin):
    """apply_rotary_pos_emb of transformers' GPT-J."""
    k = cos.shape[-1]
    cos, sin = (torch.repeat_interleave(t, 2, -1) for t in (cos, sin))
    x, rest = x[..., : 2 * k], x[..., 2 * k :]
    rotate_every_two = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return torch.cat([x * cos + rotate_every_two * sin, rest], -1)


class RotaryEmbeddingTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def arrays(self, shape, table, dtype="f"):
        angle = self.rng.uniform(-20, 20, table)
        return [a.astype(dtype) for a in (self.rng.standard_normal(shape), numpy.cos(angle), numpy.sin(angle))]

    def test_values_and_gradients(self):
        for (device, dtype, tolerance), (shape, table) in itertools.product(DEVICES, SHAPES):
            if device == "cpu:reference" and numpy.prod(shape) > 10000:
                continue
            for pairs, oracle in ((False, halves), (True, interleaved)):
                op = lambda run, *t: rotary(run, *t, pairs)
                compare(f"{device} {dtype} {shape} {table} {pairs}", op, oracle, self.arrays(shape, table, dtype), tolerance, device, constant=(1, 2))

    def test_views(self):
        """Heads and positions exchanged, as attention has them; a part of a projection; elements that are not next to each other."""
        long = ctypes.c_int64
        cases = [
            ((2, 5, 3, 8), lambda r, x: r.op("tern_transpose", x, 1, 2), lambda x: x.transpose(1, 2)),
            ((3, 5, 24), lambda r, x: r.op("tern_slice", x, 2, long(8), long(16), long(1)), lambda x: x[..., 8:16]),
            ((3, 8, 5), lambda r, x: r.op("tern_transpose", x, 1, 2), lambda x: x.transpose(1, 2)),
            ((3, 5, 16), lambda r, x: r.op("tern_slice", x, 2, long(0), long(16), long(2)), lambda x: x[..., ::2]),
        ]
        for (device, dtype, tolerance), (shape, ours, theirs), pairs in itertools.product(DEVICES, cases, (False, True)):
            op = lambda run, x, c, s: rotary(run, ours(run, x), run.op("tern_transpose", c, 0, 1), s, pairs)
            oracle = lambda x, c, s: (interleaved if pairs else halves)(theirs(x), c.T, s)
            x, c, s = self.arrays(shape, (5, 4), dtype)
            compare(f"{device} {shape}", op, oracle, [x, numpy.ascontiguousarray(c.T), s], tolerance, device, constant=(1, 2))

    def test_inputs_used_elsewhere_too(self):
        """Gradients add up, and nothing that is still needed is overwritten."""
        arrays = self.arrays((6, 5, 8), (5, 3))
        for device in ("cpu", "cpu:reference"):
            op = lambda run, x, c, s: run.op("tern_mul", rotary(run, run.op("tern_tanh", x), c, s), run.op("tern_add", rotary(run, x, c, s, True), x))
            oracle = lambda x, c, s: halves(torch.tanh(x), c, s) * (interleaved(x, c, s) + x)
            compare("used twice", op, oracle, arrays, 2e-6, device, constant=(1, 2))

    def test_16_bits(self):
        """With tables of the same type, and of f32."""
        x, c, s = self.arrays((3, 40, 32), (40, 12))
        for device, pairs in itertools.product(("cpu", "cpu:reference"), (False, True)):
            table = lambda run, t: run.op("tern_cast", run.constant(t), 0)
            op = lambda run, x: rotary(run, x, table(run, c), table(run, s), pairs)
            oracle = lambda x: (interleaved if pairs else halves)(x, *(torch.tensor(t.astype("d")) for t in (c, s)))
            compare_half("f32 tables", op, oracle, [x], device)
            exact = [numpy.round(t * 8) / 8 for t in (c, s)]  # both types hold these
            op = lambda run, x: rotary(run, x, *(run.op("tern_cast", run.constant(t), run.lib.tern_tensor_dtype(x)) for t in exact), pairs)
            oracle = lambda x: (interleaved if pairs else halves)(x, *(torch.tensor(t.astype("d")) for t in exact))
            compare_half("16-bit tables", op, oracle, [x], device)

    def test_same_bits_for_any_number_of_threads(self):
        arrays, seen = self.arrays((4, 300, 128), (300, 48)), set()
        for threads in (1, 2, 3, 5):
            run = Run("cpu", threads)
            seen.add(run.value(rotary(run, *map(run.constant, arrays))).tobytes())
            run.close()
        self.assertEqual(len(seen), 1)

    def test_nothing(self):
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            x = run.parameter(numpy.zeros((0, 3, 8), "f"))
            y = rotary(run, x, *(run.constant(numpy.zeros((3, 4), "f")) for _ in "cs"))
            self.assertEqual(run.shape(y), (0, 3, 8))
            run.backward(run.op("tern_sum", y))
            self.assertEqual(run.grad(x).shape, (0, 3, 8))
            run.close()

    def test_errors_name_shapes(self):
        run = Run("cpu")
        f = lambda *shape: run.constant(numpy.ones(shape, "f"))
        d, i = run.constant(numpy.ones((3, 2))), run.constant(numpy.ones((3, 4), "i8"))
        cases = [
            (lambda: rotary(run, f(3, 4), f(3, 3), f(3, 3)), -2, "with 2 K <= D, got (3, 4), (3, 3) and (3, 3)"),
            (lambda: rotary(run, f(3, 4), f(3, 2), f(3, 1)), -2, "got (3, 4), (3, 2) and (3, 1)"),
            (lambda: rotary(run, f(3, 4), f(2, 2), f(2, 2)), -2, "got (3, 4), (2, 2) and (2, 2)"),
            (lambda: rotary(run, f(3, 4), f(2, 3, 2), f(2, 3, 2)), -2, "got (3, 4), (2, 3, 2) and (2, 3, 2)"),
            (lambda: rotary(run, f(), f(2), f(2)), -2, "got (), (2) and (2)"),
            (lambda: rotary(run, i, f(3, 2), f(3, 2)), -3, "rotary_embedding: expected floating point, got i64"),
            (lambda: rotary(run, f(3, 4), d, d), -3, "rotary_embedding: cos and sin are f64 and f64 but input is f32"),
            (lambda: rotary(run, f(3, 4), run.parameter(numpy.ones((3, 2), "f")), f(3, 2)), -9, "a table wants a gradient; tern_detach it"),
        ]
        for call, code, text in cases:
            with refused(self, run, text, code):
                call()
            d, i = run.constant(numpy.ones((3, 2))), run.constant(numpy.ones((3, 4), "i8"))
        run.close()


class TableOpts(ctypes.Structure):
    """tern_rotary_table_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("base", ctypes.c_double), ("scaling", ctypes.c_int), ("factor", ctypes.c_double),
                ("low_freq_factor", ctypes.c_double), ("high_freq_factor", ctypes.c_double), ("original_positions", ctypes.c_int64),
                ("attention_factor", ctypes.c_double), ("beta_fast", ctypes.c_double), ("beta_slow", ctypes.c_double), ("truncate", ctypes.c_bool),
                ("short_factor", ctypes.POINTER(ctypes.c_double)), ("long_factor", ctypes.POINTER(ctypes.c_double))]

    def __init__(self, base=10000.0, scaling=0, factor=1.0, low=1.0, high=4.0, original=8192, attention=0.0, fast=32.0, slow=1.0, truncate=True, short=None, long=None):
        doubles = [None if numbers is None else (ctypes.c_double * len(numbers))(*numbers) for numbers in (short, long)]
        super().__init__(ctypes.sizeof(TableOpts), base, scaling, factor, low, high, original, attention, fast, slow, truncate, *doubles)


DEFAULT, LINEAR, DYNAMIC, LLAMA3, YARN, LONGROPE = range(6)


def frequencies(dim, length, base=10000.0, scaling=0, factor=1.0, low=1.0, high=4.0, original=8192, fast=32.0, slow=1.0, truncate=True, short=None, long=None, **_):
    """inv_freq of transformers' ROPE_INIT_FUNCTIONS, in f64."""
    if scaling == DYNAMIC:
        length = max(length, original)
        base = base * ((factor * length / original) - (factor - 1)) ** (dim / (dim - 2))
    inv_freq = 1.0 / base ** (numpy.arange(0, dim, 2) / dim)
    if scaling == LINEAR:
        return inv_freq / factor
    if scaling == LONGROPE:
        return inv_freq / numpy.array(long if length > original else short)
    if scaling == YARN:
        correction_dim = lambda rotations: dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))
        first, last = correction_dim(fast), correction_dim(slow)
        if truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        last += 0.001 if first == last else 0
        ramp = numpy.clip((numpy.arange(dim // 2) - first) / (last - first), 0, 1)
        return inv_freq / factor * ramp + inv_freq * (1 - ramp)
    if scaling != LLAMA3:
        return inv_freq
    wavelen = 2 * math.pi / inv_freq
    inv_freq_llama = numpy.where(wavelen > original / low, inv_freq / factor, inv_freq)
    smooth_factor = (original / wavelen - low) / (high - low)
    smoothed = (1 - smooth_factor) * inv_freq_llama / factor + smooth_factor * inv_freq_llama
    is_medium = ~(wavelen < original / high) & ~(wavelen > original / low)
    return numpy.where(is_medium, smoothed, inv_freq_llama)


def attention_scaling(scaling=0, factor=1.0, original=8192, attention=0.0, **_):
    """The second result of ROPE_INIT_FUNCTIONS."""
    if scaling not in (YARN, LONGROPE) or (factor <= 1 and not attention):
        return 1.0
    return attention or (0.1 * math.log(factor) + 1 if scaling == YARN else math.sqrt(1 + math.log(factor) / math.log(original)))


class TableTest(unittest.TestCase):
    def fill(self, run, cos, sin, positions=None, opts=None):
        positions = positions if positions is None else (ctypes.c_int64 * len(positions))(*positions)
        run.lib.check("tern_rotary_table_fill", cos, sin, positions, ctypes.byref(opts) if opts else None)

    def test_beside_transformers(self):
        cases = [{}, dict(base=500000.0), dict(scaling=LINEAR, factor=4.0), dict(scaling=DYNAMIC, factor=2.0, original=50),
                 dict(scaling=DYNAMIC, factor=2.0, original=5000), dict(base=500000.0, scaling=LLAMA3, factor=8.0),
                 dict(base=500000.0, scaling=LLAMA3, factor=32.0, low=1.5, high=5.0, original=400), dict(scaling=YARN, factor=8.0, original=4096)]
        for case, dtype, dim in itertools.product(cases, "fd", (4, 64, 130)):
            for positions in (None, [5, 0, 130000, 7, 7]):
                count = 60 if positions is None else len(positions)
                run, at = Run(), numpy.arange(count) if positions is None else numpy.array(positions)
                tables = [run.constant(numpy.full((count, dim // 2), 9, dtype)) for _ in "cs"]
                self.fill(run, *tables, positions, TableOpts(**case) if case else None)
                angle, scale = numpy.outer(at, frequencies(dim, at.max() + 1, **case)), attention_scaling(**case)
                for got, want in zip(map(run.value, tables), (scale * numpy.cos(angle), scale * numpy.sin(angle))):
                    self.assertLessEqual(numpy.abs(got - want).max(), scale * (1e-7 if dtype == "f" else 3e-10), case)  # an angle of 10^5 has a last place of 10^-11
                run.close()

    def test_yarn_and_longrope(self):
        """Of random options: short and long waves, few and many pairs, an original length below and above the positions."""
        rng = numpy.random.default_rng(4)
        for number in range(60):
            dim, count, original = 2 * int(rng.integers(1, 66)), int(rng.integers(1, 80)), int(rng.integers(2, 100))
            case = dict(base=float(10 ** rng.uniform(0.5, 6)), scaling=YARN, factor=float(rng.choice([0.5, 1.0, 4.0, 40.0])), original=int(original * rng.choice([1, 100])))
            if number % 2:
                case.update(scaling=LONGROPE, short=list(rng.uniform(1, 3, dim // 2)), long=list(rng.uniform(1, 60, dim // 2)))
            else:
                case.update(fast=float(rng.uniform(0.5, 64)), slow=float(rng.uniform(0.1, 4)), truncate=bool(rng.integers(2)))
            if rng.random() < 0.3:
                case["attention"] = float(rng.uniform(0.5, 2))
            run, angle = Run(), numpy.outer(numpy.arange(count), frequencies(dim, count, **case))
            tables, scale = [run.constant(numpy.full((count, dim // 2), 9, "d")) for _ in "cs"], attention_scaling(**case)
            self.fill(run, *tables, None, TableOpts(**case))
            for got, want in zip(map(run.value, tables), (scale * numpy.cos(angle), scale * numpy.sin(angle))):
                self.assertLessEqual(numpy.abs(got - want).max(), 1e-12, case)
            run.close()

    def test_with_the_op(self):
        """A turn by position p and then by q is one by p + q."""
        run, rng = Run(), numpy.random.default_rng(3)
        x = rng.standard_normal((2, 9, 16)).astype("f")
        tables = {}
        for name, positions in (("p", rng.integers(0, 500, 9)), ("q", rng.integers(0, 500, 9))):
            tables[name] = positions
        tables["sum"] = tables["p"] + tables["q"]
        turn = {}
        for name, positions in tables.items():
            turn[name] = [run.constant(numpy.zeros((9, 8), "f")) for _ in "cs"]
            self.fill(run, *turn[name], [int(p) for p in positions])
        for pairs in (False, True):
            twice = rotary(run, rotary(run, run.constant(x), *turn["p"], pairs), *turn["q"], pairs)
            self.assertLessEqual(error_of(run.value(twice), run.value(rotary(run, run.constant(x), *turn["sum"], pairs))), 1e-6)
        run.close()

    def test_a_buffer(self):
        """The tables may belong to a module."""
        run = Run()
        buffers = [ctypes.c_void_p(run.lib.check("tern_buffer_add", ctypes.byref(run.module), name, 0, 2, shape_of(numpy.empty((5, 3))))) for name in (b"cos", b"sin")]
        self.fill(run, *buffers)
        angle = numpy.outer(numpy.arange(5), frequencies(6, 5))
        self.assertLessEqual(numpy.abs(run.value(buffers[0]) - numpy.cos(angle)).max(), 1e-7)
        run.close()

    def test_refused(self):
        run = Run()
        f = lambda *shape: run.constant(numpy.ones(shape, "f"))
        cases = [
            (f(3, 2), f(3, 1), None, -2, "expected tables of one shape (T, K), got (3, 2) and (3, 1)"),
            (f(3), f(3), None, -2, "got (3) and (3)"),
            (f(3, 2), run.constant(numpy.ones((3, 2), "i8")), None, -3, "expected tables of floating point, got f32 and i64"),
            (f(3, 2), None, None, -1, "the tensor is NULL"),
            (f(3, 2), f(3, 2), TableOpts(scaling=6), -1, "scaling 6 does not exist"),
            (f(3, 2), f(3, 2), TableOpts(base=-1.0), -7, "expected base, factor and original_positions above 0, got -1, 1 and 8192"),
            (f(3, 2), f(3, 2), TableOpts(factor=math.nan), -7, "above 0, got 10000, nan and 8192"),
            (f(3, 2), f(3, 2), TableOpts(scaling=LLAMA3, low=4.0), -7, "expected a low_freq_factor below the high_freq_factor, got 4 and 4"),
            (f(3, 1), f(3, 1), TableOpts(scaling=DYNAMIC), -2, "dynamic scaling of one pair is not defined"),
            (f(3, 2), f(3, 2), TableOpts(scaling=YARN, base=1.0), -7, "yarn: expected beta_fast and beta_slow above 0 and a base that is not 1, got 32, 1 and 1"),
            (f(3, 2), f(3, 2), TableOpts(scaling=YARN, slow=0.0), -7, "got 32, 0 and 10000"),
            (f(3, 2), f(3, 2), TableOpts(scaling=YARN, attention=-1.0), -7, "expected an attention_factor of at least 0, got -1"),
            (f(3, 2), f(3, 2), TableOpts(scaling=LONGROPE, short=[1.0, 1.0]), -1, "longrope: short_factor or long_factor is NULL"),
            (f(3, 2), f(3, 2), TableOpts(scaling=LONGROPE, short=[1.0, 1.0], long=[2.0, 0.0]), -7, "got 1 and 0 for pair 1"),
            (f(3, 2), f(3, 2), TableOpts(scaling=LONGROPE, short=[1.0, 1.0], long=[2.0, 2.0], original=1), -7, "original_positions is 1, expected more"),
        ]
        for cos, sin, opts, code, text in cases:
            with self.assertRaises(tern.TernError) as caught:
                self.fill(run, cos, sin, None, opts)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
        run.close()


if __name__ == "__main__":
    skips.main()
