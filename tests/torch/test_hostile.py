"""Malicious files that claim to be from torch.save: each is refused with its own error, or harmless."""
import io
import os
import pickle
import struct
import tempfile
import time
import zipfile

import torch

import tern
from files import Files, same

FILES = Files()
FOLDER = tempfile.TemporaryDirectory()
PATH = os.path.join(FOLDER.name, "stranger.pt")
IO, FORMAT, UNSUPPORTED, MEMORY = -5, -6, -9, -4
MB = 1 << 20


def write(data):
    with open(PATH, "wb") as file:
        file.write(data)


def read():
    with open(PATH, "rb") as file:
        return file.read()


def refused(code, part, path=PATH, **options):
    try:
        FILES.load(path, **options)
    except tern.TernError as error:
        assert error.code == code and part in str(error), (error.code, str(error), code, part)
        return
    raise AssertionError(f"it was loaded, expected: {part}")


# ---- parts ----

STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def archive(data_pkl, entries=(), version=b"3\n", method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in (("data.pkl", data_pkl), ("data/0", struct.pack("6f", *range(6))), ("version", version), *entries):
            if data is not None:
                file.writestr(f"archive/{name}", data)
    return out.getvalue()


def number(value):
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)[:8] + (b"\0" if value >= 0 else b"\xff") if abs(value) >= 2**63 else \
        b"\x8a\x08" + struct.pack("<q", value)


