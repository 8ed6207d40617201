"""tern_save and tern_load on Python values with PyTorch tensors, and exact comparison."""
import ctypes

import torch

import tern
from objects import DTYPES, RECORD, Objects


class LoadOpts(ctypes.Structure):
    """tern_load_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("records", ctypes.c_bool), ("memory", ctypes.c_size_t), ("metadata", ctypes.c_bool)]


class Record:
    """An instance of a class of which the library knows only the name."""

    def __init__(self, name, args, state):
        self.name, self.args, self.state = name, args, state


class Files(Objects):
    def __init__(self):
        super().__init__(tern.Library())
        self.lib.returns(LoadOpts, "tern_load_defaults")

    def read(self, pointer):
        if self.lib.tern_object_kind_get(pointer) != RECORD:
            return super().read(pointer)
        parts = (self.lib.tern_object_record_args(pointer), self.lib.tern_object_record_state(pointer))
        return Record(self.lib.tern_object_record_name(pointer).decode(),
                      *(part and self.read(ctypes.c_void_p(part)) for part in parts))

    def make(self, value):
        if isinstance(value, bytes):
            return self.made("bytes", value, ctypes.c_size_t(len(value)))
        return super().make(value)

    def make_tensor(self, value):
        """A tensor over the same memory."""
        assert value.is_contiguous()
        shape = (ctypes.c_int64 * max(1, value.ndim))(*value.shape)
        spare = ctypes.c_double()
        memory = tern.pointer(value) if value.numel() else ctypes.pointer(spare)
        wrapped = ctypes.c_void_p(
            self.lib.check("tern_tensor_wrap", memory, DTYPES.index(value.dtype), value.ndim, shape, None, None))
        made = self.made("tensor", wrapped)
        self.lib.tern_tensor_free(wrapped)
        return made

    def save(self, path, value):
        made = self.make(value)
        try:
            self.lib.check("tern_save", path.encode(), made)
        finally:
            self.free(made)

    def load_object(self, path, records=False, memory=None):
        """Returns a tern_object *, which the caller frees."""
        opts = self.lib.tern_load_defaults()
        opts.records = records
        opts.memory = opts.memory if memory is None else memory
        return ctypes.c_void_p(self.lib.check("tern_load", path.encode(), ctypes.byref(opts)))

    def load(self, path, **options):
        return self.take(self.load_object(path, **options).value)

    def load_count(self, path, **options):
        """The number of loaded items."""
        made = self.load_object(path, **options)
        count = self.lib.tern_object_count(made)
        self.free(made)
        return count


def bits(tensor):
    flat = tensor.detach().contiguous().view(-1)
    return (flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy().tobytes()


def same(a, b, where="state"):
    """Asserts that both are exactly equal; lists, tuples and sets may stand for each other."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, (where, a, b)
        assert bits(a) == bits(b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), (where, list(a), list(b))
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert isinstance(b, (list, tuple)) and len(a) == len(b), (where, a, b)
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{i}]")
    else:
        assert type(a) is type(b) and (a == b or a != a and b != b), (where, a, b)
