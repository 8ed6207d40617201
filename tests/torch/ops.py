"""Ops of libtern on numpy arrays, with gradients, for comparison with torch.

    run = Run("cpu")                       # or "cpu:reference"
    x = run.parameter(array)               # an input whose gradient is wanted
    c = run.constant(array)                # one without
    y = run.lib.tern_relu(run.scope, x)    # any op; NULL comes back as None
    run.backward(y, dy)                    # gradients of sum(y * dy)
    run.value(y), run.grad(x)
"""
import atexit
import ctypes
import functools
import os
import re

import numpy

import tern

F32, F64, I64, I32, U8, BF16, F16, BOOL, I8, I16 = range(10)
DTYPES = {numpy.dtype(name): i for i, name in enumerate("float32 float64 int64 int32 uint8 - float16 bool int8 int16".split()) if name != "-"}
BY_NUMBER = {i: dtype for dtype, i in DTYPES.items()}


class Module(ctypes.Structure):
    """tern_module."""

    _fields_ = [
        ("kind", ctypes.c_char_p),
        ("forward", ctypes.c_void_p),
        ("training", ctypes.c_bool),
        ("release", ctypes.c_void_p),
        ("tree", ctypes.c_void_p),
    ]


def shape_of(array):
    return (ctypes.c_int64 * max(1, array.ndim))(*array.shape)


@functools.cache
def library():
    """One for all runs: a test makes thousands, and looks up each function once."""
    return tern.Library()


KEPT = {}


def open_device(lib, name, threads=None):
    """(a device, whether its user closes it). A real GPU takes milliseconds to open, and a test opens thousands: there all users
    under the same variables have one, for as long as the process lives. So have they on the emulation where kernels are measured
    (TERN_TEST_FEW), since each device repeats the first one for 50 ms and measures its own: that device is closed at the exit.
    Elsewhere on the emulation closing is a part of the test."""
    name = tern.device(name)
    is_real, measures = "TERN_TEST_GPUS" in os.environ, "TERN_TEST_FEW" in os.environ
    is_kept = name.startswith("cuda") and (is_real or measures)
    key = is_kept and (name, threads, tuple(sorted(item for item in os.environ.items() if item[0].startswith("TERN_"))))
    device = KEPT.get(key)
    if device is None:
        device = ctypes.c_void_p(lib.check("tern_device_open", name.encode()))
        if threads:
            lib.check("tern_device_threads_set", device, threads)
        if is_kept:
            KEPT[key] = device
            if not is_real:
                atexit.register(lib.tern_device_close, device)
    return device, not is_kept


def thread_counts(*counts):
    """Numbers of threads that change no bit of a result. Other devices have no threads: two runs show that each gives the same."""
    return counts if tern.device("cpu") == "cpu" else counts[:2]


