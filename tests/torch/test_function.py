"""Custom ops compared with torch.autograd.Function, and gradients of inputs, in every layout."""
import ctypes
import unittest

import numpy
import torch

import skips
from ops import Run, blocked, error_of

RNG = numpy.random.default_rng(0)
FORWARD = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
BACKWARD = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


class Function(ctypes.Structure):
    """tern_function."""

    _fields_ = [("name", ctypes.c_char_p), ("forward", FORWARD), ("backward", BACKWARD), ("reserved", ctypes.c_void_p * 4)]


class Ratio(torch.autograd.Function):
    """a / (1 + b^2), with half of b's true gradient."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a / (1 + b * b)

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        below = 1 + b * b
        return dy / below, -dy * a * b / (below * below)


def own_ratio(run):
    """The same function from libtern's ops."""
    lib, call = run.lib, ctypes.c_void_p

    def op(name, *args):
        return call(getattr(lib, name)(run.scope, *args))

    def below(b):
        return op("tern_add", op("tern_full", lib.tern_tensor_dtype(b), 0, None, ctypes.c_double(1)), op("tern_mul", b, b))

    def forward(ctx, scope, x, err):
        a, b = call(x[0]), call(x[1])
        for i, tensor in enumerate((a, b)):
            lib.tern_function_save(call(ctx), i, tensor)
        return op("tern_div", a, below(b)).value

    def backward(ctx, scope, dy, dx, err):
        a, b = (call(lib.tern_function_saved(call(ctx), i)) for i in range(2))
        down = below(b)
        first = op("tern_div", call(dy), down)
        if lib.tern_function_wants(call(ctx), 0):
            dx[0] = first.value
        if lib.tern_function_wants(call(ctx), 1):
            dx[1] = op("tern_neg", op("tern_mul", op("tern_mul", first, a), op("tern_div", b, down))).value
        return 0

    return Function(b"ratio", FORWARD(forward), BACKWARD(backward))


def wanted_input(run, array):
    tensor = run.constant(array)
    run.lib.check("tern_requires_grad_set", tensor, True)
    return tensor


def compare(what, op, oracle, arrays, tolerance, wanted):
    """Values and, twice, gradients of the inputs whose numbers are `wanted`."""
    run = Run("cpu")
    try:
        tensors = [wanted_input(run, a) if i in wanted else run.constant(a) for i, a in enumerate(arrays)]
        inputs = [torch.tensor(a.astype("d"), requires_grad=i in wanted) for i, a in enumerate(arrays)]
        want = oracle(*inputs)
        dy = RNG.standard_normal(tuple(want.shape)).astype(arrays[0].dtype)
        want.backward(torch.tensor(dy.astype("d")))
        for repeat in (1, 2):
            y = op(run, *tensors)
            assert error_of(run.value(y), want.detach().numpy()) <= tolerance, what
            run.backward(y, dy)
            for i, tensor in enumerate(tensors):
                if i not in wanted:
                    assert run.grad(tensor) is None, what
                else:
                    error = error_of(run.grad(tensor), repeat * inputs[i].grad.numpy())
                    assert error <= tolerance, f"{what}: gradient {i}, pass {repeat}: off by {error:.2e}"
    finally:
        run.close()


def draw(shape, dtype):
    return RNG.standard_normal(shape).astype(dtype)


def random_shape(channels=None):
    ndim = int(RNG.integers(2, 6))
    return tuple(channels if channels and d == 1 else int(RNG.integers(1, 8)) for d in range(ndim))


def apply(run, a, b):
    function = own_ratio(run)
    run.functions = getattr(run, "functions", []) + [function]
    pair = (ctypes.c_void_p * 2)(a.value, b.value)
    return run.op("tern_function_apply", ctypes.byref(function), 2, pair, None, ctypes.c_size_t(0))


class FunctionTest(unittest.TestCase):
    def test_beside_torch(self):
        for dtype, tolerance in (("f", 3e-6), ("d", 1e-13)):
            for wanted in ((0,), (1,), (0, 1)):
                for _ in range(10):
                    shape = random_shape()
                    compare(f"ratio {dtype} {shape} {wanted}", apply, Ratio.apply, [draw(shape, dtype), draw(shape, dtype)], tolerance, wanted)

    def test_views_and_blocked(self):
        turned = lambda run, a, b: apply(run, run.op("tern_transpose", a, 0, 1), b)
        compare("turned", turned, lambda a, b: Ratio.apply(a.T, b), [draw((5, 3), "f"), draw((3, 5), "f")], 3e-6, (0, 1))
        for dtype in "fd":
            for ndim in (4, 5):
                shape = (2, 32, 3, 5, 4)[:ndim]
                between = lambda run, a, b: blocked(run, apply(run, blocked(run, a), blocked(run, b)))
                compare(f"blocked {shape}", between, Ratio.apply, [draw(shape, dtype), draw(shape, dtype)], 3e-6, (0, 1))
                mixed = lambda run, a, b: apply(run, blocked(run, a), b)
                compare(f"mixed {shape}", mixed, Ratio.apply, [draw(shape, dtype), draw(shape, dtype)], 3e-6, (0, 1))

    def test_inputs_of_layers(self):
        """For a net's first layers, plain and blocked, whose input gradients are otherwise not needed."""
        for channels in (3, 16, 32):
            weight = draw((16, channels, 3, 3), "f") / 9
            shape = (2, channels, 9, 7)

            def op(run, x, residual):
                y = run.op("tern_conv2d", x, run.constant(weight), None, None)
                y = run.op("tern_relu", run.op("tern_add", y, residual))
                return run.op("tern_global_avg_pool", run.op("tern_max_pool2d", y, ctypes.c_int64(2), ctypes.c_int64(2), None))

            def oracle(x, residual):
                y = torch.relu(torch.conv2d(x, torch.tensor(weight).double()) + residual)
                return torch.max_pool2d(y, 2).mean((2, 3))

            compare(f"layers {channels}", op, oracle, [draw(shape, "f"), draw((2, 16, 7, 5), "f")], 3e-6, (0, 1))

    def test_contiguous(self):
        for shape, dims in (((3, 4), (0, 1)), ((2, 5, 4, 3), (1, 3))):
            run = Run("cpu")
            x = draw(shape, "f")
            tensor = wanted_input(run, x)
            self.assertEqual(run.op("tern_contiguous", tensor).value, tensor.value)
            y = run.op("tern_contiguous", run.op("tern_transpose", tensor, *dims))
            numpy.testing.assert_array_equal(run.value(y), x.swapaxes(*dims))
            dy = draw(run.shape(y), "f")
            run.backward(y, dy)
            numpy.testing.assert_array_equal(run.grad(tensor), dy.swapaxes(*dims))
            run.close()


if __name__ == "__main__":
    skips.main()
