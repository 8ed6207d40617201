"""Whole models of libtern on numpy arrays: state dict, training steps, several ranks.

    net = Net.resnet(group=None, classes=10, ...)    # or Net.mlp([784, 128, 10])
    loss = net.step(x, y)                            # forward, cross entropy, backward, SGD
    net.state()["fc.weight"]
"""
import ctypes

import numpy

import tern
from ops import DTYPES, BY_NUMBER, F32, shape_of


class StateEntry(ctypes.Structure):
    """tern_state_entry."""

    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.c_void_p), ("is_buffer", ctypes.c_bool)]


class SgdOpts(ctypes.Structure):
    """tern_sgd_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("lr", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("dampening", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("nesterov", ctypes.c_bool),
        ("maximize", ctypes.c_bool),
    ]


class ResnetOpts(ctypes.Structure):
    """tern_resnet_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("in_channels", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("stages", ctypes.c_int),
        ("blocks", ctypes.c_int * 4),
        ("channels", ctypes.c_int64 * 4),
        ("small_stem", ctypes.c_bool),
        ("kaiming", ctypes.c_bool),
        ("bottleneck", ctypes.c_bool),
        ("dilate", ctypes.c_bool * 4),
    ]


class DdpOpts(ctypes.Structure):
    """tern_ddp_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("first_bucket_bytes", ctypes.c_size_t),
        ("bucket_bytes", ctypes.c_size_t),
        ("broadcast_buffers", ctypes.c_bool),
        ("ignore", ctypes.POINTER(ctypes.c_char_p)),
        ("ignore_count", ctypes.c_int),
        ("delay_all_reduce", ctypes.c_bool),
        ("static_graph", ctypes.c_bool),
        ("gradient_predivide_factor", ctypes.c_double),
        ("divide_by_initial_world_size", ctypes.c_bool),
        ("normaliser", ctypes.c_int),
        ("straggler_warn", ctypes.c_bool),
        ("checksum_every", ctypes.c_int),
        ("mixed_kernels", ctypes.c_bool),
        ("reduce_dtype", ctypes.c_int),
        ("microbatches", ctypes.c_int),
    ]


def library():
    lib = tern.Library()
    lib.returns(StateEntry, "tern_state_get")
    lib.returns(SgdOpts, "tern_sgd_defaults")
    lib.returns(ResnetOpts, "tern_resnet_defaults", "tern_resnet_preset")
    lib.returns(DdpOpts, "tern_ddp_defaults")
    return lib


class Net:
    """A module with its device, scope and optimizer; with a group, under tern_ddp too. Forward and loss are in an autocast
    region of `region`, if that is BF16 or F16."""

    region = F32

    def __init__(self, lib, make, seed=0, device=b"cpu", threads=1, group=None, ddp_opts=None, dtype=None, **sgd):
        self.lib = lib
        self.device = ctypes.c_void_p(lib.check("tern_device_open", tern.device(device.decode()).encode()))
        lib.check("tern_device_threads_set", self.device, threads)
        rng = ctypes.c_void_p(lib.check("tern_rng_new", ctypes.c_uint64(seed)))
        self.module = ctypes.c_void_p(make(rng))
        lib.tern_rng_free(rng)
        tern.place(lib, self.module, self.device)
        if dtype is not None:
            lib.check("tern_module_cast", self.module, dtype)
        self.ddp = None
        if group:
            opts = ctypes.byref(ddp_opts) if ddp_opts else None
            self.ddp = ctypes.c_void_p(lib.check("tern_ddp_new", self.module, group, opts))
        opts = lib.tern_sgd_defaults()
        for name, value in sgd.items():
            setattr(opts, name, value)
        self.optim = ctypes.c_void_p(lib.check("tern_sgd_new", self.module, ctypes.byref(opts)))
        self.scope = ctypes.c_void_p(lib.check("tern_scope_new", self.device, group))

    @classmethod
    def mlp(cls, lib, sizes, **rest):
        array = (ctypes.c_int64 * len(sizes))(*sizes)
        return cls(lib, lambda rng: lib.check("tern_mlp_new", array, len(sizes), rng), **rest)

    @classmethod
    def resnet(cls, lib, fields, **rest):
        opts = lib.tern_resnet_defaults()
        for name, value in fields.items():
            if name in ("blocks", "channels"):
                array = getattr(opts, name)
                array[: len(value)] = value
                opts.stages = len(value)
            else:
                setattr(opts, name, value)
        return cls(lib, lambda rng: lib.check("tern_resnet_new", ctypes.byref(opts), rng), **rest)

    def tensor(self, array):
        array = numpy.ascontiguousarray(array)
        return ctypes.c_void_p(
            self.lib.tern_tensor_from(self.scope, tern.pointer(array), DTYPES[array.dtype], array.ndim, shape_of(array))
        )

    def raise_error(self):
        error = tern.Error.from_address(self.lib.tern_scope_error(self.scope))
        if error.code:
            raise tern.TernError(error)

    def forward(self, x):
        return self.lib.tern_forward(self.module, self.scope, self.tensor(x))

    def backward(self, x, y):
        """Forward, cross entropy and backward; returns this rank's loss."""
        lib = self.lib
        lib.tern_autocast_set(self.scope, self.region)
        scores = ctypes.c_void_p(self.forward(x))
        loss = ctypes.c_void_p(lib.tern_cross_entropy(self.scope, scores, self.tensor(y), None))
        lib.tern_autocast_set(self.scope, F32)
        lib.tern_backward(self.scope, loss)
        self.raise_error()
        value = lib.tern_item(loss)
        lib.check("tern_scope_end", self.scope)
        return value

    def update(self):
        self.lib.tern_optim_step(self.optim, self.scope)
        self.raise_error()

    def step(self, x, y):
        loss = self.backward(x, y)
        self.update()
        return loss

    def loss_mean(self):
        return self.lib.tern_ddp_loss_mean(self.ddp)

    def entries(self):
        return [self.lib.tern_state_get(self.module, i) for i in range(self.lib.tern_state_count(self.module))]

    def read(self, tensor):
        tensor = ctypes.c_void_p(tensor)
        ndim = self.lib.tern_tensor_ndim(tensor)
        shape = tuple(self.lib.tern_tensor_shape(tensor)[:ndim])
        out = numpy.empty(shape, BY_NUMBER[self.lib.tern_tensor_dtype(tensor)])
        self.lib.check("tern_tensor_read", tensor, tern.pointer(out), ctypes.c_size_t(out.nbytes))
        return out

    def state(self):
        return {e.name.decode(): self.read(e.tensor) for e in self.entries()}

    def grads(self):
        found = {}
        for e in self.entries():
            grad = None if e.is_buffer else self.lib.tern_grad_get(ctypes.c_void_p(e.tensor))
            found[e.name.decode()] = None if grad is None else self.read(grad)
        return found

    def close(self):
        self.lib.tern_scope_free(self.scope)
        self.lib.tern_optim_free(self.optim)
        if self.ddp:
            self.lib.tern_ddp_free(self.ddp)
        self.lib.tern_module_free(self.module)
        self.lib.tern_device_close(self.device)
