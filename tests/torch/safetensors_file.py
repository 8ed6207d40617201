"""Reads and writes safetensors files with struct and json only, independently of libtern."""
import json
import struct

import torch

KINDS = {"I64": torch.int64, "F64": torch.float64, "F32": torch.float32, "I32": torch.int32, "BF16": torch.bfloat16, "F16": torch.float16,
         "U8": torch.uint8, "BOOL": torch.bool, "I8": torch.int8, "I16": torch.int16}


def raw(tensor):
    """The array's bytes, row by row; numpy has no bf16."""
    flat = tensor.contiguous().reshape(-1)
    return (flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy().tobytes()


def write(path, tensors, metadata=None):
    header, data = {"__metadata__": metadata} if metadata is not None else {}, b""
    for name, tensor in tensors.items():
        kind = next(kind for kind, dtype in KINDS.items() if dtype == tensor.dtype)
        end = len(data) + len(raw(tensor))
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), end]}
        data += raw(tensor)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """(name -> tensor, metadata)"""
    with open(path, "rb") as file:
        whole = file.read()
    (length,) = struct.unpack("<Q", whole[:8])
    assert length % 8 == 0
    header, data = json.loads(whole[8:8 + length]), whole[8 + length:]
    metadata, tensors, at = header.pop("__metadata__", None), {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == at
        at, dtype = end, KINDS[entry["dtype"]]
        piece = bytearray(data[begin:end])
        tensors[name] = (torch.frombuffer(piece, dtype=dtype) if piece else torch.zeros(0, dtype=dtype)).reshape(entry["shape"])
    assert at == len(data)
    return tensors, metadata