class Run:
    """One device, one scope, and one module with the parameters."""

    def __init__(self, device="cpu", threads=None, group=None):
        self.lib = library()
        self.device, self.closes_device = open_device(self.lib, device, threads)
        self.scope = ctypes.c_void_p(self.lib.check("tern_scope_new", self.device, group))
        self.module = Module()
        self.lib.check("tern_module_init", ctypes.byref(self.module), b"inputs", None)
        self.count = 0
        self.layers = []

    def layer(self, name, *args):
        """The module made by a _new function; close() frees it."""
        self.layers.append(ctypes.c_void_p(self.lib.check(name, *args)))
        tern.place(self.lib, self.layers[-1], self.device)
        return self.layers[-1]

    def forward(self, layer, x):
        y = self.lib.tern_forward(layer, self.scope, x)
        self.raise_error()
        return ctypes.c_void_p(y)

    def op(self, name, *args):
        """Calls an op that returns a tensor; raises the scope's error."""
        result = getattr(self.lib, name)(self.scope, *args)
        self.raise_error()
        return ctypes.c_void_p(result)

    def op_of(self, name, layer, *args):
        """The same for a module."""
        result = getattr(self.lib, name)(layer, self.scope, *args)
        self.raise_error()
        return ctypes.c_void_p(result)

    def raise_error(self):
        error = tern.Error.from_address(self.lib.tern_scope_error(self.scope))
        if error.code:
            raise tern.TernError(error)

    def parameter(self, array):
        array = numpy.asarray(array, order="C")
        name = f"p{self.count}".encode()
        self.count += 1
        tensor = ctypes.c_void_p(
            self.lib.check("tern_parameter_add", ctypes.byref(self.module), name, DTYPES[array.dtype], array.ndim, shape_of(array))
        )
        self.write(tensor, array)
        tern.place(self.lib, ctypes.byref(self.module), self.device)
        return tensor

    def constant(self, array):
        array = numpy.asarray(array, order="C")
        return self.op("tern_tensor_from", tern.pointer(array), DTYPES[array.dtype], array.ndim, shape_of(array))

    def write(self, tensor, array):
        array = numpy.asarray(array, order="C")
        self.lib.check("tern_tensor_write", tensor, tern.pointer(array), ctypes.c_size_t(array.nbytes))

    def shape(self, tensor):
        return tuple(self.lib.tern_tensor_shape(tensor)[: self.lib.tern_tensor_ndim(tensor)])

    def dtype(self, tensor):
        return BY_NUMBER[self.lib.tern_tensor_dtype(tensor)]

    def value(self, tensor):
        """The tensor as an array; bf16 becomes float32, since numpy has no bf16."""
        half = self.lib.tern_tensor_dtype(tensor) == BF16
        out = numpy.empty(self.shape(tensor), "uint16" if half else self.dtype(tensor))
        self.lib.check("tern_tensor_read", tensor, tern.pointer(out), ctypes.c_size_t(out.nbytes))
        return (out.reshape(-1).astype("uint32") << 16).view("float32").reshape(out.shape) if half else out

    def grad(self, parameter):
        grad = self.lib.tern_grad_get(parameter)
        return None if grad is None else self.value(ctypes.c_void_p(grad))

    def backward(self, y, dy=None):
        """Gradients of sum(y * dy), or of y if it is one element."""
        loss = y if dy is None else self.op("tern_sum", self.op("tern_mul", y, self.constant(dy)))
        self.lib.tern_backward(self.scope, loss)
        self.raise_error()

    def end(self):
        """Ends the step, which frees every tensor except parameters."""
        return self.lib.check("tern_scope_end", self.scope)

    def end_failed(self):
        """Ends a step whose error has been checked."""
        self.lib.tern_scope_end(self.scope, None)

    def close(self):
        self.lib.tern_scope_free(self.scope)
        self.lib.tern_module_release(ctypes.byref(self.module))
        for layer in self.layers:
            self.lib.tern_module_free(layer)
        if self.closes_device:
            self.lib.tern_device_close(self.device)


def blocked(run, x):
    """x (N, C, [D,] H, W) with C % 16 == 0 in the layout of blocks of 16 channels: through a convolution that is the
    identity, values and gradients exactly."""
    shape, dtype = run.shape(x), run.dtype(x)
    weight = numpy.eye(shape[1], dtype=dtype).reshape(shape[1], *[1 if d else shape[1] for d in range(len(shape) - 1)])
    return run.op(f"tern_conv{len(shape) - 2}d", x, run.constant(weight), None, None)


def rounded(array, kind):
    """The f32 array, rounded to torch's 16-bit type `kind`."""
    import torch

    return torch.tensor(array).to(kind).float().numpy()


def in_16_bits(op, dtype):
    """The op in BF16 or F16 on f32 arrays: its floating-point inputs are cast, and the result is cast back."""

    def wrapped(run, *tensors):
        halves = [run.op("tern_cast", t, dtype) if run.dtype(t).kind == "f" else t for t in tensors]
        y = op(run, *halves)
        assert run.lib.tern_tensor_dtype(y) == dtype
        return run.op("tern_cast", y, F32)

    return wrapped


def kernels_run(primitive, text):
    """The names of the kernels by which oneDNN has run a primitive, from what it prints under ONEDNN_VERBOSE=1: 2.x says
    onednn_verbose,exec,cpu,convolution,NAME,.. and 3.x onednn_verbose,v1,primitive,exec,.."""
    return re.findall(rf"(?m)^onednn_verbose,(?:v1,primitive,)?exec,cpu,{primitive},([^,]+),", text)


