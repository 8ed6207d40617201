"""torch.save files in both directions: libtern reads what PyTorch writes, PyTorch reads what libtern writes, with
equal bits."""
import collections
import os
import random
import tempfile

import numpy
import torch

from files import Files, same
from objects import DTYPES
import tern

FILES = Files()
FOLDER = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(FOLDER.name, name)


def values(shape, dtype):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 200, shape).to(dtype)


def leaf():
    text = "".join(random.choice("ab é€😀\n") for _ in range(random.randrange(6)))
    numbers = (0, -1, 255, 256, 65536, 2**31 - 1, 2**31, -2**31, 2**62, -2**63, 2**63 - 1)
    return random.choice((None, True, False, text, random.random(), float("inf"), float("nan"), -0.0, random.choice(numbers)))


def tensor():
    shape = [random.randrange(5) for _ in range(random.randrange(5))]
    return values(shape, random.choice(DTYPES))


def nested(depth):
    """An object that both libraries support."""
    kind = random.randrange(6) if depth else 5
    count = random.randrange(4)
    if kind == 0:
        return [nested(depth - 1) for _ in range(count)]
    if kind == 1:
        return tuple(nested(depth - 1) for _ in range(count))
    if kind < 4:
        keys = [random.choice((random.randrange(-5, 1000), f"schlüssel.{i}", 0.5 + i)) for i in range(count)]
        return {key: nested(depth - 1) for key in keys}
    return tensor() if kind == 4 else leaf()


