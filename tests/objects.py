"""Nested objects of libtern as Python's own, with PyTorch's tensors, both ways; tern_save and tern_load."""
import ctypes

import torch

import tern

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bfloat16, torch.float16, torch.bool]
NONE, BOOL, INT, FLOAT, STRING, BYTES, LIST, TUPLE, DICT, TENSOR, RECORD = range(11)
MAKERS = "none bool int float string bytes list tuple dict tensor".split()


class LoadOpts(ctypes.Structure):
    """tern_load_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("records", ctypes.c_bool), ("memory", ctypes.c_size_t)]


class Record:
    """An instance of a class that the library knows by name only."""

    def __init__(self, name, args, state):
        self.name, self.args, self.state = name, args, state


lib = tern.Library()
lib.returns(ctypes.c_void_p, "tern_load", "tern_object_at", "tern_object_key", "tern_object_to_tensor", "tern_object_to_bytes",
            "tern_object_to_string", "tern_object_record_args", "tern_object_record_state", "tern_tensor_wrap",
            *(f"tern_object_{name}" for name in MAKERS))
lib.returns(ctypes.c_char_p, "tern_object_record_name")
lib.returns(ctypes.c_int64, "tern_object_count", "tern_tensor_count")
lib.returns(ctypes.POINTER(ctypes.c_int64), "tern_tensor_shape")
lib.returns(LoadOpts, "tern_load_defaults")
p = ctypes.c_void_p


def tensor_to_python(tensor):
    count, ndim = lib.tern_tensor_count(tensor), lib.tern_tensor_ndim(tensor)
    dtype = DTYPES[lib.tern_tensor_dtype(tensor)]
    out = torch.empty(list(lib.tern_tensor_shape(tensor)[:ndim]), dtype=dtype)
    lib.check("tern_tensor_read", tensor, p(out.data_ptr()), ctypes.c_size_t(count * out.element_size()))
    return out


def number(kind, obj):
    value = {BOOL: ctypes.c_bool, INT: ctypes.c_int64, FLOAT: ctypes.c_double}[kind]()
    lib.check(f"tern_object_to_{MAKERS[kind]}", obj, ctypes.byref(value))
    return value.value


def to_python(obj):
    """What a const tern_object * holds."""
    obj = p(obj)
    kind, count = lib.tern_object_kind_get(obj), lib.tern_object_count(obj)
    if kind == NONE:
        return None
    if kind in (BOOL, INT, FLOAT):
        return number(kind, obj)
    if kind == STRING:
        return ctypes.string_at(lib.tern_object_to_string(obj), count).decode()
    if kind == BYTES:
        return ctypes.string_at(lib.tern_object_to_bytes(obj), count)
    if kind == TENSOR:
        return tensor_to_python(p(lib.tern_object_to_tensor(obj)))
    if kind == RECORD:
        parts = [part(obj) for part in (lib.tern_object_record_args, lib.tern_object_record_state)]
        return Record(lib.tern_object_record_name(obj).decode(), *(part and to_python(part) for part in parts))
    items = [to_python(lib.tern_object_at(obj, ctypes.c_int64(i))) for i in range(count)]
    if kind != DICT:
        return items if kind == LIST else tuple(items)
    return dict(zip([to_python(lib.tern_object_key(obj, ctypes.c_int64(i))) for i in range(count)], items))


def tensor_from_python(tensor):
    """Over the same memory; a tensor with gaps is made by a view of what it lies in, so here only whole ones."""
    assert tensor.is_contiguous()
    shape = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
    spare = ctypes.create_string_buffer(64)
    at = tensor.data_ptr() or (ctypes.addressof(spare) + 63) // 64 * 64
    wrapped = p(lib.check("tern_tensor_wrap", p(at), DTYPES.index(tensor.dtype), tensor.dim(), shape, None, None))
    made = lib.check("tern_object_tensor", wrapped)
    lib.tern_tensor_free(wrapped)
    return made


def from_python(value):
    """A new tern_object; tensors must live as long."""
    if value is None:
        return lib.check("tern_object_none")
    if isinstance(value, bool):
        return lib.check("tern_object_bool", ctypes.c_bool(value))
    if isinstance(value, int):
        return lib.check("tern_object_int", ctypes.c_int64(value))
    if isinstance(value, float):
        return lib.check("tern_object_float", ctypes.c_double(value))
    if isinstance(value, str):
        return lib.check("tern_object_string", value.encode())
    if isinstance(value, bytes):
        return lib.check("tern_object_bytes", value, ctypes.c_size_t(len(value)))
    if isinstance(value, torch.Tensor):
        return tensor_from_python(value)
    if isinstance(value, dict):
        made = p(lib.check("tern_object_dict"))
        for key, item in value.items():
            lib.check("tern_object_set_at", made, p(from_python(key)), p(from_python(item)))
    else:
        made = p(lib.check("tern_object_tuple" if isinstance(value, tuple) else "tern_object_list"))
        for item in value:
            lib.check("tern_object_append", made, p(from_python(item)))
    return made.value


def save(path, value):
    made = p(from_python(value))
    try:
        lib.check("tern_save", str(path).encode(), made)
    finally:
        lib.tern_object_free(made)


def load(path, records=False, memory=None):
    opts = lib.tern_load_defaults()
    opts.records = records
    opts.memory = opts.memory if memory is None else memory
    made = p(lib.check("tern_load", str(path).encode(), ctypes.byref(opts)))
    try:
        return to_python(made.value)
    finally:
        lib.tern_object_free(made)


def same(a, b, where="state"):
    """Asserts that both are equal to the bit, but for lists and tuples that stand for other sequences."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, (where, a, b)
        raw = [t.detach().contiguous().view(-1).numpy() if t.dtype != torch.bfloat16 else
               t.detach().contiguous().view(-1).view(torch.int16).numpy() for t in (a, b)]
        assert raw[0].tobytes() == raw[1].tobytes(), where
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
