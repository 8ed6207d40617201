"""NumPy files: reading what numpy.save writes, writing what numpy.load reads, and invalid files."""
import pathlib
import struct
import tempfile
import warnings

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
    for dtype in KEPT + ["i1", "i2"]:
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
    written(good + b" " * (10001 - len(good)), bytes(8))
    expect(E_FORMAT, "at most 10000")
    written(good + b" " * (10000 - len(good)), bytes(8))
    assert (volumes.npy_load(path) == 0).all()


def spelled(header, data, version=1):
    """Writes a header as it is given; returns what numpy loads, or None."""
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + size + header + data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            return numpy.load(path)
    except Exception:
        return None


def expect_as_numpy(header, data, version=1):
    """The same array as numpy's, or an error where numpy has one. Returns whether there is an array."""
    wanted = spelled(header, data, version)
    try:
        got = volumes.npy_load(path)
    except tern.TernError as error:
        assert wanted is None, (header, version, str(error))
        assert error.code in (E_SHAPE, E_IO, E_FORMAT, E_UNSUPPORTED) and str(path) in str(error), str(error)
        return False
    assert wanted is not None, (header, version)
    assert got.shape == wanted.shape and (got == wanted).all(), (header, got.shape, wanted.shape)
    return True


def random_header(data):
    """A header as any program may write it: quotes, spaces, the order of the keys, trailing commas, longs."""
    pick = lambda *choices: choices[random.integers(len(choices))]
    space = lambda: pick(b"", b"", b" ", b"  ", b"\t", b"\n")
    number = lambda n: pick(b"%d", b"%d", b"%dL", b"%d L", b"+%d", b"%#x", b"%#o") % n
    quoted = lambda text: pick(b"'%s'", b'"%s"', b"u'%s'", b'U"%s"', b"r'%s'") % text
    shape = pick((len(data),), (2, len(data) // 2), (1, 2, len(data) // 2))
    join = lambda: space() + b"," + space()
    tuple_ = b"(" + space() + join().join(number(n) for n in shape)
    tuple_ += (join() if len(shape) == 1 else pick(b"", join())) + space() + b")"
    values = {b"descr": quoted(pick(b"u1", b"|u1", b"<u1", b"uint8", b"B", b"ubyte", b">B")),
              b"fortran_order": pick(b"True", b"False"), b"shape": tuple_}
    keys = [list(values)[i] for i in random.permutation(3)]
    entries = [quoted(key) + space() + b":" + space() + values[key] for key in keys]
    return pick(b"", b" ") + b"{" + space() + join().join(entries) + pick(b"", join()) + space() + b"}" + space() + b"\n"


def headers_of_other_programs():
    data = random.integers(0, 256, 12).astype("u1").tobytes()
    read = 0
    for version in [1, 2, 3] * 100:
        header = random_header(data)
        read += expect_as_numpy(header, data, version)
        at, other = random.integers(len(header)), random.integers(0, 256)
        changes = [header[:at] + header[at + 1:], header[:at] + bytes([other]) + header[at + 1:],
                   header[:at] + header[at:at + 1] + header[at:]]
        for changed in changes:  # most are wrong: what is compared is who refuses
            if spelled(changed, data, version) is None:
                expect_as_numpy(changed, data, version)
    assert read > 200


def what_numpy_refuses():
    good = b"{'descr': '|u1', 'fortran_order': False, 'shape': (40,), }"
    for old, new in [(b"(40,)", b"(40)"), (b"(40,)", b"(040,)"), (b"(40,)", b"(40,,)"), (b"(40,)", b"(,40)"), (b"(40,)", b"(4 10)"),
                     (b"(40,)", b"[40]"), (b"(40,)", b"(40.,)"), (b"(40,)", b"(40l,)"), (b"(40,)", b"(4_0_,)"), (b"(40,)", b"(0x,)"),
                     (b"False", b"0"), (b"False", b"None"), (b"False", b"'False'"), (b", }", b",, }"), (b"}", b"} {}"), (b"}", b"}\0"),
                     (b"}", b"}\0\0\0\0"), (b"{", b"\0{"), (b" 'shape'", b"\0'shape'"), (b" 'shape'", b"\v'shape'"),
                     (b"'shape'", b"b'shape'"), (b"'shape'", b"'shape\""), (b"'shape': ", b"'shape' "), (b"}", b", 'more': 1}")]:
        assert good.count(old) == 1 and not expect_as_numpy(good.replace(old, new), bytes(40)), new
    assert expect_as_numpy(good, bytes(40)) and expect_as_numpy(good + b"  \n", bytes(40))
    long = good.replace(b"40", b"40L")
    assert [expect_as_numpy(long, bytes(40), version) for version in (1, 2, 3)] == [True, True, False]
    path.write_bytes(b"\x93NUMPY\x01\x01" + struct.pack("<H", len(good)) + good + bytes(40))
    expect(E_FORMAT, "version 1 to 3")


def every_name_of_a_dtype():
    """All of numpy's names, and all letters, with every byte order, as numpy.dtype understands them."""
    letters = "bBhHiIlLqQpPefdg?fiubcV"
    short = [order + kind + size for order in ["", *"<>|="] for kind in letters for size in ["", *"12348", "16"]]
    named = [order + name for order in ["", *"<>|="] for name in numpy.sctypeDict if isinstance(name, str) and name[0].islower()]
    read = 0
    for name in {*short, *named, "f3", "x4", "", "<", "float33", "?1"}:
        data = random.integers(0, 120, 32).astype("u1").tobytes()
        try:
            dtype = numpy.dtype(name)
        except TypeError:
            dtype = None
        held = dtype is not None and dtype.str[1:] in ("f4", "f8", "f2", "i8", "i4", "u1", "b1", "i1", "i2", "u2")
        count = 32 // dtype.itemsize if held else 1
        header = b"{'descr': '%s', 'fortran_order': False, 'shape': (%d,)}" % (name.encode(), count)
        if not held:
            written(header, data)
            expect(E_UNSUPPORTED, "dtype")
            continue
        assert expect_as_numpy(header, data), name
        read += 1
    assert read > 100


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
             bad_headers_are_refused, headers_of_other_programs, what_numpy_refuses, every_name_of_a_dtype, absurd_shapes_ask_for_no_memory, what_cannot_be_written_leaves_nothing]:
    test()
    print(test.__name__)
