"""tern_volume for the Python tests: the structs for ctypes, and volumes as numpy arrays."""
import ctypes

import numpy
import tern

DTYPES = {"float32": 0, "float64": 1, "int64": 2, "int32": 3, "uint8": 4, "float16": 6, "bool": 7, "int8": 8, "int16": 9}


class Volume(ctypes.Structure):
    """tern_volume."""

    _fields_ = [
        ("shape", ctypes.c_int64 * 4),
        ("values", ctypes.POINTER(ctypes.c_float)),
        ("spacing", ctypes.c_double * 3),
        ("affine", ctypes.c_double * 12),
        ("header", ctypes.c_uint8 * 348),
    ]

    def array(self):
        return numpy.ctypeslib.as_array(self.values, tuple(self.shape))

    def matrix(self):
        return numpy.array(self.affine).reshape(3, 4)


lib = tern.Library()
lib.returns(ctypes.POINTER(Volume), "tern_volume_load", "tern_volume_new", "tern_volume_crop")


def load(path):
    return lib.check("tern_volume_load", str(path).encode()).contents


def save(path, volume, dtype="float32"):
    lib.check("tern_volume_save", str(path).encode(), ctypes.byref(volume), DTYPES[dtype])


def free(volume):
    lib.tern_volume_free(ctypes.byref(volume))


def new(array):
    """A volume of a (C, D, H, W) array."""
    volume = lib.check("tern_volume_new", (ctypes.c_int64 * 4)(*array.shape)).contents
    volume.array()[:] = array
    return volume


def npy_load(path):
    tensor = ctypes.c_void_p(lib.check("tern_npy_load", str(path).encode()))
    ndim, shape = lib.tern_tensor_ndim(tensor), lib.tern_tensor_shape(tensor)
    names = {number: name for name, number in DTYPES.items()}
    out = numpy.empty(shape[:ndim], names[lib.tern_tensor_dtype(tensor)])
    lib.check("tern_tensor_read", tensor, tern.pointer(out), ctypes.c_size_t(out.nbytes))
    lib.tern_tensor_free(tensor)
    return out


def npy_save(path, array):
    shape = (ctypes.c_int64 * 6)(*array.shape)
    wrapped = lib.check("tern_tensor_wrap", tern.pointer(array), DTYPES[array.dtype.name], array.ndim, shape, None, None)
    lib.check("tern_npy_save", str(path).encode(), ctypes.c_void_p(wrapped))
    lib.tern_tensor_free(ctypes.c_void_p(wrapped))
