"""Run by the Python that has the newest safetensors (scripts/peers.sh), in a folder of files. Without PyTorch, which takes seconds
to load: the package's core, on bytes.

    safetensors_peer.py write        writes 0.safetensors, 1.safetensors, 2.safetensors of what it makes up
    safetensors_peer.py write_others writes others.safetensors, of the dtypes that libtern does not have and some that it has
    safetensors_peer.py read FILE..  prints for each one JSON line: null, if it is refused, or {metadata, tensors: [[name, dtype, shape,
                                     sha256], ..]}
"""
import ctypes
import hashlib
import json
import random
import sys

from safetensors import TensorSpec, deserialize, safe_open, serialize_file

SIZES = {"I64": 8, "F64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "U8": 1, "BOOL": 1, "I8": 1, "I16": 2}
WORDS = {"I64": "int64", "F64": "float64", "F32": "float32", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "U8": "uint8", "BOOL": "bool",
         "I8": "int8", "I16": "int16"}


OTHER_SIZES = {"int8": 1, "int16": 2, "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1,
               "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float4_e2m1fn_x2": 1, "float32": 4, "uint8": 1}


def write_others(path):
    random.seed(5)
    tensors, buffers = {}, []
    for i in range(60):
        word = random.choice(list(OTHER_SIZES))
        shape = [random.randrange(1, 4) for _ in range(random.randrange(1, 9))]
        count = OTHER_SIZES[word]
        for size in shape:
            count *= size
        buffers.append(ctypes.create_string_buffer(bytes(random.randrange(256) for _ in range(count)), count + 1))
        tensors[f"{word}.{i}"] = TensorSpec(dtype=word, shape=shape, data_ptr=ctypes.addressof(buffers[-1]), data_len=count)
    serialize_file(tensors, path, {"format": "pt"})


def write(path, seed, metadata):
    random.seed(seed)
    tensors, buffers = {}, []
    for i in range(40):
        kind = list(SIZES)[i % len(SIZES)]
        shape = [random.randrange(5) for _ in range(random.randrange(7))]
        count = SIZES[kind]
        for size in shape:
            count *= size
        data = bytes(random.randrange(2 if kind == "BOOL" else 256) for _ in range(count))
        name = "".join(chr(random.randrange(1, 0x3000)) for _ in range(random.randrange(9))) + f"é\"\\\n{i}"
        buffers.append(ctypes.create_string_buffer(data, len(data) + 1))
        tensors[name] = TensorSpec(dtype=WORDS[kind], shape=shape, data_ptr=ctypes.addressof(buffers[-1]), data_len=len(data))
    serialize_file(tensors, path, metadata)


def told(path):
    try:
        with open(path, "rb") as file:
            entries = deserialize(file.read())
        with safe_open(path, "np") as file:
            metadata = file.metadata()
    except Exception:
        return None
    rows = sorted([name, e["dtype"], list(e["shape"]), hashlib.sha256(bytes(e["data"])).hexdigest()] for name, e in entries)
    return {"metadata": metadata, "tensors": rows}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        for seed in range(3):
            write(f"{seed}.safetensors", seed, [None, {}, {"format": "pt", "é\n\x01": "\"\\\u2028"}][seed])
    elif sys.argv[1] == "write_others":
        write_others("others.safetensors")
    else:
        for path in sys.argv[2:]:
            print(json.dumps(told(path)))
