#!/usr/bin/python3
"""Writes the first inputs for the fuzzers into fuzz/corpus/torch and fuzz/corpus/legacy: small files of PyTorch, one thing each."""
import collections
import os

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