def sizes(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(offset=0, shape=(2, 3), stride=(3, 1), storage=STORAGE):
    return b"\x80\2" + REBUILD + b"(" + storage + number(offset) + sizes(shape) + sizes(stride) + b"\x89NtR."


def pickled(text, code, part, **options):
    write(archive(text))
    refused(code, part, **options)


def loaded(text):
    write(archive(text))
    return FILES.load(PATH)


# ---- the file ----

def test_no_such_files():
    write(b"")
    refused(FORMAT, "is empty")
    for data in (b"P", b"PK\3", b"hello world", b"\x80\2", b"\0" * 100, pickle.dumps([1]), b"\x7fELF" + b"\0" * 60):
        write(data)
        refused(FORMAT, "neither")
    refused(IO, "cannot open", os.path.join(FOLDER.name, "nothing"))
    refused(IO, "regular file", FOLDER.name)
    refused(IO, "regular file", "/dev/zero")
    fifo, loop = (os.path.join(FOLDER.name, name) for name in ("fifo", "loop"))
    os.mkfifo(fifo)
    refused(IO, "regular file", fifo)
    os.symlink(loop, loop)
    refused(IO, "cannot open", loop)


def variants():
    torch.save({"a": torch.arange(6.0), "b": (1, "text"), "c": torch.tensor([True])}, PATH)
    yield read()
    FILES.save(PATH, {"a": torch.arange(6.0), "b": (1, "text"), "c": torch.tensor([True])})
    yield read()
    torch.save({"a": torch.arange(6.0), "b": (1, "text"), "c": torch.tensor([True])}, PATH, _use_new_zipfile_serialization=False)
    yield read()


def test_cut_off_anywhere():
    for whole in variants():
        for length in sorted({*range(1, len(whole), 5), *range(len(whole) - 100, len(whole))}):
            write(whole[:length])
            refused(FORMAT, PATH)
        write(whole + b"\0")
        refused(FORMAT, PATH)


def test_every_bit_flipped():
    """The file is refused, or the changed bits have no meaning (a time stamp, padding): an archive never loads with
    another value. The older format has no checksums."""
    for number, whole in enumerate(variants()):
        write(whole)
        expected = FILES.load(PATH)
        refusals = 0
        for at in range(len(whole)):
            for bit in (at % 8, at * 5 % 8 ^ 1):
                changed = bytearray(whole)
                changed[at] ^= 1 << bit
                write(changed)
                try:
                    got = FILES.load(PATH)
                except tern.TernError:
                    refusals += 1
                    continue
                if number < 2:
                    same(expected, got)
        assert refusals > len(whole) / 4, (number, refusals, len(whole))


def test_every_entry_has_its_checksum():
    entries = (("byteorder", b"little"), ("data/1", b"nobody reads me"), (".data/serialization_id", b"123"))
    whole = archive(tensor(), entries)
    write(whole)
    FILES.load(PATH)
    with zipfile.ZipFile(PATH) as file:
        infos = file.infolist()
    assert len(infos) == 6
    for info in infos:
        begin = info.header_offset + 30 + len(info.filename)
        for at in (begin, begin + info.file_size - 1):
            changed = bytearray(whole)
            changed[at] ^= 0x10
            write(changed)
            refused(FORMAT, f'"{info.filename}" is damaged: its CRC-32 is')


def test_the_archive():
    write(archive(None))
    refused(FORMAT, "without data.pkl")
    write(archive(tensor(), version=None))
    refused(FORMAT, "no version")
    write(archive(tensor(), version=b"three"))
    refused(FORMAT, "no version")
    write(archive(tensor(), version=b"11\n"))
    refused(UNSUPPORTED, "format version is 11")
    write(archive(tensor(), version=b"1" * 16))
    refused(FORMAT, "expected a word")
    write(archive(tensor(), [("byteorder", b"big")]))
    refused(UNSUPPORTED, "big-endian")
    write(archive(tensor(), [("byteorder", b"middle")]))
    refused(FORMAT, "neither little nor big")
    write(archive(tensor(), method=zipfile.ZIP_DEFLATED))
    refused(UNSUPPORTED, "is compressed (method 8)")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("data.pkl", tensor())
    write(out.getvalue())
    refused(FORMAT, "not in a folder")


def patched(whole, magic, offset, form, *values):
    at = whole.rindex(magic) + offset
    size = struct.calcsize(form)
    return whole[:at] + struct.pack(form, *values) + whole[at + size:]


def test_the_directory():
    whole = archive(tensor())
    end, record, header = b"PK\5\6", b"PK\1\2", b"PK\3\4"
    for offset, form, value in ((12, "<I", len(whole)), (16, "<I", len(whole)), (10, "<H", 1000), (16, "<I", 2**32 - 2)):
        write(patched(whole, end, offset, form, value))
        refused(FORMAT, "does not fit")
    write(patched(whole, end, 20, "<H", 5))
    refused(FORMAT, "no end")
    write(patched(whole, end, 10, "<H", 2)[:-22] + patched(whole, end, 10, "<H", 2)[-22:])
    refused(FORMAT, "no version")
    write(patched(whole, record, 0, "<I", 0))
    refused(FORMAT, "is damaged")
    write(patched(whole, record, 28, "<H", 60000))
    refused(FORMAT, "is truncated")
    for offset, value in ((24, 1000), (20, 7), (42, 2**32 - 2)):
        write(patched(whole, record, offset, "<I", value))
        refused(FORMAT, "is not inside the file")
    write(patched(whole, record, 8, "<H", 1))
    refused(UNSUPPORTED, "is encrypted")
    write(patched(whole, header, 0, "<I", 0))
    refused(FORMAT, "is not at the offset that the zip directory has")
    write(patched(whole, header, 28, "<H", 60000))
    refused(FORMAT, "is not at the offset that the zip directory has")
    twice = archive(tensor(), [("data/1", b"x")]).replace(b"data/1", b"data/0")
    write(twice)
    refused(FORMAT, '"archive/data/0" occurs twice')
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 2**63, 1)
    write(patched(whole[:-22] + locator + whole[-22:], end, 10, "<H", 0xFFFF))
    refused(FORMAT, "points outside the file")
    write(patched(whole[:-22] + b"\0" * 56 + struct.pack("<4sIQI", b"PK\6\7", 0, 0, 1) + whole[-22:], end, 10, "<H", 0xFFFF))
    refused(FORMAT, "has no end")


# ---- the pickle ----

def test_code_is_refused():
    for module, name in (("os", "system"), ("posix", "system"), ("__builtin__", "eval"), ("builtins", "exec"), ("subprocess", "Popen"),
                         ("torch._utils", "_rebuild_wrapper_subclass"), ("torch.storage", "_load_from_bytes"), ("torch", "load")):
        call = f"c{module}\n{name}\n".encode() + b"X\x04\0\0\0true\x85R."
        pickled(b"\x80\2" + call, UNSUPPORTED, f"{module}.{name}")
        write(archive(b"\x80\2" + call))
        record = FILES.load(PATH, records=True)
        assert (record.name, record.args, record.state) == (f"{module}.{name}", ("true",), None)
    pickled(b"\x80\4\x8c\2os\x8c\6system\x93\x8c\4true\x85R.", UNSUPPORTED, "os.system")
    pickled(b"\x80\2ctorch\nFloatStorage\n)R.", FORMAT, "not a function")
    pickled(b"\x80\2K\1)R.", FORMAT, "not a function")
    pickled(b"\x80\2ccollections\nOrderedDict\nK\1R.", FORMAT, "expected a tuple")
    pickled(b"\x80\2ccollections\nOrderedDict\n}b.", UNSUPPORTED, "a class gets a state")
    pickled(b"\x80\2ccollections\nOrderedDict\n.", UNSUPPORTED, "collections.OrderedDict itself")
    pickled(b"\x80\2" + STORAGE + b".", UNSUPPORTED, "a storage without a tensor")
    for text in (b"cos\nsys tem\n.", b"cos\x1b\nsystem\n.", b"c" + b"a" * 600 + b"\n"):
        pickled(b"\x80\2" + text, FORMAT, "a name")


