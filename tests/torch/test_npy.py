"""Arrays in NumPy's files: read as numpy.save writes them, written as numpy.load reads them, and files that are neither."""
import pathlib
import struct
import tempfile

import numpy
import tern
import volumes

E_SHAPE, E_IO, E_FORMAT, E_UNSUPPORTED = -2, -5, -6, -9
random = numpy.random.default_rng(7)
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name) / "a.npy"

KEPT = ["f4", "f8", "f2", "i8", "i4", "u1", "?"]
WIDENED = ["i1", "i2", "u2"]


def random_array(dtype, ndim):
    shape = random.integers(1, 7, ndim)
    if numpy.dtype(dtype).kind == "f":
        return random.standard_normal(shape).astype(dtype)
    bits = 8 * numpy.dtype(dtype).itemsize
    return random.integers(0, 2**min(bits, 60), shape).astype(dtype)


def reads_what_numpy_writes():
    for dtype in KEPT + WIDENED:
        for order in "<>":
            for ndim in range(1, 7):
                for layout in "CF":
                    array = numpy.asarray(random_array(dtype, ndim).astype(order + dtype), order=layout)
                    numpy.save(path, array)
                    got = volumes.npy_load(path)
                    assert got.dtype == (numpy.int32 if dtype in WIDENED else numpy.dtype(dtype)), (dtype, got.dtype)
                    assert got.shape == array.shape and (got == array).all(), (dtype, order, array.shape, layout)


def reads_all_versions():
    array = random_array("f4", 3)
    for version in [(1, 0), (2, 0), (3, 0)]:
        with open(path, "wb") as file:
            numpy.lib.format.write_array(file, array, version)
        assert (volumes.npy_load(path) == array).all()


def numpy_reads_what_is_written():
    for dtype in KEPT:
        for ndim in range(1, 7):
            array = numpy.ascontiguousarray(random_array(dtype, ndim))
            volumes.npy_save(path, array)
            got = numpy.load(path)
            assert got.dtype == array.dtype and (got == array).all()
            assert path.read_bytes().find(b"\n") % 64 == 63


def expect(code, text, name=path):
    try:
        volumes.npy_load(name)
    except tern.TernError as error:
        assert error.code == code and text in str(error) and str(name) in str(error), (code, text, str(error))
        return
    raise AssertionError(f"no error, expected {text}")


def written(header, data=b"", magic=b"\x93NUMPY\x01\x00"):
    path.write_bytes(magic + struct.pack("<H", len(header)) + header + data)


def bad_files_are_named():
    expect(E_IO, "No such file", path.with_name("missing.npy"))
    expect(E_IO, "regular file", path.parent)
    numpy.save(path, numpy.arange(1000.0))
    whole = path.read_bytes()
    for length in range(0, 140, 7):
        path.write_bytes(whole[:length])
        expect(E_IO, "is truncated")
    path.write_bytes(whole[:-1])
    expect(E_IO, "is truncated")
    path.write_bytes(whole + b"x")
    expect(E_FORMAT, "1 bytes follow the array")
    path.write_bytes(b"PK\x03\x04" + whole)
    expect(E_FORMAT, "not a .npy file")
    path.write_bytes(b"\x93NUMPY\x04" + whole[7:])
    expect(E_FORMAT, "version 1 to 3")


def bad_headers_are_refused():
    good = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
    written(good, bytes(8))
    assert (volumes.npy_load(path) == 0).all()
    for old, new in [(b"{", b"["), (b"'shape'", b"'shade'"), (b"False", b"Maybe"), (b"(2,)", b"2"), (b"(2,)", b"(-2,)"),
                     (b"'shape': (2,), ", b""), (b"(2,)", b"(2 x)"), (b", }", b"")]:
        written(good.replace(old, new), bytes(8))
        expect(E_FORMAT, "cannot be parsed")
    written(good.replace(b"(2,)", b"(2, 0)"), bytes(8))
    expect(E_SHAPE, "dimension 1 is 0")
    for dtype in [b"<c8", b"<U4", b"|O8", b"<f16", b"<u4", b"<u8", b"<i999999999999"]:
        written(good.replace(b"<f4", dtype), bytes(8))
        expect(E_UNSUPPORTED, "dtype")
    written(good.replace(b"'<f4'", b"[('a', '<f4')]"))
    expect(E_UNSUPPORTED, "expected one like")
    written(good.replace(b"(2,)", b"(1, 1, 1, 1, 1, 1, 1)"))
    expect(E_UNSUPPORTED, "more than 6 dimensions")
    written(b" " * 5000)
    expect(E_FORMAT, "at most 4096")


def absurd_shapes_ask_for_no_memory():
    for shape in [b"(1000000000000,)", b"(4294967296, 4294967296)", b"(99999999999999999999999,)", b"(3,)"]:
        written(b"{'descr': '<f4', 'fortran_order': True, 'shape': " + shape + b"}", bytes(8))
        expect(E_IO, "claims more data")


def what_cannot_be_written_leaves_nothing():
    array = numpy.zeros(3, "f4")
    for name, text in [("missing/a.npy", "cannot create"), ("", "")]:
        target = path.parent / name
        try:
            volumes.npy_save(target, array)
            raise AssertionError("no error")
        except tern.TernError as error:
            assert error.code == E_IO and text in str(error), str(error)
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.npy"]


for test in [reads_what_numpy_writes, reads_all_versions, numpy_reads_what_is_written, bad_files_are_named,
             bad_headers_are_refused, absurd_shapes_ask_for_no_memory, what_cannot_be_written_leaves_nothing]:
    test()
    print(test.__name__)
