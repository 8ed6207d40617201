"""Ops of libtern on numpy arrays, with gradients, for comparing against torch.

    run = Run("cpu")                       # or "cpu:reference"
    x = run.parameter(array)               # an input whose gradient is wanted
    c = run.constant(array)                # one without
    y = run.lib.tern_relu(run.scope, x)    # any op; NULL comes back as None
    run.backward(y, dy)                    # gradients of sum(y * dy)
    run.value(y), run.grad(x)
"""
import ctypes

import numpy

import tern

DTYPES = {numpy.dtype(name): i for i, name in enumerate(("float32", "float64", "int64", "int32", "uint8"))}
BY_NUMBER = {i: dtype for dtype, i in DTYPES.items()}
POINTERS = """tern_device_open tern_scope_new tern_tensor_from tern_parameter_add tern_buffer_add tern_grad_get tern_keep
tern_forward tern_relu tern_linear tern_cross_entropy tern_argmax tern_scope_error tern_module_add tern_state_find
tern_tensor_shape tern_rng_new""".split()


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


class Run:
    """One device, one scope and one module that holds the parameters."""

    def __init__(self, device="cpu", threads=None):
        self.lib = tern.Library()
        self.lib.returns(ctypes.c_void_p, *POINTERS)
        self.lib.returns(ctypes.c_int64, "tern_tensor_count")
        self.device = ctypes.c_void_p(self.lib.check("tern_device_open", device.encode()))
        if threads:
            self.lib.check("tern_device_threads_set", self.device, threads)
        self.scope = ctypes.c_void_p(self.lib.check("tern_scope_new", self.device, None))
        self.module = Module()
        self.lib.check("tern_module_init", ctypes.byref(self.module), b"inputs", None)
        self.count = 0

    def op(self, name, *args):
        """Calls an op that returns a tensor; raises the scope's error."""
        self.lib.returns(ctypes.c_void_p, name)
        result = getattr(self.lib, name)(self.scope, *args)
        self.raise_error()
        return ctypes.c_void_p(result)

    def raise_error(self):
        error = tern.Error.from_address(self.lib.tern_scope_error(self.scope))
        if error.code:
            raise tern.TernError(error)

    def parameter(self, array):
        array = numpy.ascontiguousarray(array)
        name = f"p{self.count}".encode()
        self.count += 1
        tensor = ctypes.c_void_p(
            self.lib.check("tern_parameter_add", ctypes.byref(self.module), name, DTYPES[array.dtype], array.ndim, shape_of(array))
        )
        self.write(tensor, array)
        return tensor

    def constant(self, array):
        array = numpy.ascontiguousarray(array)
        return self.op("tern_tensor_from", tern.pointer(array), DTYPES[array.dtype], array.ndim, shape_of(array))

    def write(self, tensor, array):
        array = numpy.ascontiguousarray(array)
        self.lib.check("tern_tensor_write", tensor, tern.pointer(array), ctypes.c_size_t(array.nbytes))

    def value(self, tensor):
        ndim = self.lib.tern_tensor_ndim(tensor)
        self.lib.tern_tensor_shape.restype = ctypes.POINTER(ctypes.c_int64)
        shape = tuple(self.lib.tern_tensor_shape(tensor)[:ndim])
        out = numpy.empty(shape, BY_NUMBER[self.lib.tern_tensor_dtype(tensor)])
        self.lib.check("tern_tensor_read", tensor, tern.pointer(out), ctypes.c_size_t(out.nbytes))
        return out

    def grad(self, parameter):
        grad = self.lib.tern_grad_get(parameter)
        return None if grad is None else self.value(ctypes.c_void_p(grad))

    def backward(self, y, dy=None):
        """Gradients of sum(y * dy), or of y if it is one element."""
        loss = y if dy is None else self.op("tern_sum", self.op("tern_mul", y, self.constant(dy)))
        self.lib.tern_backward(self.scope, loss)
        self.raise_error()

    def end(self):
        """Ends the step; every tensor but parameters is gone."""
        return self.lib.check("tern_scope_end", self.scope)

    def close(self):
        self.lib.tern_scope_free(self.scope)
        self.lib.tern_module_release(ctypes.byref(self.module))
        self.lib.tern_device_close(self.device)
