"""tern_dataset for the Python tests: the struct, and a dataset over a numpy array."""
import ctypes

import tern


class Dataset(ctypes.Structure):
    """tern_dataset."""


GET = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Dataset),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(tern.Error),
)
Dataset._fields_ = [
    ("length", ctypes.c_int64),
    ("ndim", ctypes.c_int),
    ("shape", ctypes.c_int64 * 4),
    ("target_ndim", ctypes.c_int),
    ("target_shape", ctypes.c_int64 * 4),
    ("target_dtype", ctypes.c_int),
    ("classes", ctypes.c_int),
    ("get", GET),
    ("free", ctypes.c_void_p),
    ("open", ctypes.c_void_p),
    ("next", ctypes.c_void_p),
    ("close", ctypes.c_void_p),
    ("dtype", ctypes.c_int),
    ("reserved", ctypes.c_void_p * 3),
]


DTYPES = ["float32", "float64", "int64", "int32", "uint8", None, "float16", "bool", "int8", "int16"]  # tern_dtype's numbers


def over(samples, targets=None):
    """Sample i is samples[i], in f32, and its label i, or its map targets[i]. Keep the result while it is used."""

    def get(dataset, epoch, index, x, y, err):
        ctypes.memmove(x, samples[index].ctypes.data, samples[index].nbytes)
        if targets is None:
            ctypes.c_int64.from_address(y).value = index
        else:
            ctypes.memmove(y, targets[index].ctypes.data, targets[index].nbytes)
        return 0

    shape = (ctypes.c_int64 * 4)(*samples.shape[1:])
    dataset = Dataset(length=len(samples), ndim=samples.ndim - 1, shape=shape, get=GET(get))
    if targets is not None:
        dataset.target_ndim = targets.ndim - 1
        dataset.target_shape = (ctypes.c_int64 * 4)(*targets.shape[1:])
        dataset.target_dtype = DTYPES.index(str(targets.dtype))
    return dataset