def test_any_object_both_ways():
    for seed in range(60):
        random.seed(seed)
        torch.manual_seed(seed)
        state = [nested(5) for _ in range(8)]
        FILES.save(path("ours.pt"), state)
        same(state, torch.load(path("ours.pt")))
        same(state, FILES.load(path("ours.pt")))
        for zipped in (True, False):
            for protocol in (2, 4):
                torch.save(state, path("theirs.pt"), pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
                same(state, FILES.load(path("theirs.pt")))


def test_weights_only_takes_ours():
    """In this version weights_only accepts no floats next to tensors."""
    state = {"epoch": 3, "model": {f"layer.{i}": values((3, 4), dtype) for i, dtype in enumerate(DTYPES[:4])}, "größe": (1, None, True)}
    FILES.save(path("ours.pt"), state)
    same(state, torch.load(path("ours.pt"), weights_only=True))


def strided():
    base = torch.arange(120.0).reshape(2, 3, 4, 5)
    yield base.permute(3, 1, 0, 2)
    yield base[:, 1:, ::2, 3]
    yield base[1].expand(3, 4, 5)
    yield base.t() if base.dim() == 2 else base[0, 0].t()
    yield base[0, 0, 0, 0].expand(4, 2)
    yield base.to(torch.bfloat16)[:, 2]
    yield base[1:1]
    yield torch.zeros(3, 0)[1:]  # it starts after the end of its storage
    yield torch.nn.Parameter(base[0])


def test_theirs_of_any_strides():
    state = list(strided())
    for zipped in (True, False):
        torch.save(state, path("theirs.pt"), _use_new_zipfile_serialization=zipped)
        same(state, FILES.load(path("theirs.pt")))


def test_what_python_has_beside():
    state = {"ordered": collections.OrderedDict([("a", 1), ("b", [2])]), "size": torch.Size([2, 3]), "set": {4}, "device": torch.device("cuda", 1),
             "dtype": torch.float32, "bytes": b"a\0\xff", "array": bytearray(b"\x80"), "counter": collections.Counter(a=2), "cpu": torch.device("cpu"),
             "default": collections.defaultdict(dict, {"x": {}})}
    expected = {"ordered": {"a": 1, "b": [2]}, "size": (2, 3), "set": [4], "device": "cuda:1", "dtype": "torch.float32", "bytes": b"a\0\xff",
                "array": b"\x80", "counter": {"a": 2}, "cpu": "cpu", "default": {"x": {}}}
    for zipped in (True, False):
        for protocol in (2, 3, 4, 5):
            torch.save(state, path("theirs.pt"), pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
            same(expected, FILES.load(path("theirs.pt")))


def test_tensors_with_attributes():
    plain, parameter = torch.arange(3.0), torch.nn.Parameter(torch.ones(2))
    plain.mark, parameter.mark = "a", {"b": 1}
    state = {"plain": plain, "parameter": parameter}
    for zipped in (True, False):
        torch.save(state, path("theirs.pt"), _use_new_zipfile_serialization=zipped)
        same(state, FILES.load(path("theirs.pt")))


class Old:
    """What PyTorch before 1.9 wrote for a tensor of a class of its own."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        function, args = self.tensor.__reduce_ex__(2)
        return torch._tensor._rebuild_from_type, (function, torch.nn.Parameter, args, {"mark": "a"})


def test_tensors_of_a_class_as_once():
    for tensor in (torch.arange(3.0), torch.zeros(0, 2, dtype=torch.int64)):
        torch.save([Old(tensor)], path("theirs.pt"))
        same([tensor], FILES.load(path("theirs.pt")))


def test_numpy_s_scalars():
    values = [numpy.float64(0.1), numpy.float32(0.5), numpy.int64(-2**63), numpy.int32(-5), numpy.int16(-1), numpy.int8(-128), numpy.uint8(255), numpy.uint32(2**32 - 1),
              numpy.bool_(True)]
    for zipped in (True, False):
        for protocol in (2, 4):
            torch.save(values, path("theirs.pt"), pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
            same([value.item() for value in values], FILES.load(path("theirs.pt")))
    for value, text in ((numpy.complex64(1), "type c8"), (numpy.uint64(1), "type u8"), (numpy.array([1.0]), "core.multiarray._reconstruct"),
                        (numpy.dtype(">f8"), "big-endian")):
        torch.save(value, path("theirs.pt"))
        refused(-9, text)


def network():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Sequential(torch.nn.Linear(4, 2)))


def test_a_model_and_its_optimizer():
    net = network()
    optim = torch.optim.Adam(net.parameters())
    sum(p.sum() for p in net.parameters()).backward()
    optim.step()
    state = {"model": net.state_dict(), "optimizer": optim.state_dict(), "epoch": 1}
    torch.save(state, path("theirs.pt"))
    ours = FILES.load(path("theirs.pt"))
    same(state, ours)
    FILES.save(path("ours.pt"), ours)
    back = torch.load(path("ours.pt"))
    network().load_state_dict(back["model"], strict=True)
    torch.optim.Adam(network().parameters()).load_state_dict(back["optimizer"])
    same(state, back)


def refused(code, *parts, records=False):
    try:
        FILES.load(path("theirs.pt"), records=records)
    except tern.TernError as error:
        assert error.code == code and all(part in str(error) for part in parts), error
        return
    raise AssertionError("it was loaded")


def test_a_whole_module():
    net = network()
    for zipped in (True, False):
        torch.save(net, path("theirs.pt"), _use_new_zipfile_serialization=zipped)
        refused(-9, "torch.nn.modules.container.Sequential", "tern convert --records IN OUT")
        got = FILES.load(path("theirs.pt"), records=True)
        assert got.name == "torch.nn.modules.container.Sequential" and got.args == ()
        conv = got.state["_modules"]["0"]
        assert conv.name == "torch.nn.modules.conv.Conv2d" and conv.state["kernel_size"] == (3, 3)
        same(net[0].weight, conv.state["_parameters"]["weight"])
        same(net[1].running_var, got.state["_modules"]["1"].state["_buffers"]["running_var"])


def test_dtypes_that_tern_has_not():
    for dtype, storage in ((torch.int8, "CharStorage"), (torch.int16, "ShortStorage"), (torch.complex64, "ComplexFloatStorage")):
        for zipped in (True, False):
            torch.save({"a": torch.zeros(3, dtype=dtype)}, path("theirs.pt"), _use_new_zipfile_serialization=zipped)
            refused(-9, storage)


def test_other_things_that_tern_has_not():
    class_value = {"a": collections.OrderedDict}
    for value, text in ((2**70, "an int has 9 bytes"), ({(1, 2): 3}, "of kind tuple"), (class_value, "collections.OrderedDict"),
                        (torch.zeros((1,) * 7), "7 dimensions"), (torch.zeros(2, 2).to_sparse(), "_rebuild_sparse_tensor"),
                        (print, "__builtin__.print"), (1j, "__builtin__.complex"), (torch.zeros(2).storage(), "without a tensor")):
        torch.save(value, path("theirs.pt"))
        refused(-9, text)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path("theirs.pt"))
    refused(-9, "TorchScript")


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name)