def test_the_machine():
    for text, part in ((b"", "ends where 1 bytes"), (b"\x80", "ends where 1 bytes"), (b"\x80\2", "ends where"), (b"\x80\2.", "0 objects"),
                       (b"\x80\2NN.", "2 objects"), (b"\x80\2N(.", "1 objects"), (b"\x80\2a.", "empty stack"), (b"\x80\2t.", "a mark that does not exist"),
                       (b"\x80\2(a.", "empty stack"), (b"\x80\2N(K\1a.", "empty stack"), (b"\x80\2NK\1a.", "to a none"), (b"\x80\2]NNs.", "to a list"),
                       (b"\x80\2}(Nu.", "a key has no item"), (b"\x80\2(Nd.", "a key has no item"), (b"\x80\2h\0.", "the memo has no number"),
                       (b"\x80\2Nq\5h\4.", "the memo has no number"), (b"\x80\2X\xff\xff\xff\xffabc.", "longer than the rest"),
                       (b"\x80\2\x8d" + b"\xff" * 8 + b".", "longer than the rest"), (b"\x80\2X\2\0\0\0\xc3\x28.", "not UTF-8"),
                       (b"\x80\2X\3\0\0\0\xed\xa0\x80.", "not UTF-8"), (b"\x80\2I5\n.", "opcode 0x49"), (b"\x80\2\xff.", "opcode 0xff"),
                       (b"\x80\2Nr\xff\xff\xff\xff.", "is too large"), (b"\x80\2NQ.", "is not a tuple"), (b"\x80\2)Q.", "does not name a storage"),
                       (b"\x80\4\x8c\0\x8c\1a\x93.", "a name is not valid")):
        pickled(text, FORMAT, part)
    pickled(b"\x80\6N.", UNSUPPORTED, "protocol is 6")
    pickled(b"\x80\2\x8a\x09" + b"\1" * 9 + b".", UNSUPPORTED, "an int needs more than 64 bits")
    pickled(b"\x80\2})Ns.", UNSUPPORTED, "of kind tuple, which tern does not support")
    assert loaded(b"\x80\2}(X\0\0\0\0NX\5\0\0\0\0/../K\1X\4\0\0\0\n\x1b[2K\2u.") == {"": None, "\0/../": 1, "\n\x1b[2": 2}
    assert loaded(b"\x80\2X" + struct.pack("<I", MB) + b"n" * MB + b".") == "n" * MB


def test_tensors():
    same(torch.arange(6.0).reshape(2, 3), loaded(tensor()))
    same(torch.tensor(5.0), loaded(tensor(5, (), ())))
    same(torch.zeros(0, 7), loaded(tensor(6, (0, 7), (7, 1))))
    same(torch.zeros(0), loaded(tensor(2**62, (0,), (1,))))  # at positions where no part begins
    beyond = "exceeds its storage of 6 elements"
    for offset, shape, stride in ((6, (), ()), (1, (2, 3), (3, 1)), (0, (7,), (1,)), (0, (2,), (6,)), (2**62, (1,), (1,)), (0, (2,), (2**62,)),
                                  (2**62, (3,), (2**62,))):
        pickled(tensor(offset, shape, stride), FORMAT, beyond)
    for wrong in (tensor(-1), tensor(0, (-1,), (1,)), tensor(0, (2,), (-1,)), tensor(0, (2, 3), (1,)), tensor(0, (2,), (1,), b"N")):
        pickled(wrong, FORMAT, "arguments that PyTorch does not use")
    for shape in ((2**32, 2**32), (2**62,), (0, 2**40, 2**40)):
        pickled(tensor(0, shape, (0,) * len(shape)), FORMAT, "too many elements")
    pickled(tensor(0, (2**40,), (0,)), UNSUPPORTED, "an expanded tensor is larger than the file")
    pickled(tensor(0, (1,) * 1000, (1,) * 1000), UNSUPPORTED, "1000 dimensions")
    long = b"\x80\2" + REBUILD + b"q\1(K\1" + b"2" * 99999 + b"tq\2" + STORAGE.replace(b"Float", b"Char").replace(b"K\x06tQ", b"K\x18tQ") + b"q\3("
    begin = time.process_time()
    pickled(long + b"h\1(h\3K\0h\2h\2\x89NtR" * 20000 + b"t.", FORMAT, "4 objects on the stack")
    assert time.process_time() - begin < 10, "one long shape of many tensors"
    pickled(tensor(0, (2**64,), (1,)), FORMAT, "arguments that PyTorch does not use")


