#!/usr/bin/python3
"""Writes the initial inputs of the fuzzers into fuzz/corpus: small files by PyTorch and Pillow and in safetensors' format, each with one feature."""
import collections
import os
import struct

import numpy as np
import PIL.Image
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.tensor(3))


def seeds():
    base = torch.arange(6.0).reshape(2, 3)
    yield "none", None
    yield "numbers", [1, -1, 300, 70000, 2**40, 0.5, True, False]
    yield "texts", {"a": "é", b"b": bytearray(b"c"), 3: ("d", b"\xff")}
    yield "tensor", base
    yield "strides", [base.t(), base[:, 1:], base[0, 0].expand(3), base[1]]
    yield "tied", {"a": base, "b": base}
    yield "dtypes", [torch.zeros(2).to(dtype) for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.int64)]
    yield "empty", [torch.zeros(0, 2), torch.tensor(1)]
    yield "ordered", collections.OrderedDict(a=collections.OrderedDict(b=torch.nn.Parameter(base)))
    yield "others", [torch.Size([1]), {2}, torch.device("cuda", 0), torch.float32, collections.defaultdict(dict), collections.Counter("a")]
    yield "module", Net()


for name, value in seeds():
    torch.save(value, os.path.join(HERE, "corpus/torch", name))
    torch.save(value, os.path.join(HERE, "corpus/legacy", name), _use_new_zipfile_serialization=False)
torch.save([base for base in (torch.ones(2), "a", {1: b"b"})], os.path.join(HERE, "corpus/torch/protocol4"), pickle_protocol=4)


def entry(name, kind, shape, begin, end):
    return '"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (name, kind, shape, begin, end)


