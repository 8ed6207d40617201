"""Convolutions with padding "same" and "valid", with padding modes, and on single samples."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from half import compare_half
from ops import Module, Run, blocked, compare, gradient_check

F = torch.nn.functional
INT = ctypes.c_int64
SAME = -2147483647
MODES = ("zeros", "reflect", "replicate", "circular")
PLAIN = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
DEVICES = [("cpu", "f", 2e-5), ("cpu:reference", "d", 1e-12)]


def dims_of(op):
    return int(op[-2])


def numbers(value, dims):
    """The padding as F.conv accepts it: one number for all dimensions, a tuple, or "same" and "valid"."""
    value = {"same": SAME, "valid": 0}.get(value, value) if isinstance(value, str) else value
    return value if isinstance(value, tuple) else (value,) * dims


def options(op, stride=1, padding=0, dilation=1, groups=1, bias=True, padding_mode="zeros"):
    dims = dims_of(op)
    many = INT * dims
    fields = [("size", ctypes.c_size_t), ("stride", many), ("padding", many)]
    fields += [("output_padding", many)] if op in TRANSPOSED else []
    fields += [("dilation", many), ("groups", INT), ("bias", ctypes.c_bool)] + ([("padding_mode", ctypes.c_int)] if op in PLAIN else [])
    struct = type("Opts", (ctypes.Structure,), {"_fields_": fields})
    opts = struct(ctypes.sizeof(struct), groups=groups, bias=bias)
    for name, value in (("stride", stride), ("padding", padding), ("dilation", dilation)):
        setattr(opts, name, many(*numbers(value, dims)))
    if op in PLAIN:
        opts.padding_mode = MODES.index(padding_mode) if padding_mode in MODES else padding_mode
    return ctypes.byref(opts)


def conv(run, op, x, weight, bias=None, **given):
    return run.op(f"tern_{op}", x, weight, bias, options(op, **given))


def oracle(op, x, weight, bias=None, padding=0, padding_mode="zeros", **given):
    """torch.nn.Conv's forward, with a batch dimension, which torch's circular padding requires."""
    if padding_mode == "zeros":
        return getattr(F, op)(x, weight, bias, padding=padding, **given)
    dims = dims_of(op)
    kernel, dilation = weight.shape[2:], numbers(given.get("dilation", 1), dims)
    around = [d * (k - 1) for k, d in zip(kernel, dilation)]
    left = [n // 2 for n in around] if padding == "same" else numbers(padding, dims)
    right = [n - l for n, l in zip(around, left)] if padding == "same" else left
    single = x.dim() == dims + 1
    padded = F.pad(x[None] if single else x, [n for pair in zip(left[::-1], right[::-1]) for n in pair], padding_mode)
    return getattr(F, op)(padded[0] if single else padded, weight, bias, **given)


class ConvPaddingTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype="f"):
        return (self.rng.standard_normal(shape) / numpy.sqrt(max(1, numpy.prod(shape[1:])))).astype(dtype)

    def beside(self, what, op, x, weight, bias=True, prepare=lambda run, x: x, **given):
        outs = weight[1] * given.get("groups", 1) if op in TRANSPOSED else weight[0]
        shapes = [x, weight] + ([(outs,)] if bias else [])
        ours = lambda run, x, *rest: conv(run, op, prepare(run, x), *rest, **given)
        for device, dtype, tolerance in DEVICES:
            arrays = [self.draw(s, dtype) for s in shapes]
            compare(f"{what} {op} {x} {weight} {given} {device}", ours, lambda *a: oracle(op, *a, **given), arrays, tolerance, device)

    def sizes(self, dims, least, most):
        return tuple(map(int, self.rng.integers(least, most, dims)))

    def test_same(self):
        """Odd and even kernels; with an even kernel the right side gets more zeros."""
        for op in PLAIN:
            dims = dims_of(op)
            for turn, (c, o, groups) in enumerate(((3, 5, 1), (16, 32, 1), (32, 16, 1), (6, 4, 2), (32, 32, 32), (1, 16, 1)) * 2):
                kernel, dilation = self.sizes(dims, 1, 6), self.sizes(dims, 1, 4)
                x = (2, c, *self.sizes(dims, 1, 9 - dims))
                prepare = blocked if c % 16 == 0 and turn % 2 else lambda run, x: x
                self.beside("same", op, x, (o, c // groups, *kernel), turn % 3 > 0, prepare, padding="same", dilation=dilation, groups=groups)

    def test_same_is_as_large_as_the_input(self):
        for kernel, dilation in itertools.product((1, 2, 3, 4, 7), (1, 2, 3)):
            run = Run()
            y = conv(run, "conv2d", run.constant(self.draw((1, 2, 5, 6))), run.constant(self.draw((3, 2, kernel, 1))), padding=(SAME, 0), dilation=dilation)
            self.assertEqual(run.shape(y), (1, 3, 5, 6))
            run.close()

    def test_valid(self):
        for op in PLAIN:
            self.beside("valid", op, (2, 3, 7, 6, 5)[: 2 + dims_of(op)], (4, 3, 3, 2, 3)[: 2 + dims_of(op)], padding="valid", stride=2)

    def test_modes(self):
        for op in PLAIN:
            dims = dims_of(op)
            for mode in MODES[1:]:
                for turn, (c, o, groups) in enumerate(((3, 5, 1), (16, 32, 1), (32, 16, 2), (1, 16, 1))):
                    kernel, stride, padding = self.sizes(dims, 1, 5), self.sizes(dims, 1, 4), self.sizes(dims, 0, 4)
                    x = (2, c, *self.sizes(dims, 4, 10 - dims))
                    prepare = blocked if c % 16 == 0 else lambda run, x: x
                    self.beside("mode", op, x, (o, c // groups, *kernel), turn % 2, prepare, padding=padding, stride=stride, groups=groups, padding_mode=mode)
                    self.beside("same", op, x, (o, c // groups, *kernel), turn % 2, prepare, padding="same", groups=groups, padding_mode=mode)

    def test_one_sample(self):
        """Without a batch dimension: every convolution, also on a sample selected from a blocked tensor, and blocked
        results."""
        for op in PLAIN + TRANSPOSED:
            dims = dims_of(op)
            for c, o in ((3, 5), (16, 32)):
                weight = (c, o, 3, 2, 3) if op in TRANSPOSED else (o, c, 3, 2, 3)
                for given in ({}, dict(padding=1, stride=2)) + (() if op in TRANSPOSED else (dict(padding="same"), dict(padding=2, padding_mode="circular"))):
                    self.beside("one", op, (c, 5, 6, 4)[: 1 + dims], weight[: 2 + dims], **given)

    def test_one_sample_that_looks_like_blocks(self):
        """A conv1d's (N, C, L) in blocks of channels is (C, H, W) for a conv2d."""

        def ours(run, x, w, v):
            return conv(run, "conv2d", conv(run, "conv1d", x, w), v, padding=1)

        def theirs(x, w, v):
            return F.conv2d(F.conv1d(x, w), v, padding=1)

        compare("looks", ours, theirs, [self.draw((3, 4, 9)), self.draw((16, 4, 2)), self.draw((2, 3, 3, 3))], 2e-5)

    def test_a_chain_of_samples(self):
        def ours(run, x, a, b, c):
            y = run.op("tern_relu", conv(run, "conv2d", x, a, padding="same"))
            y = run.op("tern_relu", conv(run, "conv2d", y, b, padding=1, padding_mode="reflect"))
            return run.op("tern_add", conv(run, "conv_transpose2d", y, c, padding=1), y)

        def theirs(x, a, b, c):
            y = F.conv2d(x, a, padding="same").relu()
            y = F.conv2d(F.pad(y, [1] * 4, "reflect"), b).relu()
            return F.conv_transpose2d(y, c, padding=1) + y

        compare("chain", ours, theirs, [self.draw(s) for s in ((3, 9, 7), (16, 3, 4, 2), (32, 16, 3, 3), (32, 32, 3, 3))], 2e-5)

    def test_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            for op in PLAIN:
                dims = dims_of(op)
                x, weight = (2, 16, 5, 4, 3)[: 2 + dims], (16, 16, 2, 3, 2)[: 2 + dims]
                arrays = [self.draw(x), self.draw(weight), self.draw((16,))]
                compare_half(f"{op} same", lambda run, *a: conv(run, op, *a, padding="same"), lambda *a: oracle(op, *a, padding="same"), arrays, device)
                for mode in MODES[1:]:  # a gradient of the padded input is rounded before it is folded
                    given = dict(padding=1, padding_mode=mode)
                    compare_half(f"{op} {mode}", lambda run, *a: conv(run, op, *a, **given), lambda *a: oracle(op, *a, **given), arrays, device, roundings=2)

    def test_which_gradients_are_wanted(self):
        given = dict(padding="same", padding_mode="replicate")
        arrays = [self.draw(s) for s in ((2, 3, 5, 6), (4, 3, 2, 3), (4,))]
        for constant in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
            compare(f"{constant}", lambda run, *a: conv(run, "conv2d", *a, **given), lambda *a: oracle("conv2d", *a, **given), arrays, 2e-5, constant=constant)

    def test_finite_differences(self):
        for given in (dict(padding="same", dilation=(1, 3)), dict(padding=(2, 1), stride=2, padding_mode="reflect"), dict(padding="same", padding_mode="circular")):
            gradient_check("conv2d", lambda run, *a: conv(run, "conv2d", *a, **given), [self.draw(s, "d") for s in ((2, 2, 5, 4), (3, 2, 2, 2), (3,))])
        gradient_check("one", lambda run, *a: conv(run, "conv3d", *a, padding=1), [self.draw(s, "d") for s in ((2, 3, 2, 4), (3, 2, 2, 3, 2))])

    def test_empty_batches(self):
        run = Run()
        x, w = run.parameter(numpy.zeros((0, 3, 5, 4), "f")), run.parameter(self.draw((2, 3, 2, 3)))
        for given in (dict(padding="same"), dict(padding=1, padding_mode="reflect")):
            y = conv(run, "conv2d", x, w, **given)
            run.backward(run.op("tern_sum", y))
            numpy.testing.assert_array_equal(run.grad(w), numpy.zeros((2, 3, 2, 3)))
        run.close()

    def test_errors(self):
        f = lambda *shape: numpy.ones(shape, "f")
        x, w = f(2, 3, 5, 4), f(4, 3, 3, 3)
        for op, x, w, given, code, text in (
            ("conv2d", x, w, dict(padding="same", stride=2), -7, "conv2d: TERN_PADDING_SAME is for a stride of 1, got stride (2, 2)"),
            ("conv2d", x, w, dict(padding=(SAME, 1), stride=(3, 1)), -7, "conv2d: TERN_PADDING_SAME is for a stride of 1, got stride (3, 1)"),
            ("conv_transpose2d", f(2, 4, 5, 4), w, dict(padding="same"), -7, "conv_transpose2d: TERN_PADDING_SAME is for a stride of 1 of what is not transposed, got stride (1, 1)"),
            ("conv2d", x, w, dict(padding=-1), -7, "padding (-1, -1)"),
            ("conv2d", x, w, dict(padding_mode=4), -1, "conv2d: expected TERN_PADDING_MODE_ZEROS, _REFLECT, _REPLICATE or _CIRCULAR, got mode 4"),
            ("conv2d", x, w, dict(padding_mode=-1), -1, "got mode -1"),
            ("conv2d", x, w, dict(padding=(0, 4), padding_mode="reflect"), -2, "tern_conv2d: pad: expected reflection of less than the dimension, got 4 before and 4 after dimension 3 of (2, 3, 5, 4)"),
            ("conv2d", f(3, 5, 4), w, dict(padding=(6, 0), padding_mode="circular"), -2, "pad: expected circular padding of at most the dimension, got 6 before and 6 after dimension 1 of (3, 5, 4)"),
            ("conv2d", f(3, 0, 4), w, dict(padding=1, padding_mode="replicate"), -2, "nothing to compute: weight is (4, 3, 3, 3), input (3, 0, 4), padding (1, 1)"),
            ("conv2d", f(2, 5, 4), w, {}, -2, "conv2d: weight is (4, 3, 3, 3) but input is (2, 5, 4)"),
            ("conv2d", f(5, 4), w, {}, -2, "conv2d: weight is (4, 3, 3, 3) but input is (5, 4)"),
            ("conv2d", f(3, 2, 4), w, {}, -2, "conv2d: nothing to compute: weight is (4, 3, 3, 3), input (3, 2, 4), padding (0, 0)"),
            ("conv1d", f(2, 1, 3, 5), f(4, 3, 3), {}, -2, "conv1d: weight is (4, 3, 3) but input is (2, 1, 3, 5)"),
            ("conv1d", f(5), f(4, 3, 3), {}, -2, "conv1d: weight is (4, 3, 3) but input is (5)"),
            ("conv_transpose1d", f(3, 5), f(4, 3, 3), {}, -2, "conv_transpose1d: weight is (4, 3, 3) but input is (3, 5)"),
        ):
            run = Run()
            with self.assertRaises(tern.TernError) as caught:
                conv(run, op, run.constant(x), run.constant(w), **given)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
            run.end_failed()
            run.close()


