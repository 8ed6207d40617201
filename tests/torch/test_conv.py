"""conv1d, conv3d and transposed convolutions compared with torch, and the properties of all convolutions: views with
gaps, 16-bit types, empty batches, layers. conv2d's shapes are in test_conv2d.py."""
import ctypes
import os
import random
import subprocess
import sys
import unittest

import numpy
import torch

import skips
import tern
from half import compare_half
from ops import Module, Run, blocked, compare, gradient_check, kernels_run

F = torch.nn.functional
INT = ctypes.c_int64
OPTIONS = {  # the options' fields, and the number of values of each
    "conv1d": [("stride", 1), ("padding", 1), ("dilation", 1), ("groups", 1), ("bias", 0)],
    "conv2d": [("stride", 2), ("padding", 2), ("dilation", 2), ("groups", 1), ("bias", 0)],
    "conv3d": [("stride", 3), ("padding", 3), ("dilation", 3), ("groups", 1), ("bias", 0)],
    "conv_transpose1d": [("stride", 1), ("padding", 1), ("output_padding", 1), ("dilation", 1), ("groups", 1), ("bias", 0)],
    "conv_transpose2d": [("stride", 2), ("padding", 2), ("output_padding", 2), ("dilation", 2), ("groups", 1), ("bias", 0)],
    "conv_transpose3d": [("stride", 3), ("padding", 3), ("output_padding", 3), ("dilation", 3), ("groups", 1), ("bias", 0)],
}
DEFAULTS = dict(stride=1, padding=0, output_padding=0, dilation=1, groups=1, bias=True)


def options(op, **given):
    """The op's options struct, with torch's names; one number stands for two or three."""
    kinds = {0: ctypes.c_bool, 1: INT, 2: INT * 2, 3: INT * 3}
    fields = [("size", ctypes.c_size_t)] + [(name, kinds[count]) for name, count in OPTIONS[op]]
    struct = type("Opts", (ctypes.Structure,), {"_fields_": fields})
    opts = struct(ctypes.sizeof(struct))
    for name, count in OPTIONS[op]:
        value = given.get(name, DEFAULTS[name])
        if count > 1:
            value = kinds[count](*(value if isinstance(value, tuple) else (value,) * count))
        setattr(opts, name, value)
    return opts


def dims_of(op):
    return int(op[-2])


def conv(run, op, x, weight, bias=None, **given):
    return run.op(f"tern_{op}", x, weight, bias, ctypes.byref(options(op, **given)))


