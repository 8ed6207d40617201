"""Converts libtern's nested objects (tern_object) to Python values with torch tensors, and back.

    objects = Objects(lib)
    state = objects.take(lib.check("tern_optim_state_dict", optim, 0))    # copies, and frees the tern_object
    made = objects.make({"epoch": 3, "x": torch.ones(2)})                 # yours: objects.free(made)
"""
import ctypes

import torch

import tern

NONE, BOOL, INT, FLOAT, STRING, BYTES, LIST, TUPLE, DICT, TENSOR, RECORD = range(11)
DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.int16]


class Objects:
    def __init__(self, lib):
        self.lib = lib
        lib.returns(ctypes.c_void_p, "tern_object_to_string")  # a string may contain zeros

    def free(self, made):
        self.lib.tern_object_free(made)

    def take(self, pointer):
        pointer = ctypes.c_void_p(pointer)
        value = self.read(pointer)
        self.free(pointer)
        return value

    # ---- out ----

    def scalar(self, pointer, name, ctype):
        out = ctype()
        self.lib.check(f"tern_object_to_{name}", pointer, ctypes.byref(out))
        return out.value

    def items(self, pointer):
        for i in range(self.lib.tern_object_count(pointer)):
            yield self.read(ctypes.c_void_p(self.lib.tern_object_at(pointer, ctypes.c_int64(i))))

    def keys(self, pointer):
        for i in range(self.lib.tern_object_count(pointer)):
            yield self.read(ctypes.c_void_p(self.lib.tern_object_key(pointer, ctypes.c_int64(i))))

    def tensor(self, tensor):
        tensor = ctypes.c_void_p(tensor)
        shape = self.lib.tern_tensor_shape(tensor)[: self.lib.tern_tensor_ndim(tensor)]
        out = torch.empty(list(shape), dtype=DTYPES[self.lib.tern_tensor_dtype(tensor)])
        self.lib.check("tern_tensor_read", tensor, tern.pointer(out), ctypes.c_size_t(out.numel() * out.element_size()))
        return out

    def read(self, pointer):
        kind = self.lib.tern_object_kind_get(pointer)
        if kind == NONE:
            return None
        if kind == BOOL:
            return self.scalar(pointer, "bool", ctypes.c_bool)
        if kind == INT:
            return self.scalar(pointer, "int", ctypes.c_int64)
        if kind == FLOAT:
            return self.scalar(pointer, "float", ctypes.c_double)
        if kind == STRING:
            return ctypes.string_at(self.lib.tern_object_to_string(pointer), self.lib.tern_object_count(pointer)).decode()
        if kind == BYTES:
            return ctypes.string_at(self.lib.tern_object_to_bytes(pointer), self.lib.tern_object_count(pointer))
        if kind == TENSOR:
            return self.tensor(self.lib.tern_object_to_tensor(pointer))
        if kind == DICT:
            return dict(zip(self.keys(pointer), self.items(pointer)))
        return (list if kind == LIST else tuple)(self.items(pointer))

    # ---- in ----

    def made(self, name, *args):
        return ctypes.c_void_p(self.lib.check(f"tern_object_{name}", *args))

    def make_tensor(self, value):
        """A copy of a tensor with any strides and dtype."""
        value = value.detach().contiguous()
        shape = (ctypes.c_int64 * max(1, value.ndim))(*value.shape)
        wrapped = ctypes.c_void_p(
            self.lib.check("tern_tensor_wrap", tern.pointer(value), DTYPES.index(value.dtype), value.ndim, shape, None, None)
        )
        kept = ctypes.c_void_p(self.lib.check("tern_keep", wrapped))
        made = self.made("tensor", kept)
        self.lib.tern_tensor_free(kept)
        self.lib.tern_tensor_free(wrapped)
        return made

    def make(self, value):
        if value is None:
            return self.made("none")
        if isinstance(value, bool):
            return self.made("bool", ctypes.c_bool(value))
        if isinstance(value, int):
            return self.made("int", ctypes.c_int64(value))
        if isinstance(value, float):
            return self.made("float", ctypes.c_double(value))
        if isinstance(value, str):
            return self.made("string", value.encode())
        if isinstance(value, torch.Tensor):
            return self.make_tensor(value)
        if isinstance(value, dict):
            made = self.made("dict")
            for key, item in value.items():
                self.lib.check("tern_object_set_at", made, self.make(key), self.make(item))
            return made
        made = self.made("list" if isinstance(value, list) else "tuple")
        for item in value:
            self.lib.check("tern_object_append", made, self.make(item))
        return made