def safetensors():
    """Yields (name, header, data)."""
    sizes = {"I64": 8, "F64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "U8": 1, "BOOL": 1}
    entries, at = [], 0
    for i, (kind, size) in enumerate(sizes.items()):
        entries.append(entry(kind.lower(), kind, [i % 3, 1], at, at + i % 3 * size))
        at += i % 3 * size
    yield "empty", "{}", b""
    yield "metadata", '{"__metadata__":{"format":"pt","x":"\\u00e9\\n"}}', b""
    yield "dtypes", "{%s}" % ",".join(entries), b"\1" * at
    yield "scalar", "{%s}   " % entry("a", "F64", [], 0, 8), b"12345678"
    yield "unsorted", "{%s,%s}" % (entry("b", "U8", [2], 2, 4), entry("a", "U8", [2], 0, 2)), b"1234"
    yield "escapes", '{"\\ud83d\\ude00\\u0000\\"\\/":{"x":[{"y":[-1.5e+3,true,null,""]}],"dtype":"\\u00558","shape":[1],"data_offsets":[0,1]}}', b"1"
    yield "overlap", "{%s,%s}" % (entry("a", "U8", [3], 0, 3), entry("b", "U8", [3], 1, 4)), b"1234"
    yield "hole", "{%s}" % entry("a", "U8", [1], 1, 2), b"12"
    yield "overflow", "{%s}" % entry("a", "U8", [2**32, 2**32], 0, 1), b"1"
    yield "twice", "{%s,%s}" % (entry("a", "U8", [0], 0, 0), entry("a", "U8", [0], 0, 0)), b""
    yield "nested", '{"a":{"x":' + "[" * 130, b""
    yield "array", "[]", b""


for name, header, data in safetensors():
    with open(os.path.join(HERE, "corpus/safetensors", name), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode() + data)


def images():
    """Yields (name, format, image, options)."""
    rng = np.random.default_rng(0)
    bytes_of = lambda *shape: rng.integers(0, 256, shape).astype(np.uint8)
    colours, grey, inks = PIL.Image.fromarray(bytes_of(9, 17, 3)), PIL.Image.fromarray(bytes_of(9, 17)), PIL.Image.fromarray(bytes_of(9, 17, 4), "CMYK")
    alpha, deep = PIL.Image.fromarray(bytes_of(5, 6, 4)), PIL.Image.fromarray(rng.integers(0, 65536, (5, 6)).astype(np.uint16))
    indices = PIL.Image.fromarray(bytes_of(5, 6) % 4, "P")
    indices.putpalette(bytes_of(12).tobytes())
    for name, picture, options in (("colours", colours, {}), ("grey", grey, {}), ("inks", inks, {}), ("progressive", colours, {"progressive": True})):
        yield "jpeg_" + name, "JPEG", picture, {"quality": 30, **options}
    for name, picture in (("colours", colours), ("grey", grey), ("alpha", alpha), ("deep", deep), ("indices", indices)):
        yield "png_" + name, "PNG", picture, {"bits": 2} if name == "indices" else {}
    for name, picture, options in (
        ("colours", colours, {}),
        ("deep", deep, {}),
        ("floats", PIL.Image.fromarray(rng.random((4, 5)).astype("f")), {}),
        ("indices", indices, {}),
        ("lzw", colours, {"compression": "tiff_lzw"}),
        ("deflate", deep, {"compression": "tiff_adobe_deflate"}),
        ("bits", PIL.Image.fromarray(bytes_of(5, 6) > 99), {"compression": "group4"}),
        ("jpeg", colours, {"compression": "jpeg"}),
        ("stack", grey, {"save_all": True, "append_images": [grey]}),
    ):
        yield "tiff_" + name, "TIFF", picture, options


for name, kind, picture, options in images():
    picture.save(os.path.join(HERE, "corpus/image", name), kind, **options)


def string(text):
    return struct.pack("<Q", len(text)) + text


def keys(*names):
    return struct.pack("<Q", len(names)) + b"".join(map(string, names))


def number(value):
    return struct.pack("<q", value)


def stores():
    """Yields (name, bytes): queries of PyTorch 2 and PyTorch 1, answers after their code, and records of a file store."""
    yield "values", b"\1" + string(b"/k") + string(b"v") + b"\2" + string(b"/k") + string(b"v") + string(b"w") + b"\3" + string(b"/k") + b"\x08" + string(b"/k")
    yield "counter", (b"\4" + string(b"/n") + number(5)) * 2 + b"\7"
    yield "several", b"\5" + keys(b"/a", b"/b") + b"\x0b" + struct.pack("<Q", 2) + string(b"/a") + string(b"1") + string(b"/b") + string(b"2") + b"\x0a" + keys(b"/a", b"/b")
    yield "waits", b"\6" + keys(b"/a") + b"\x0c" + b"\x12" + string(b"/b") + number(1) + b"\x40" + string(b"/c") + b"\x0d" + b"1234"
    yield "queue", b"\x0e" + string(b"/q") + string(b"v") + b"\x10" + string(b"/q") + b"\x0f" + string(b"/q") + b"\x11\x09" + string(b"/p") + string(b"x")
    yield "torch1", b"\0" + string(b"/k") + string(b"v") + b"\1" + string(b"/k") + string(b"v") + string(b"w") + b"\3" + string(b"/n") + number(-1) + b"\6\x08" + string(b"/k")
    yield "answers", b"\x0a" + string(b"1") + string(b"") + string(b"333")
    yield "popped", b"\x0f" + number(2) + string(b"value")
    yield "records", b"".join(struct.pack("<I", len(part)) + part for part in (b"refcount/", b"1", b"/k", b"v", b"-/k", b"", b"/n", b"17"))


os.makedirs(os.path.join(HERE, "corpus/nodelist"), exist_ok=True)
for i, text in enumerate(("n[001-003,10],login", "rack[1-2]n[07-09]-ib", "vm", "4(x2),1", "1,2,3", "n[1-", "2(x0)")):
    with open(os.path.join(HERE, f"corpus/nodelist/{i}"), "w") as file:
        file.write(text)
os.makedirs(os.path.join(HERE, "corpus/store"), exist_ok=True)
for name, data in stores():
    with open(os.path.join(HERE, "corpus/store", name), "wb") as file:
        file.write(data)