def weight_shape(op, c, o, groups, kernel):
    return (c, o // groups, *kernel) if "transpose" in op else (o, c // groups, *kernel)


CHANNELS = [(1, 16, 1), (3, 64, 1), (16, 16, 1), (16, 32, 1), (64, 32, 1), (6, 16, 1), (16, 6, 1), (10, 20, 1), (5, 7, 1), (2, 1, 1), (100, 48, 1)]
CHANNELS += [(32, 32, 32), (32, 64, 2), (6, 12, 3), (24, 24, 24), (20, 20, 4)]


def cases(op, seed, count, channels, biggest):
    """Random shapes and options: the shapes of x and the weight, and the options."""
    rng, dims = random.Random(seed), dims_of(op)
    pick = lambda *choices: tuple(rng.choice(choices) for _ in range(dims))
    for i in range(count):
        c, o, groups = channels[i % len(channels)]
        kernel, stride, dilation = pick(1, 2, 3, 3, 4, 5), pick(1, 1, 2, 3), pick(1, 1, 2)
        padding = tuple(rng.choice((0, k // 2, 1)) for k in kernel)
        given = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
        size = []
        for d in range(dims):
            reach = dilation[d] * (kernel[d] - 1) + 1
            if "transpose" in op:
                least = max(1, -(-(2 * padding[d] - reach + 1) // stride[d]) + 1)
            else:
                least = max(1, reach - 2 * padding[d])
            size.append(least + rng.randrange(biggest))
        if "transpose" in op:
            given["output_padding"] = tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation))
        if dims == 1:
            given = {k: v[0] if isinstance(v, tuple) else v for k, v in given.items()}
        yield (rng.randrange(1, 4), c, *size), weight_shape(op, c, o, groups, kernel), given


class ConvTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype="f"):
        return (self.rng.standard_normal(shape) / numpy.sqrt(max(1, numpy.prod(shape[1:])))).astype(dtype)

    def arrays(self, x, weight, op, given, dtype="f", bias=True):
        outs = weight[1] * given.get("groups", 1) if "transpose" in op else weight[0]
        return [self.draw(x, dtype), self.draw(weight, dtype)] + ([self.draw((outs,), dtype)] if bias else [])

    def beside(self, op, seed, count, channels, biggest, device, dtype, tolerance):
        for i, (x, weight, given) in enumerate(cases(op, seed, count, channels, biggest)):
            arrays = self.arrays(x, weight, op, given, dtype, bias=i % 3 > 0)
            ours = lambda run, *a: conv(run, op, *a, **given)
            theirs = lambda *a: getattr(F, op)(*a, **given)
            compare(f"{op} {device} {x} {weight} {given}", ours, theirs, arrays, tolerance, device, threads=1)

    def test_fast(self):
        for op, biggest in (("conv1d", 9), ("conv3d", 5), ("conv_transpose1d", 9), ("conv_transpose2d", 9), ("conv_transpose3d", 5)):
            self.beside(op, 1, 48, CHANNELS, biggest, "cpu", "f", 2e-5)

    def test_reference(self):
        small = [c for c in CHANNELS if c[0] * c[1] <= 512 * c[2]]
        for op in OPTIONS:
            for device in "cpu", "cpu:reference":
                self.beside(op, 2, 24, small, 3 if dims_of(op) < 3 else 2, device, "d", 1e-12)

    def test_output_padding_beyond_the_stride(self):
        """It only has to be less than the dilation: the last rows get just the bias."""
        for op, x, weight in (("conv_transpose1d", (2, 16, 6), (16, 16, 3)), ("conv_transpose2d", (2, 5, 4, 3), (5, 7, 3, 2))):
            given = dict(output_padding=2, dilation=3)
            compare(op, lambda run, *a: conv(run, op, *a, **given), lambda *a: getattr(F, op)(*a, **given), self.arrays(x, weight, op, given), 2e-5)

    def test_blocked_inputs(self):
        """A chain of layers with results in blocks of 16 channels, and one without."""
        x, w = self.draw((2, 16, 9)), [self.draw(s) for s in ((32, 16, 3), (32, 16, 4), (16, 20, 3), (20, 16, 2))]

        ops = ["conv1d", "conv_transpose1d", "conv_transpose1d", "conv_transpose1d"]
        given = [dict(stride=2, padding=1), dict(stride=2, padding=1), {}, {}]

        def ours(run, x, *weights):
            for op, weight, opts in zip(ops, weights, given):
                x = conv(run, op, x, weight, **opts)
            return x

        def theirs(x, *weights):
            for op, weight, opts in zip(ops, weights, given):
                x = getattr(F, op)(x, weight, **opts)
            return x

        compare("chain", ours, theirs, [x] + w, 2e-5)
        image = lambda run, x, w, b: conv(run, "conv_transpose2d", blocked(run, x), w, b, stride=2)
        compare("blocked", image, lambda x, w, b: F.conv_transpose2d(x, w, b, 2), [self.draw((2, 32, 5, 4)), self.draw((32, 16, 3, 3)), self.draw((16,))], 2e-5)

    def test_views_with_gaps(self):
        for device, dtype, tolerance in (("cpu", "f", 2e-5), ("cpu:reference", "d", 1e-12)):
            for op in OPTIONS:
                dims, transposed = dims_of(op), op.startswith("conv_t")
                arrays = [self.draw((2, 7, 6, 5, 5)[: dims + 2], dtype), self.draw((4, 5, 2, 3, 1)[: dims + 2], dtype), self.draw((9,), dtype)]

                def ours(run, x, w, b):
                    x = run.op("tern_slice", run.op("tern_transpose", x, 1, -1), 1, INT(0), INT(4), INT(1))
                    w = run.op("tern_slice" if transposed else "tern_transpose", w, *([2, INT(0), INT(2), INT(1)] if transposed else [0, 1]))
                    return conv(run, op, x, w, run.op("tern_slice", b, 0, INT(0), INT(9), INT(2)))

                def theirs(x, w, b):
                    return getattr(F, op)(x.transpose(1, -1)[:, :4], w[:, :, :2] if transposed else w.transpose(0, 1), b[::2])

                compare(f"{op} {device}", ours, theirs, arrays, tolerance, device)

    def test_which_gradients_are_wanted(self):
        for op in OPTIONS:
            x, w = (2, 16, 6, 5, 3)[: dims_of(op) + 2], (16, 16, 3, 2, 3)[: dims_of(op) + 2]
            arrays = self.arrays(x, w, op, {})
            for constant in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
                compare(f"{op} {constant}", lambda run, *a: conv(run, op, *a), getattr(F, op), arrays, 2e-5, constant=constant)

    def test_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            for op in OPTIONS:
                x, w = ((2, 6, 9), (6, 6, 3)) if dims_of(op) == 1 else ((2, 16, 6, 5, 3)[: dims_of(op) + 2], (16, 16, 3, 2, 3)[: dims_of(op) + 2])
                compare_half(op, lambda run, *a: conv(run, op, *a), getattr(F, op), self.arrays(x, w, op, {}), device, roundings=2 if "transpose" in op else 1)

    def test_16_bits_of_volumes(self):
        """Random shapes: whole blocks of channels and others, one channel, transposed with a stride."""
        for op in ("conv3d", "conv_transpose3d"):
            for x, weight, given in cases(op, 3, 10, [c for c in CHANNELS if c[0] * c[1] <= 2048], 5):
                ours, theirs = lambda run, *a: conv(run, op, *a, **given), lambda *a: getattr(F, op)(*a, **given)
                compare_half(f"{op} {x} {weight} {given}", ours, theirs, self.arrays(x, weight, op, given), roundings=2 if "transpose" in op else 1)

    def test_far_apart(self):
        """Kernels that span more than the image, as in DeepLab: the padding equals the dilation."""
        for rate in (6, 12, 18, 36):
            given = dict(padding=rate, dilation=rate)
            ours, theirs = lambda run, *a: conv(run, "conv2d", *a, **given), lambda *a: F.conv2d(*a, **given)
            in_blocks = lambda run, x, *a: ours(run, blocked(run, x), *a)
            for op, x, w in ((in_blocks, (2, 32, 17, 14), (16, 32, 3, 3)), (ours, (1, 5, 19, 13), (7, 5, 3, 3))):
                compare(f"{rate} {x}", op, theirs, self.arrays(x, w, "conv2d", given), 2e-5)
                compare_half(f"{rate} {x}", ours, theirs, self.arrays(x, w, "conv2d", given))
            x, w = (1, 2, 9, 7), (2, 2, 3, 3)
            compare(f"{rate} reference", ours, theirs, self.arrays(x, w, "conv2d", given, "d"), 1e-12, "cpu:reference")
            compare_half(f"{rate} reference", ours, theirs, self.arrays(x, w, "conv2d", given), "cpu:reference")

    def test_one_weight_near_and_far(self):
        """One weight on small and large images. Small images use only some of its positions; the others count only
        for large ones."""
        given = dict(padding=(4, 9), dilation=(3, 8))

        def ours(run, w, *images):
            pooled = [run.op("tern_global_avg_pool", conv(run, "conv2d", x, w, **given)) for x in images]
            return run.op("tern_add", run.op("tern_add", pooled[0], pooled[1]), pooled[2])

        theirs = lambda w, *images: sum(F.conv2d(x, w, **given).mean((2, 3)) for x in images)
        for c, o in ((16, 32), (5, 6)):
            arrays = [self.draw(s) for s in ((o, c, 4, 3), (2, c, 3, 4), (2, c, 12, 30), (2, c, 2, 7))]
            compare("one weight", ours, theirs, arrays, 2e-5)
            compare_half("one weight", ours, theirs, arrays, roundings=5)

    def test_a_step_down_and_up_again(self):
        """Two levels of a U-Net on a volume of odd size: down by a stride, up by a transposed convolution with output
        padding, and the skip connection."""
        shapes = [(16, 1, 3, 3, 3), (32, 16, 2, 2, 2), (32, 16, 2, 2, 2), (16, 32, 3, 3, 3), (3, 16, 1, 1, 1)]
        more = dict(stride=2, output_padding=(1, 0, 1))

        def ours(run, x, a, down, up, b, head):
            left = run.op("tern_relu", conv(run, "conv3d", x, a, padding=1))
            y = conv(run, "conv_transpose3d", run.op("tern_relu", conv(run, "conv3d", left, down, stride=2)), up, **more)
            y = run.op("tern_cat", 2, (ctypes.c_void_p * 2)(left, run.op("tern_relu", y)), 1)
            return conv(run, "conv3d", run.op("tern_relu", conv(run, "conv3d", y, b, padding=1)), head)

        def theirs(x, a, down, up, b, head):
            left = F.conv3d(x, a, padding=1).relu()
            y = F.conv_transpose3d(F.conv3d(left, down, stride=2).relu(), up, **more).relu()
            return F.conv3d(F.conv3d(torch.cat([left, y], 1), b, padding=1).relu(), head)

        for batch in (2, 1):
            arrays = [self.draw((batch, 1, 5, 6, 7))] + [self.draw(s) for s in shapes]
            compare("U-Net", ours, theirs, arrays, 2e-5)
            compare("U-Net, reference", ours, theirs, [a.astype("d") for a in arrays], 1e-12, "cpu:reference")

    def test_empty_batches(self):
        """The result is empty. The parameters' gradients are 0, or unchanged if there were any."""
        for device in ("cpu", "cpu:reference"):
            for op in OPTIONS:
                x, w = (2, 3, 6, 5, 4)[: dims_of(op) + 2], (3, 3, 3, 2, 3)[: dims_of(op) + 2]
                arrays = self.arrays(x, w, op, {})
                none = numpy.zeros((0, *x[1:]), "f")
                run = Run(device)
                p = [run.parameter(a) for a in arrays[1:]]
                empty = run.parameter(none)
                y = conv(run, op, empty, *p)
                self.assertEqual(run.shape(y), tuple(getattr(F, op)(*map(torch.tensor, [none] + arrays[1:])).shape))
                run.backward(run.op("tern_sum", y))
                self.assertEqual(run.grad(empty).shape, none.shape)
                for ours, array in zip(p, arrays[1:]):
                    numpy.testing.assert_array_equal(run.grad(ours), 0 * array)
                run.backward(run.op("tern_sum", conv(run, op, run.constant(arrays[0]), *p)))
                before = [run.grad(ours) for ours in p]
                run.backward(run.op("tern_sum", conv(run, op, empty, *p)))
                for ours, want in zip(p, before):
                    self.assertGreater(numpy.abs(want).max(), 0)
                    numpy.testing.assert_array_equal(run.grad(ours), want)
                run.close()

    @unittest.skipIf("TERN_TEST_DEVICE" in os.environ, "what oneDNN tells of its kernels is the CPU's")
    def test_views_with_gaps_run_vendor_code(self):
        """They are copied and do not use the plain loops: three convolutions per pass, two passes, six ops."""
        command = [sys.executable, __file__, "ConvTest.test_views_with_gaps"]
        text = subprocess.run(command, env=dict(os.environ, ONEDNN_VERBOSE="1"), check=True, capture_output=True, text=True).stdout
        self.assertEqual(len(kernels_run("convolution", text)), 3 * 2 * 6)

    def test_finite_differences(self):
        shapes = [("conv1d", (2, 4, 7), (6, 2, 3)), ("conv_transpose1d", (2, 4, 5), (4, 3, 3)), ("conv_transpose2d", (2, 4, 3, 4), (4, 3, 3, 2))]
        shapes += [("conv3d", (2, 4, 4, 5, 3), (6, 2, 3, 2, 1)), ("conv_transpose3d", (2, 4, 2, 3, 3), (4, 3, 2, 3, 1))]
        for op, x, w in shapes:
            given = dict(stride=2, padding=1, dilation=2, groups=2, **(dict(output_padding=1) if "transpose" in op else {}))
            gradient_check(op, lambda run, *a: conv(run, op, *a, **given), self.arrays(x, w, op, given, "d"))

    def test_errors_name_shapes(self):
        f = lambda *shape: numpy.ones(shape, "f")
        shape, dtype, out_of_range = -2, -3, -7
        transposed = "expected an output_padding of at least 0 and less than stride or dilation, got output_padding"
        cases = [
            (("conv1d", f(2, 3, 5), f(4, 2, 3)), {}, shape, "conv1d: weight is (4, 2, 3) but input is (2, 3, 5)"),
            (("conv1d", f(2, 3, 5, 5), f(4, 3, 3)), {}, shape, "conv1d: weight is (4, 3, 3) but input is (2, 3, 5, 5)"),
            (("conv1d", f(2, 3, 5), f(4, 3, 3, 3)), {}, shape, "conv1d: weight is (4, 3, 3, 3) but input is (2, 3, 5)"),
            (("conv1d", f(2, 3, 5), f(4, 3, 3), f(3)), {}, shape, "conv1d: weight is (4, 3, 3) but bias is (3)"),
            (("conv1d", f(2, 3, 2), f(4, 3, 3)), {}, shape, "conv1d: nothing to compute: weight is (4, 3, 3), input (2, 3, 2), padding 0, dilation 1"),
            (("conv1d", f(2, 3, 5), f(4, 3, 3)), dict(stride=0), out_of_range, "got stride 0, dilation 1, groups 1, padding 0"),
            (("conv1d", f(2, 3, 5), f(4, 3, 3)), dict(dilation=0), out_of_range, "got stride 1, dilation 0, groups 1, padding 0"),
            (("conv_transpose1d", f(2, 3, 5), f(4, 3, 3)), {}, shape, "conv_transpose1d: weight is (4, 3, 3) but input is (2, 3, 5)"),
            (("conv_transpose1d", f(2, 4, 5), f(4, 3, 3), f(4)), {}, shape, "conv_transpose1d: weight is (4, 3, 3) but bias is (4)"),
            (("conv_transpose1d", f(2, 4, 5), f(4, 3, 3)), dict(groups=3), shape, "weight is (4, 3, 3) but input is (2, 4, 5), in 3 groups"),
            (("conv_transpose1d", f(2, 4, 5), f(4, 3, 3)), dict(output_padding=1), out_of_range, f"{transposed} 1, stride 1, dilation 1"),
            (("conv_transpose2d", f(2, 4, 5, 5), f(4, 3, 3, 3)), dict(output_padding=(0, -1)), out_of_range, f"{transposed} (0, -1), stride (1, 1), dilation (1, 1)"),
            (("conv_transpose2d", f(2, 4, 2, 2), f(4, 3, 3, 3)), dict(padding=2), shape, "conv_transpose2d: nothing to compute: weight is (4, 3, 3, 3), input (2, 4, 2, 2), padding (2, 2), dilation (1, 1)"),
            (("conv_transpose2d", f(2, 4, 0, 2), f(4, 3, 3, 3)), {}, shape, "nothing to compute"),
            (("conv2d", f(2, 4, 0, 2), f(4, 4, 1, 1)), dict(padding=1), shape, "nothing to compute"),
            (("conv2d", f(2, 0, 3, 2), f(4, 0, 1, 1)), {}, shape, "nothing to compute"),
            (("conv2d", f(2, 4, 3, 2), numpy.ones((4, 4, 1, 1))), {}, dtype, "expected one floating-point dtype, got weight f64, input f32, bias none"),
            (("conv3d", f(2, 3, 4, 5, 6), f(4, 2, 1, 2, 3)), {}, shape, "conv3d: weight is (4, 2, 1, 2, 3) but input is (2, 3, 4, 5, 6)"),
            (("conv3d", f(2, 3, 4, 5), f(4, 3, 1, 1)), {}, shape, "conv3d: weight is (4, 3, 1, 1) but input is (2, 3, 4, 5)"),
            (("conv3d", f(2, 3, 4, 5, 6), f(4, 3, 1, 1, 1), f(3)), {}, shape, "conv3d: weight is (4, 3, 1, 1, 1) but bias is (3)"),
            (("conv3d", f(2, 3, 2, 5, 6), f(4, 3, 3, 1, 1)), dict(dilation=2), shape, "conv3d: nothing to compute: weight is (4, 3, 3, 1, 1), input (2, 3, 2, 5, 6), padding (0, 0, 0), dilation (2, 2, 2)"),
            (("conv3d", f(2, 3, 2, 5, 6), f(4, 3, 1, 1, 1)), dict(stride=(0, 1, 2)), out_of_range, "got stride (0, 1, 2), dilation (1, 1, 1), groups 1, padding (0, 0, 0)"),
            (("conv3d", f(2, 3, 2, 5, 6), f(4, 3, 1, 1, 1)), dict(padding=(0, 0, -1)), out_of_range, "padding (0, 0, -1)"),
            (("conv3d", f(2, 3, 2, 5, 6), numpy.ones((4, 3, 1, 1, 1))), {}, dtype, "expected one floating-point dtype, got weight f64, input f32, bias none"),
            (("conv_transpose3d", f(2, 3, 2, 5, 6), f(4, 3, 1, 1, 1)), {}, shape, "conv_transpose3d: weight is (4, 3, 1, 1, 1) but input is (2, 3, 2, 5, 6)"),
            (("conv_transpose3d", f(2, 4, 5, 5, 5), f(4, 3, 3, 3, 3)), dict(output_padding=(2, 0, 0), stride=2), out_of_range, f"{transposed} (2, 0, 0), stride (2, 2, 2), dilation (1, 1, 1)"),
            (("conv_transpose3d", f(2, 4, 2, 2, 2), f(4, 3, 3, 3, 1)), dict(padding=2), shape, "conv_transpose3d: nothing to compute"),
            (("conv1d", numpy.ones((2, 3, 5), "i8"), numpy.ones((4, 3, 3), "i8")), {}, dtype, "got weight i64, input i64, bias none"),
        ]
        for (op, *arrays), given, code, text in cases:
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                conv(run, op, *map(run.constant, arrays), **given)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
            run.end_failed()
            run.close()


class ModuleTest(unittest.TestCase):
    KINDS = {"conv1d": torch.nn.Conv1d, "conv2d": torch.nn.Conv2d, "conv3d": torch.nn.Conv3d}
    KINDS.update(conv_transpose1d=torch.nn.ConvTranspose1d, conv_transpose2d=torch.nn.ConvTranspose2d, conv_transpose3d=torch.nn.ConvTranspose3d)

    def test_beside_torch(self):
        """The same names, the same initial bits from the same generator, the same values, for several options."""
        rng = numpy.random.default_rng(0)
        for op, kind in self.KINDS.items():
            dims = dims_of(op)
            for i, given in enumerate(({}, dict(bias=False), dict(groups=2, stride=2, padding=1), dict(dilation=2))):
                more = dict(given, output_padding=1) if "transpose" in op and "stride" in given else given
                torch.manual_seed(i)
                run = Run("cpu")
                generator = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(i)))
                theirs = kind(6, 16, (3, 2, 1)[:dims], **more)
                kernel = [INT(k) for k in (3, 2, 1)[:dims]]
                layer = run.layer(f"tern_{op}_new", INT(6), INT(16), *kernel, ctypes.byref(options(op, **more)), generator)
                self.assertEqual(Module.from_address(layer.value).kind, op.encode())
                for name, value in theirs.state_dict().items():
                    found = ctypes.c_void_p(run.lib.tern_state_find(layer, name.encode()))
                    numpy.testing.assert_array_equal(run.value(found), value.numpy())
                self.assertEqual(run.lib.tern_state_count(layer), len(theirs.state_dict()))
                x = rng.standard_normal((2, 6, 8, 9, 5)[: dims + 2]).astype("f")
                got = run.value(run.forward(layer, run.constant(x)))
                numpy.testing.assert_allclose(got, theirs(torch.tensor(x)).detach().numpy(), rtol=0, atol=2e-6)
                run.lib.tern_rng_free(generator)
                run.close()

    def test_refused(self):
        run = Run("cpu")
        rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(0)))
        for op in self.KINDS:
            dims = dims_of(op)
            for sizes, given in (((0, 4), {}), ((4, 0), {}), ((4, 6), dict(groups=4)), ((6, 4), dict(groups=4)), ((4, 4), dict(groups=0))):
                with self.assertRaises(tern.TernError) as caught:
                    run.layer(f"tern_{op}_new", *map(INT, sizes), *[INT(3)] * dims, ctypes.byref(options(op, **given)), rng)
                kernel = f"({', '.join('3' * dims)})"
                self.assertIn(f"got {sizes[0]} in, {sizes[1]} out, {given.get('groups', 1)} groups, kernel {kernel}", str(caught.exception))
                self.assertEqual(caught.exception.code, -7)
            with self.assertRaises(tern.TernError) as caught:
                run.layer(f"tern_{op}_new", INT(4), INT(4), *[INT(0)] * dims, None, rng)
            self.assertIn("a kernel of at least 1", str(caught.exception))
            empty = options(op)
            empty.size = 0
            with self.assertRaises(tern.TernError) as caught:
                run.layer(f"tern_{op}_new", INT(4), INT(4), *[INT(1)] * dims, ctypes.byref(empty), rng)
            self.assertIn("options: size is 0", str(caught.exception))
        run.lib.tern_rng_free(rng)
        run.close()


if __name__ == "__main__":
    skips.main()
