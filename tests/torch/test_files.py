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
    rng = numpy.random.default_rng(4)
    for kind in (numpy.float16, numpy.uint64, numpy.uint16, numpy.uint8, numpy.int64, numpy.int8):
        values += list(rng.integers(0, 256, 160, numpy.uint8).view(kind))
    values = [value for value in values if value.dtype != numpy.uint64 or value < 2**63]
    values += [numpy.str_(text) for text in ("", "é€", "a\0b", "😀" * 50)] + [numpy.bytes_(b"a\xff\0b")]
    for zipped in (True, False):
        for protocol in (2, 4):
            torch.save(values, path("theirs.pt"), pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
            same([value.item() for value in values], FILES.load(path("theirs.pt")))
    for value, text in ((numpy.complex64(1), "type c8"), (numpy.uint64(2**64 - 1), "type u8"), (numpy.array([1.0]), "core.multiarray._reconstruct"),
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
    for dtype, name in ((torch.complex64, "c64"), (torch.complex128, "c128")):
        for zipped in (True, False):
            torch.save({"a": [1, torch.zeros(3, dtype=dtype)]}, path("theirs.pt"), _use_new_zipfile_serialization=zipped)
            refused(-9, f'state["a"][1]: a tensor has {name} ({dtype}), a dtype tern does not have', "tern_load_opts.records", "tern convert --records --key NAME")


def record_of(value, **how):
    """The value as a record, in a file whose other values are as they were."""
    state = {"model": {"w": torch.arange(3.0)}, "list": [0, value], "after": collections.defaultdict(list, x=[1])}
    torch.save(state, path("theirs.pt"), **how)
    refused(-9, 'theirs.pt: state["list"][1]', "tern_load_opts.records", "tern convert --records --key NAME IN OUT")
    got = FILES.load(path("theirs.pt"), records=True)
    same({**state, "list": None}, {**got, "list": None})
    return got["list"][1]


WAYS = [{"pickle_protocol": protocol, "_use_new_zipfile_serialization": zipped} for protocol in (2, 4) for zipped in (True, False)]


def test_large_ints():
    random.seed(2)
    numbers = [2**63, -2**63 - 1, 2**64 - 1, 2**64, -2**64, 2**127, -2**127, -2**128, 255 << 64, -(255 << 64)]
    numbers += [random.choice((-1, 1)) * (2**63 + random.getrandbits(random.randrange(1, 3000))) for _ in range(40)]
    for way in WAYS:
        torch.save(numbers, path("theirs.pt"), **way)
        for number, record in zip(numbers, FILES.load(path("theirs.pt"), records=True)):
            assert record.name == "builtins.int" and int(*record.args) == number == eval(record.args[0]), (number, record.args)
    assert record_of(2**64, **WAYS[0]).name == "builtins.int"


def test_numpy_s_generators():
    for make in (numpy.random.PCG64, numpy.random.PCG64DXSM, numpy.random.SFC64, numpy.random.Philox):
        want = make(7).state
        torch.save({"rng": want, "model": torch.ones(2)}, path("theirs.pt"))
        got = FILES.load(path("theirs.pt"), records=True)
        same(torch.ones(2), got["model"])
        assert got["rng"]["bit_generator"] == want["bit_generator"]
        if make in (numpy.random.PCG64, numpy.random.PCG64DXSM):
            assert {key: int(*record.args) for key, record in got["rng"]["state"].items()} == want["state"]


def test_numpy_s_values_that_tern_has_not():
    big = [numpy.arange(3).astype(kind) for kind in (">i4", ">f8", ">f2", ">u2", ">c16")] + [numpy.array(["a"], ">U2")]
    values = [*big, *(array.dtype for array in big), numpy.uint64(2**64 - 1), numpy.complex64(1j), numpy.complex128(1 + 2j), numpy.longdouble(0.5),
              numpy.datetime64("2020-02-03"), numpy.timedelta64(5, "ms"), numpy.dtype("M8[ns]"), numpy.dtype([("a", "f4"), ("b", ">i2")]),
              numpy.zeros(2, [("a", "f4"), ("b", ">i2")]), 1 + 2j]
    for way in WAYS:
        for value in values:
            record_of(value, **way)
    record = record_of(big[0], **WAYS[0])
    assert record.state[2].name == "numpy.dtype" and record.state[2].state[1] == ">" and record.state[4] == big[0].tobytes()
    refused(-9, "numpy's type i4 (big-endian)")
    assert record_of(numpy.uint64(2**64 - 1), **WAYS[0]).args == ("u8", b"\xff" * 8)
    refused(-9, "numpy's type u8 needs more than 63 bits")


def raw(tensor):
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def expect_tensor(record, name, value):
    assert (record.name, record.args) == ("torch.Tensor", (name, tuple(value.shape))), (record.name, record.args)
    assert record.state.numpy().tobytes() == raw(value)


def strange(shape, dtype):
    return torch.view_as_complex(torch.randn(*shape, 2, dtype=torch.float64)).to(dtype) if dtype.is_complex else torch.randint(-100, 100, shape).to(dtype)


def test_tensors_that_tern_has_not():
    torch.manual_seed(3)
    random.seed(3)
    for dtype, name in ((torch.complex64, "c64"), (torch.complex128, "c128")):
        base = strange((3, 4, 5, 2), dtype)
        tensors = [strange([random.randrange(5) for _ in range(random.randrange(7))], dtype) for _ in range(12)]
        tensors += [base.permute(3, 1, 0, 2), base[1:, ::2, 3], base[0, 0, 0, 0].expand(4, 2), base[2, 3, 4, 1], base[:, :, 1:1], torch.nn.Parameter(base, False),
                    strange((1, 2, 1, 1, 2, 1, 3, 1), dtype), strange((2,) * 8, dtype).flatten(2, 5).transpose(0, 1)]
        for way in WAYS:
            torch.save(tensors, path("theirs.pt"), **way)
            for record, value in zip(FILES.load(path("theirs.pt"), records=True), tensors):
                expect_tensor(record, name, value)
        record_of(base, **WAYS[0])
    for value in (torch.randn(1, 2, 1, 2, 1, 2, 1), torch.arange(128).reshape((2,) * 7)):
        expect_tensor(record_of(value, **WAYS[1]), {torch.float32: "f32", torch.int64: "i64"}[value.dtype], value)
    crossed = torch.randn((2,) * 8).permute(*range(7, -1, -1))  # its strides fit no six dimensions
    for value in (crossed, torch.zeros((1,) * 70, dtype=torch.complex64)):
        assert record_of(value).name == "torch._utils._rebuild_tensor_v2"
        refused(-9, f"a tensor has {value.ndim} dimensions")


def test_storages_and_tensors_of_classes():
    storage = torch.arange(3.0).storage()
    for way in WAYS:
        record = record_of(storage, **way)
        assert record.name == "torch.FloatStorage" and record.state.numpy().tobytes() == torch.arange(3.0).numpy().tobytes()
        for value in (torch.eye(3).to_sparse(), torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8), print):
            record_of(value, **way)


def test_keys_that_tern_has_not():
    state = {"model": torch.ones(1), "by": {(1, 2): 3, 2**80: 4, (1, 3): 5, "a": 6}}
    for way in WAYS:
        torch.save(state, path("theirs.pt"), **way)
        refused(-9, 'state["by"]["<key 1 at byte ', "of kind tuple")
        assert list(FILES.load(path("theirs.pt"), records=True)["by"].values()) == [3, 4, 5, 6]


class Newer:
    """A tensor as PyTorch 2 writes those of its newer dtypes, which have no class of storage."""

    def __init__(self, data, name, shape):
        self.data, self.name, self.shape = data, name, shape

    def __reduce__(self):
        storage = torch.tensor(list(self.data), dtype=torch.uint8).storage().untyped()
        return torch._utils._rebuild_tensor_v3, (storage, 0, self.shape, (1,) * len(self.shape), False, collections.OrderedDict(), getattr(torch, self.name))


class NewerDtype:
    __module__ = "torch"

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


def _rebuild_tensor_v3():
    raise NotImplementedError


def test_tensors_of_newer_dtypes():
    _rebuild_tensor_v3.__module__ = "torch._utils"
    torch._utils._rebuild_tensor_v3 = _rebuild_tensor_v3
    kinds = {"uint16": ("u16", 2), "uint32": ("u32", 4), "uint64": ("u64", 8), "float8_e4m3fn": ("f8_e4m3", 1), "float8_e5m2": ("f8_e5m2", 1), "float99": (None, 1)}
    for name, (ours, size) in kinds.items():
        setattr(torch, name, NewerDtype(name))
        data = bytes(random.randrange(256) for _ in range(3 * size))
        try:
            torch.save({"a": Newer(data, name, (3,)), "b": torch.ones(2)}, path("theirs.pt"))
        finally:
            delattr(torch, name)
        refused(-9, 'state["a"]', *([f"a tensor has {ours} (torch.{name})"] if ours else []))
        got = FILES.load(path("theirs.pt"), records=True)
        same(torch.ones(2), got["b"])
        if ours:
            assert (got["a"].args, got["a"].state.numpy().tobytes()) == ((ours, (3,)), data)
    del torch._utils._rebuild_tensor_v3


def test_other_things_that_tern_has_not():
    class_value = {"a": collections.OrderedDict}
    for value, text in ((2**70, "an int needs more than 64 bits"), ({(1, 2): 3}, "of kind tuple"), (class_value, "collections.OrderedDict"),
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