def test_storages():
    for old, new in ((b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0"), (b"ctorch\nFloat", b"ctorch.cuda\nFloat"), (b"tQ", b"NtQ")):
        same(torch.arange(6.0).reshape(2, 3), loaded(tensor(storage=STORAGE.replace(old, new))))
    for old, new, code, part in ((b"K\x06tQ", b"K\x07tQ", FORMAT, "has 24 bytes, expected 28"), (b"X\x01\0\0\x000", b"X\x01\0\0\x009", FORMAT, "data/9"),
                                 (b"K\x06tQ", b"J\xff\xff\xff\xfftQ", FORMAT, "does not name a storage"), (b"K\x06tQ", number(2**62) + b"tQ", FORMAT, "a storage has"),
                                 (b"X\x01\0\0\x000", b"K\0", FORMAT, "does not name a storage"), (b"Float", b"QInt8", FORMAT, "has 24 bytes, expected 6"),
                                 (b"FloatStorage", b"Size", FORMAT, "torch.Size"), (b"X\x01\0\0\x000", b"X\x0a\0\0\x00../version", FORMAT, "data/../version")):
        pickled(tensor(storage=STORAGE.replace(old, new)), code, part)
    same_entry = STORAGE.replace(b"X\x01\0\0\x000", b"X\x03\0\0\x000\0x")
    pickled(b"\x80\2(" + tensor(storage=same_entry)[2:-1] * 100 + b"t.", FORMAT, "does not name a storage")
    long_name = b"k" * 251
    for end in (b"", b"1"):
        write(archive(tensor(storage=STORAGE.replace(b"X\x01\0\0\x000", b"X" + struct.pack("<I", 250 + len(end)) + long_name[:250] + end)),
                      [("data/" + "k" * 250, struct.pack("6f", *range(6)))]))
        if end:
            refused(FORMAT, "has -1 bytes")
        else:
            same(torch.arange(6.0).reshape(2, 3), FILES.load(PATH))
    two = tensor()[:-1] + tensor(storage=STORAGE.replace(b"Float", b"Int"))[2:-1] + b"\x86."
    pickled(two, FORMAT, "24 bytes of i32 here, but had 24 of f32 before")
    bools = STORAGE.replace(b"Float", b"Bool").replace(b"K\x06tQ", b"K\x18tQ")
    pickled(tensor(0, (24,), (1,), bools), FORMAT, "a bool is")


def test_bombs():
    """Each is a file of at most 4 MB."""
    deep = b"\x80\2" + b"]" * 100000 + b"a" * 99999 + b"."
    pickled(deep, UNSUPPORTED, "nested more than 1000 deep")
    pickled(b"\x80\2]q\0h\0a.", UNSUPPORTED, "or contain themselves")
    pickled(b"\x80\2]q\0(h\0h\0h\0e.", UNSUPPORTED, "or contain themselves")
    pickled(b"\x80\2}q\0X\1\0\0\0ah\0s.", UNSUPPORTED, "or contain themselves")
    assert loaded(b"\x80\2]q\0h\0a0N.") is None, "a circle that the result does not hold"
    laughs = b"\x80\2]q\0" + b"".join(b"]q%c(%se" % (i, b"h%c" % (i - 1) * 10) for i in range(1, 40)) + b"."
    pickled(laughs[:-1] + b"\x91.", FORMAT, "a mark")
    pickled(b"\x80\2(" + laughs[2:-1] + b"l.", UNSUPPORTED, "uses the same objects in millions of places")
    allowed = "need more memory than its size"
    pickled(b"\x80\2N" + b"2" * 3 * MB + b".", MEMORY, allowed)
    pickled(b"\x80\2" + b"(" * 3 * MB + b".", MEMORY, allowed)
    pickled(b"\x80\2(" + b"]" * MB + b"t.", MEMORY, allowed)
    pickled(b"\x80\2(" + b"K\0" * 2 * MB + b"t.", MEMORY, allowed)
    pickled(b"\x80\2Nr\xff\xff\xff\x7f.", MEMORY, allowed)
    pickled(b"\x80\2(" + b"M\0\1" * MB + b"l.", MEMORY, allowed)
    pickled(b"\x80\2}(" + b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(200000)) + b"u.", MEMORY, allowed)
    write(archive(b"\x80\2(" + b"]" * MB + b"t."))
    assert FILES.load_count(PATH, memory=300 * MB) == MB, "what is allowed is loaded"


def test_large_and_linear():
    """A million keys; looking one up does not scan them all."""
    count = 1000000
    keys = b"".join(b"X\x07\0\0\0%07dN" % i for i in range(count))
    write(archive(b"\x80\2}(" + keys + b"u."))
    assert FILES.load_count(PATH, memory=500 * MB) == count


def test_entries_of_the_same_bytes():
    """A file cannot expand beyond its size by naming the same part many times."""
    names = [b"%d" % i for i in range(10, 20)]
    place = b"K\0" + sizes((MB,)) + sizes((1,)) + b"\x89NtR"
    storages = (STORAGE.replace(b"X\x01\0\0\x000", b"X\x02\0\0\0" + name).replace(b"K\x06tQ", number(MB) + b"tQ") for name in names)
    whole = archive(b"\x80\2(" + b"".join(REBUILD + b"(" + storage + place for storage in storages) + b"t.", [("data/10", b"\0" * 4 * MB)])
    begin, last = whole.index(b"PK\1\2"), whole.rindex(b"PK\1\2")
    records = whole[begin:-22] + b"".join(whole[last:-22].replace(b"data/10", b"data/" + name) for name in names[1:])
    count = 3 + len(names)
    write(whole[:begin] + records + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(records), begin, 0))
    refused(MEMORY, "need more memory than its size")
    assert FILES.load_count(PATH, memory=40 * MB) == 10


