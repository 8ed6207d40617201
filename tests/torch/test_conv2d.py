"""conv2d compared with PyTorch in double: value and every gradient, on the fast and the plain kernels."""
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
from ops import Run, kernels_run


class Opts(ctypes.Structure):
    """tern_conv2d_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("stride", ctypes.c_int64 * 2),
        ("padding", ctypes.c_int64 * 2),
        ("dilation", ctypes.c_int64 * 2),
        ("groups", ctypes.c_int64),
        ("bias", ctypes.c_bool),
    ]


def options(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, bias=True):
    two = ctypes.c_int64 * 2
    return Opts(ctypes.sizeof(Opts), two(*stride), two(*padding), two(*dilation), groups, bias)


def conv(run, x, weight, bias=None, **kw):
    return run.op("tern_conv2d", x, weight, bias, ctypes.byref(options(**kw)))


def torch_conv(x, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    return torch.nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)


def loss_of(run, y, head, label):
    """One number whose gradient differs for every element of y: the cross entropy of a convolution over all of y."""
    scores = run.op("tern_global_avg_pool", conv(run, y, run.constant(head)))
    return run.op("tern_cross_entropy", scores, run.constant(label), None)


def torch_loss(y, head, label):
    scores = torch_conv(y, torch.from_numpy(head).double()).mean((2, 3))
    return torch.nn.functional.cross_entropy(scores, torch.from_numpy(label))


class Inputs:
    """Arrays of one dtype, and the same values as double tensors of torch with gradients."""

    def __init__(self, run, dtype, seed):
        self.run, self.dtype = run, dtype
        self.rng = numpy.random.default_rng(seed)
        self.pairs = []

    def array(self, *shape):
        return self.rng.standard_normal(shape).astype(self.dtype)

    def pair(self, *shape):
        array = self.array(*shape) / numpy.sqrt(max(1, numpy.prod(shape[1:]))).astype(self.dtype)
        ours, theirs = self.run.parameter(array), torch.from_numpy(array).double().requires_grad_()
        self.pairs.append((ours, theirs))
        return ours, theirs

    def head(self, shape):
        """A head for outputs of that shape, and labels."""
        classes = 5
        head = self.array(classes, *shape[1:]) / numpy.sqrt(numpy.prod(shape[1:])).astype(self.dtype)
        return head * 3, self.rng.integers(0, classes, shape[0])


def has_avx512():
    with open("/proc/cpuinfo") as file:
        return " avx512bw " in file.read() and os.environ.get("DNNL_MAX_CPU_ISA", "AVX512") != "AVX2"

# Where kernels are measured on an emulation of a GPU, most of the time goes into that.
FEW = "TERN_TEST_FEW" in os.environ


class Conv2dTest(unittest.TestCase):
    def near(self, ours, theirs, dtype, what):
        theirs = theirs.detach().numpy()
        self.assertEqual(ours.shape, theirs.shape, what)
        scale = max(numpy.abs(theirs).max(), 1e-30)
        error = numpy.abs(ours - theirs).max() / scale
        self.assertLess(error, 2e-5 if dtype == numpy.float32 else 1e-12, what)

    def check_grads(self, inputs, what, times=1):
        for i, (ours, theirs) in enumerate(inputs.pairs):
            self.near(inputs.run.grad(ours), theirs.grad * times, inputs.dtype, f"{what}: gradient of input {i}")

    def one(self, device, dtype, shape, seed, threads=1):
        n, c, h, w, o, kh, kw, kwargs, with_bias = shape
        run = Run(device, threads)
        inputs = Inputs(run, dtype, seed)
        x, tx = inputs.pair(n, c, h, w)
        weight, tweight = inputs.pair(o, c // kwargs.get("groups", 1), kh, kw)
        bias, tbias = inputs.pair(o) if with_bias else (None, None)
        ty = torch_conv(tx, tweight, tbias, **kwargs)
        head, label = inputs.head(ty.shape)
        torch_loss(ty, head, label).backward()
        for step in (1, 2):  # the second pass adds to the gradients of the first
            y = conv(run, x, weight, bias, **kwargs)
            self.near(run.value(y), ty, dtype, f"{shape} value")
            run.backward(loss_of(run, y, head, label))
            self.check_grads(inputs, f"{device} {shape} step {step}", step)
            run.end()
        run.close()

    CHANNELS = [(1, 16, 1), (3, 64, 1), (16, 16, 1), (16, 32, 1), (64, 32, 1), (6, 16, 1), (16, 6, 1), (10, 20, 1), (24, 48, 1), (48, 24, 1)]
    CHANNELS += [(5, 7, 1), (2, 1, 1), (32, 32, 32), (32, 64, 2), (64, 32, 2), (6, 12, 3), (24, 24, 24), (16, 48, 16), (20, 20, 4)]

    @staticmethod
    def shapes(seed, count, channels, biggest):
        rng = random.Random(seed)
        for i in range(count // 3 if FEW else count):
            c, o, groups = channels[i % len(channels)]
            kh, kw = rng.choice([1, 1, 2, 3, 3, 5]), rng.choice([1, 2, 3, 3, 4, 5])
            dilation = rng.choice([(1, 1), (1, 1), (2, 1), (1, 3), (2, 2)])
            padding = rng.choice([(0, 0), (kh // 2, kw // 2), (1, 0), (0, 2)])
            stride = rng.choice([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])
            h = max(dilation[0] * (kh - 1) + 1 - 2 * padding[0], 1) + rng.randrange(biggest)
            w = max(dilation[1] * (kw - 1) + 1 - 2 * padding[1], 1) + rng.randrange(biggest)
            kwargs = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
            yield rng.randrange(1, 5), c, h, w, o, kh, kw, kwargs, rng.random() < 0.5

    def test_fast(self):
        for seed, shape in enumerate(self.shapes(1, 57, self.CHANNELS, 12)):
            self.one("cpu", numpy.float32, shape, seed, threads=2 if seed == 20 else 1)

    # ResNet-18 for small images, a slim one for 28x28, LeNet: channels, height, channels out, kernel, stride
    LAYERS = [(3, 32, 64, 3, 1), (64, 16, 64, 3, 1), (64, 16, 128, 3, 2), (64, 16, 128, 1, 2), (512, 4, 512, 3, 1)]
    LAYERS += [(1, 28, 16, 3, 1), (16, 28, 16, 3, 1), (16, 28, 32, 3, 2), (16, 28, 32, 1, 2), (32, 14, 64, 3, 2)]
    LAYERS += [(1, 28, 6, 5, 1), (6, 14, 16, 5, 1)]

    def test_layers(self):
        for c, h, o, k, stride in self.LAYERS:
            if FEW:
                c, o = max(1, c // 4), max(1, o // 4)
            kwargs = dict(stride=(stride, stride), padding=(k // 2, k // 2))
            self.one("cpu", numpy.float32, (2, c, h, h, o, k, k, kwargs, False), c + h)

    @unittest.skipUnless(has_avx512(), "oneDNN's kernels for blocks of 16 channels need AVX-512")
    @unittest.skipIf("TERN_TEST_DEVICE" in os.environ, "what oneDNN tells of its kernels is the CPU's")
    def test_layers_run_generated_code(self):
        """No layer, gradients included, uses oneDNN's reference loops or a plain matrix product."""
        command = [sys.executable, __file__, "Conv2dTest.test_layers"]
        text = subprocess.run(command, env=dict(os.environ, ONEDNN_VERBOSE="1"), check=True, capture_output=True, text=True).stdout
        names = kernels_run("convolution", text)
        self.assertGreater(len(names), 3 * len(self.LAYERS))
        # oneDNN 3 takes a kernel as large as the image for an inner product ("ip:"), and 3.13 chooses products for some gradients ("x64:gemm:jit").
        self.assertEqual([name for name in names if name.startswith(("ref", "gemm"))], [])

    def test_reference(self):
        small = [(c, o, g) for c, o, g in self.CHANNELS if c * o <= 1024 * g]
        for seed, shape in enumerate(self.shapes(2, 24, small, 4)):
            self.one("cpu:reference", numpy.float64 if seed % 2 else numpy.float32, shape, seed)

    def test_double_on_the_fast_device(self):
        self.one("cpu", numpy.float64, (2, 16, 5, 6, 16, 3, 3, dict(padding=(1, 1)), True), 3)

    def test_chain(self):
        """Blocked results stay blocked, meet plain ones, and are converted back; with ReLU between."""
        for device, dtype in (("cpu", numpy.float32), ("cpu:reference", numpy.float64)):
            channels = [3, 16, 32, 16, 10, 32, 24, 16] if device == "cpu" else [3, 16, 5, 16]
            run = Run(device, 1)
            inputs = Inputs(run, dtype, 7)
            y, ty = inputs.pair(3, channels[0], 7, 6)
            for c, o in zip(channels, channels[1:]):
                weight, tweight = inputs.pair(o, c, 3, 3)
                y, ty = conv(run, y, weight, padding=(1, 1)), torch_conv(ty, tweight, padding=(1, 1))
                y, ty = run.op("tern_relu", y), torch.relu(ty)
            head, label = inputs.head(ty.shape)
            torch_loss(ty, head, label).backward()
            self.near(run.value(y), ty, dtype, "value of the chain")
            run.backward(loss_of(run, y, head, label))
            self.check_grads(inputs, f"chain on {device}")
            run.close()

    def test_gradients_meet(self):
        """Two convolutions use one blocked result, and one weight is used twice: gradients add up."""
        for device, dtype, c in (("cpu", numpy.float32, 32), ("cpu", numpy.float32, 6), ("cpu:reference", numpy.float64, 4)):
            run = Run(device, 1)
            inputs = Inputs(run, dtype, c)
            x, tx = inputs.pair(4, 3, 6, 5)
            first, tfirst = inputs.pair(c, 3, 3, 3)
            shared, tshared = inputs.pair(c, c, 3, 3)
            other, tother = inputs.pair(c, c, 1, 1)
            h, th = conv(run, x, first, padding=(1, 1)), torch_conv(tx, tfirst, padding=(1, 1))
            a = conv(run, conv(run, h, shared, padding=(1, 1)), shared, padding=(1, 1))
            ta = torch_conv(torch_conv(th, tshared, padding=(1, 1)), tshared, padding=(1, 1))
            # the second result is the weight of a convolution over the whole first one
            b, tb = conv(run, h, other), torch_conv(th, tother)
            y, ty = conv(run, a, b), torch_conv(ta, tb)
            label = numpy.array([0, 3, 1, 1])
            torch.nn.functional.cross_entropy(ty.mean((2, 3)), torch.from_numpy(label)).backward()
            run.backward(run.op("tern_cross_entropy", run.op("tern_global_avg_pool", y), run.constant(label), None))
            self.check_grads(inputs, f"{device}, {c} channels")
            run.close()

    def test_weight_written_between_steps(self):
        """Packed copies of the weight follow its changes, at every batch size, also with gradients off."""
        run = Run("cpu", 1)
        inputs = Inputs(run, numpy.float32, 5)
        weight = run.parameter(inputs.array(32, 16, 3, 3))
        for step, n in enumerate((4, 4, 3, 4, 1)):
            if step != 1:
                array = inputs.array(32, 16, 3, 3)
                run.write(weight, array)
            x = inputs.array(n, 16, 6, 6)
            run.lib.tern_grad_enabled_set(run.scope, step < 3)
            y = conv(run, run.constant(x), weight)
            self.near(run.value(y), torch_conv(torch.from_numpy(x).double(), torch.from_numpy(array).double()), numpy.float32, f"step {step}")
            run.end()
        run.close()

    def test_finite_differences(self):
        run = Run("cpu:reference", 1)
        rng = numpy.random.default_rng(11)
        kwargs = dict(stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
        arrays = [rng.standard_normal(s) for s in ((2, 4, 5, 6), (6, 2, 3, 2), (6,))]
        head, label = rng.standard_normal((3, 6, 3, 8)) * 0.2, numpy.array([2, 0])
        inputs = [run.parameter(a) for a in arrays]

        def loss():
            return loss_of(run, conv(run, *inputs, **kwargs), head, label)

        run.backward(loss())
        for tensor, array in zip(inputs, arrays):
            grad, step = run.grad(tensor), 1e-5
            for at in rng.permutation(array.size)[:12]:
                ends = []
                for sign in (1, -1):
                    moved = array.copy()
                    moved.flat[at] += sign * step
                    run.write(tensor, moved)
                    ends.append(run.lib.tern_item(loss()))
                run.write(tensor, array)
                self.assertAlmostEqual(grad.flat[at], (ends[0] - ends[1]) / (2 * step), delta=1e-8)
        run.close()


class ModuleTest(unittest.TestCase):
    def test_initial_values(self):
        """The same bits as torch.nn.Conv2d for the same generator."""
        lib = tern.Library()
        cases = [(1, 16, 3, 3, {}), (16, 32, 1, 1, dict(bias=False)), (6, 9, 5, 2, dict(groups=3)), (64, 64, 3, 3, dict(bias=False))]
        rng = ctypes.c_void_p(lib.check("tern_rng_new", ctypes.c_uint64(17)))
        torch.manual_seed(17)
        for c, o, kh, kw, kwargs in cases:
            theirs = torch.nn.Conv2d(c, o, (kh, kw), **kwargs)
            opts = options(**kwargs)
            sizes = [ctypes.c_int64(v) for v in (c, o, kh, kw)]
            ours = ctypes.c_void_p(lib.check("tern_conv2d_new", *sizes, ctypes.byref(opts), rng))
            for name, parameter in theirs.named_parameters():
                tensor = ctypes.c_void_p(lib.tern_state_find(ours, name.encode()))
                value = numpy.empty(tuple(parameter.shape), numpy.float32)
                lib.check("tern_tensor_read", tensor, tern.pointer(value), ctypes.c_size_t(value.nbytes))
                numpy.testing.assert_array_equal(value, parameter.detach().numpy())
            self.assertEqual(lib.tern_state_count(ours), len(list(theirs.parameters())))
            lib.tern_module_free(ours)
        lib.tern_rng_free(rng)

    def test_forward(self):
        run = Run("cpu", 1)
        rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(3)))
        torch.manual_seed(3)
        kwargs = dict(stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
        theirs = torch.nn.Conv2d(4, 16, (3, 2), **kwargs)
        sizes = [ctypes.c_int64(v) for v in (4, 16, 3, 2)]
        ours = ctypes.c_void_p(run.lib.check("tern_conv2d_new", *sizes, ctypes.byref(options(**kwargs)), rng))
        x = numpy.random.default_rng(0).standard_normal((3, 4, 8, 9)).astype(numpy.float32)
        y = ctypes.c_void_p(run.lib.tern_forward(ours, run.scope, run.constant(x)))
        numpy.testing.assert_allclose(run.value(y), theirs(torch.from_numpy(x)).detach().numpy(), rtol=0, atol=1e-6)
        run.lib.tern_scope_end(run.scope, None)
        run.lib.tern_module_free(ours)
        run.lib.tern_rng_free(rng)
        run.close()


if __name__ == "__main__":
    skips.main()