class ModuleTest(unittest.TestCase):
    def test_beside_torch(self):
        """The same state dict, the same initial bits, the same values, of batches and of single samples."""
        rng = numpy.random.default_rng(0)
        for op, kind in zip(PLAIN, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)):
            dims = dims_of(op)
            given = [dict(padding="same"), dict(padding="valid", stride=2), dict(padding="same", dilation=3, padding_mode="replicate", bias=False)]
            given += [dict(padding=2, stride=2, padding_mode=mode) for mode in MODES]
            for i, more in enumerate(given):
                torch.manual_seed(i)
                run = Run()
                generator = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(i)))
                kernel = (4, 2, 3)[:dims]
                theirs = kind(6, 16, kernel, **more)
                layer = run.layer(f"tern_{op}_new", INT(6), INT(16), *map(INT, kernel), options(op, **more), generator)
                self.assertEqual(Module.from_address(layer.value).kind, op.encode())
                self.assertEqual(run.lib.tern_state_count(layer), len(theirs.state_dict()))
                for name, value in theirs.state_dict().items():
                    found = ctypes.c_void_p(run.lib.tern_state_find(layer, name.encode()))
                    numpy.testing.assert_array_equal(run.value(found), value.numpy())
                x = rng.standard_normal((2, 6, 8, 9, 7)[: dims + 2]).astype("f")
                want = theirs(torch.tensor(x)).detach().numpy()
                numpy.testing.assert_allclose(run.value(run.forward(layer, run.constant(x))), want, rtol=0, atol=2e-6)
                numpy.testing.assert_allclose(run.value(run.forward(layer, run.constant(x[1]))), want[1], rtol=0, atol=2e-6)
                run.lib.tern_rng_free(generator)
                run.close()


if __name__ == "__main__":
    skips.main()