def error_of(got, want):
    """The largest difference, relative to the largest expected value."""
    got, want = numpy.asarray(got, numpy.float64), numpy.asarray(want, numpy.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    if got.size == 0:
        return 0.0
    return float(numpy.abs(got - want).max() / max(1e-30, numpy.abs(want).max()))


def is_repeated(device):
    """Whether this is the host's reference in a run for another device (TERN_TEST_DEVICE): torch/<noun> runs the same comparisons."""
    return device == "cpu:reference" and "TERN_TEST_DEVICE" in os.environ


def compare(what, op, oracle, arrays, tolerance, device="cpu", constant=(), threads=None, gradient_tolerance=None, passes=2):
    """Runs op(run, *tensors) and oracle(*torch tensors) on the arrays, then sends the same random dy back through both,
    twice, so that the second pass adds to the first one's gradients; with `passes` 1 only once, where options that do not
    change how gradients add up vary over the same arrays. Inputs whose number is in `constant` have no gradient. Torch
    computes in f64 whatever the arrays are."""
    import torch

    if is_repeated(device):
        return

    run = Run(device, threads)
    try:
        tensors = [run.constant(a) if i in constant else run.parameter(a) for i, a in enumerate(arrays)]
        want_in = [torch.tensor(a.astype(numpy.float64) if a.dtype.kind == "f" else a) for a in arrays]
        for i, t in enumerate(want_in):
            t.requires_grad_(i not in constant and t.dtype == torch.float64)
        want = oracle(*want_in)
        dy = numpy.random.default_rng(1).standard_normal(tuple(want.shape)).astype(arrays[0].dtype)
        for repeat in range(1, passes + 1):
            y = op(run, *tensors)
            error = error_of(run.value(y), want.detach().numpy())
            assert error <= tolerance, f"{what}: value off by {error:.2e}"
            run.backward(y, dy)
            if repeat == 1:
                want.backward(torch.tensor(dy.astype(numpy.float64)))
            for i, t in enumerate(want_in):
                if t.grad is None:
                    continue
                error = error_of(run.grad(tensors[i]), repeat * t.grad.numpy())
                assert error <= (gradient_tolerance or tolerance), f"{what}: gradient {i}, pass {repeat}: off by {error:.2e}"
    finally:
        run.close()


def far_from_zero(rng, shape, dtype):
    """Values next to each other whose mean is 10^2 to 10^6 deviations from 0: the float next to it is no mean of theirs."""
    mean = 10 ** rng.uniform(3, 8) * rng.choice([-1, 1])
    spread = rng.uniform(0.7, 30) * numpy.spacing(numpy.abs(numpy.float32(mean)))
    return (mean + spread * rng.standard_normal(shape)).astype(dtype)


def expect_no_gradient(run, y, tensors, what=None):
    """Equal values have gradients of exactly 0 for dy = 1."""
    run.backward(y, numpy.ones_like(run.value(y)))
    numpy.testing.assert_array_equal([numpy.abs(run.grad(t)).max() for t in tensors], 0, what)
    run.close()


def shows_overflow(got, want):
    """Whether each number is right or not finite: not one beside which nothing shows that values are too large."""
    return bool((~numpy.isfinite(got) | (numpy.abs(got - want) <= 1e-5 * numpy.abs(want).max())).all())


def gradient_check(what, op, arrays, constant=(), step=1e-5, tolerance=1e-7):
    """Compares the gradient of sum(y * dy) in f64 on the reference device with central differences."""
    if is_repeated("cpu:reference"):
        return
    rng = numpy.random.default_rng(2)
    dy = None

    def loss_of(inputs, wanted):
        nonlocal dy
        run = Run("cpu:reference")
        try:
            tensors = [run.constant(a) if i in constant else run.parameter(a) for i, a in enumerate(inputs)]
            y = op(run, *tensors)
            value = run.value(y)
            dy = rng.standard_normal(value.shape) if dy is None else dy
            if wanted:
                run.backward(y, dy)
                return [None if i in constant else run.grad(t) for i, t in enumerate(tensors)]
            return float((value * dy).sum())
        finally:
            run.close()

    grads = loss_of(arrays, True)
    for i, array in enumerate(arrays):
        if i in constant:
            continue
        direction = rng.standard_normal(array.shape)
        ends = [loss_of([a + s * step * direction if k == i else a for k, a in enumerate(arrays)], False) for s in (1, -1)]
        slope, got = (ends[0] - ends[1]) / (2 * step), float((grads[i] * direction).sum())
        assert abs(slope - got) <= tolerance * max(1, abs(slope)), f"{what}: input {i}: slope {slope}, gradient {got}"