# ---- the older format ----

def legacy(value=None, version=1001, little=True, keys=None, storages=None, text=None):
    out = [pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(version, 2), pickle.dumps({"little_endian": little}, 2)]
    out.append(text if text is not None else pickle.dumps(value, 2))
    out.append(pickle.dumps(keys or [], 2))
    return b"".join(out) + (storages or b"")


def test_the_older_format():
    data = struct.pack("<q6f", 6, *range(6))
    write(legacy(text=tensor(), keys=["0"], storages=data))
    same(torch.arange(6.0).reshape(2, 3), FILES.load(PATH))
    six = tensor(storage=STORAGE.replace(b"tQ", b"NtQ"))
    write(legacy(text=six, keys=["0"], storages=data))
    same(torch.arange(6.0).reshape(2, 3), FILES.load(PATH))
    for code, part, options in ((UNSUPPORTED, "version 1002", {"version": 1002}), (UNSUPPORTED, "big-endian", {"little": False}),
                                (FORMAT, "byte order", {"little": "yes"}), (FORMAT, "lists 1 storages", {"keys": ["0"], "text": b"\x80\2N."}),
                                (FORMAT, "lists 0 storages", {}), (FORMAT, "belongs to no tensor", {"keys": ["1"]}), (FORMAT, "belongs to no tensor", {"keys": [1]}),
                                (FORMAT, "is truncated", {"keys": ["0"], "storages": data[:-1]}), (FORMAT, "is truncated", {"keys": ["0"], "storages": data[:5]}),
                                (FORMAT, "does not have the number of elements", {"keys": ["0"], "storages": struct.pack("<q", 7) + data[8:]}),
                                (FORMAT, "4 bytes after the last storage", {"keys": ["0"], "storages": data + b"abcd"}),
                                (MEMORY, "need more memory", {"text": tensor(storage=STORAGE.replace(b"K\x06tQ", number(2**40) + b"tQ"))}),
                                (UNSUPPORTED, "os.system", {"text": b"\x80\2cos\nsystem\n."}),
                                (UNSUPPORTED, "a part of another", {"text": tensor(storage=STORAGE.replace(b"tQ", b")tQ"))})):
        write(legacy(**{"text": tensor(), **options}))
        refused(code, part)
    two = tensor()[:-1] + tensor(storage=STORAGE.replace(b"X\x01\0\0\x000", b"X\x01\0\0\x001"))[2:-1] + b"\x86."
    write(legacy(text=two, keys=["0", "0"], storages=data + data))
    refused(FORMAT, "occurs twice")


for name, test in list(globals().items()):
    if name.startswith("test_"):
        begin = time.monotonic()
        test()
        print("ok", name, f"{time.monotonic() - begin:.2f} s", flush=True)
