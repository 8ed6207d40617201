"""tern_image for the Python tests: the structs, and loading and saving as numpy arrays."""
import ctypes

import numpy as np

import tern

SAMPLES = [np.uint8, np.uint16, np.float32]


class Image(ctypes.Structure):
    """tern_image."""

    _fields_ = [
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("channels", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("pages", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("reserved", ctypes.c_void_p * 4),
    ]


class ImageOpts(ctypes.Structure):
    """tern_image_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("channels", ctypes.c_int),
        ("indices", ctypes.c_bool),
        ("page", ctypes.c_int64),
        ("pixels_most", ctypes.c_int64),
        ("least", ctypes.c_int64 * 2),
    ]


class SaveOpts(ctypes.Structure):
    """tern_image_save_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("palette", ctypes.c_void_p), ("colours", ctypes.c_int)]


lib = tern.Library()
lib.returns(ImageOpts, "tern_image_defaults")
lib.returns(SaveOpts, "tern_image_save_defaults")


def array_of(image):
    """A copy: (height, width), or (height, width, channels)."""
    shape = (image.height, image.width) + ((image.channels,) if image.channels > 1 else ())
    bytes_ = int(np.prod(shape)) * np.dtype(SAMPLES[image.sample]).itemsize
    return np.frombuffer(ctypes.string_at(image.data, bytes_), SAMPLES[image.sample]).reshape(shape)


def load(path, probe=False, **options):
    """Returns the pixels, or the struct of a probe; and the number of pages."""
    opts = lib.tern_image_defaults()
    for name, value in options.items():
        setattr(opts, name, value)
    image = Image()
    try:
        lib.check("tern_image_probe" if probe else "tern_image_load", str(path).encode(), ctypes.byref(opts), ctypes.byref(image))
        return (image if probe else array_of(image)), image.pages
    finally:
        if not probe:
            lib.tern_image_free(ctypes.byref(image))


def save(path, array, palette=None):
    array = np.ascontiguousarray(array)
    image = Image(
        height=array.shape[0],
        width=array.shape[1],
        channels=array.shape[2] if array.ndim == 3 else 1,
        sample=SAMPLES.index(array.dtype.type),
        data=array.ctypes.data,
    )
    opts = lib.tern_image_save_defaults()
    if palette is not None:
        palette = np.ascontiguousarray(palette, np.uint8)
        opts.palette, opts.colours = palette.ctypes.data, len(palette)
    lib.check("tern_image_save", str(path).encode(), ctypes.byref(image), ctypes.byref(opts))
