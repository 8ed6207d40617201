"""tern convert and tern inspect on files that PyTorch writes; PyTorch checks the results."""
import collections
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

import numpy
import torch
from torch import nn

import safetensors_file
import skips

TERN = os.path.join(os.environ["TERN_BUILD"], "tern")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.register_buffer("mask", torch.rand(width) > 0.5)
        self.register_buffer("scratch", torch.rand(width), persistent=False)


class Net(nn.Module):
    """What a module can hold: modules in modules, in lists and dicts, one that is None, parameters in lists, tied ones, scalars,
    several dtypes, buffers that state_dict leaves out, and attributes of all kinds."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(4), nn.Sequential(Block(8), nn.ReLU()))
        self.heads = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Embedding(7, 5)})
        self.list = nn.ModuleList([nn.LSTM(3, 4, num_layers=2, bidirectional=True)])
        self.parameters_ = nn.ParameterList([nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(()))])
        self.tied = nn.Linear(5, 3)
        self.tied.weight = self.heads["a"].weight
        self.nothing = None
        self.register_parameter("empty", None)
        self.register_buffer("low", torch.randn(3, 5).bfloat16())
        self.register_buffer("steps", torch.arange(6).reshape(2, 3).t())
        self.config = {"width": 4, "names": ["x", ("y", None)], "rate": 0.5, "dtype": torch.float32}
        self.register_forward_pre_hook(hook)


def hook(module, inputs):
    return inputs


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def run_tern(self, *args):
        done = subprocess.run([TERN, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def fine(self, *args):
        code, out, err = self.run_tern(*args)
        self.assertEqual((code, err), (0, ""))
        return out

    def assertSame(self, made, want):
        self.assertEqual(made.keys(), want.keys())
        for name, tensor in want.items():
            self.assertEqual((made[name].dtype, made[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertEqual(safetensors_file.raw(made[name]), safetensors_file.raw(tensor.detach()), name)


class Modules(Case):
    def test_whole_modules_become_their_state_dicts(self):
        torch.manual_seed(1)
        net = Net()
        for i, zipped in enumerate((True, False)):
            torch.save(net, self.path("net.pth"), _use_new_zipfile_serialization=zipped)
            self.fine("convert", "--records", self.path("net.pth"), self.path("out.pt"))
            made = torch.load(self.path("out.pt"))
            self.assertEqual(list(made), list(net.state_dict()))
            self.assertSame(made, net.state_dict())
            self.assertEqual(made["tied.weight"].data_ptr(), made["heads.a.weight"].data_ptr())
            torch.manual_seed(2 + i)
            fresh = Net()
            fresh.load_state_dict(made, strict=True)
            self.assertSame(fresh.state_dict(), net.state_dict())

    def test_whole_modules_into_safetensors(self):
        torch.manual_seed(3)
        net = Net()
        torch.save(net, self.path("net.pth"))
        self.fine("convert", "--records", self.path("net.pth"), self.path("out.safetensors"))
        made, metadata = safetensors_file.read(self.path("out.safetensors"))
        self.assertEqual(metadata, {"format": "pt"})
        Net().load_state_dict(made, strict=True)
        self.assertSame(made, net.state_dict())

    def test_a_module_beside_other_things(self):
        net = Net()
        torch.save({"net": net, "epoch": 3, "all": [net.heads]}, self.path("both.pt"))
        self.fine("convert", "--records", self.path("both.pt"), self.path("out.pt"))
        made = torch.load(self.path("out.pt"))
        self.assertEqual((list(made), made["epoch"]), (["net", "epoch", "all"], 3))
        self.assertSame(made["net"], net.state_dict())
        self.assertSame(made["all"][0], net.heads.state_dict())
        self.fine("convert", "--records", "--key", "net", self.path("both.pt"), self.path("out.safetensors"))
        self.assertSame(safetensors_file.read(self.path("out.safetensors"))[0], net.state_dict())

    def test_without_records_they_are_refused_with_the_command(self):
        torch.save(Net(), self.path("net.pth"))
        code, out, err = self.run_tern("convert", self.path("net.pth"), self.path("out.pt"))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("Net", err)
        self.assertIn("tern convert --records IN OUT", err)
        self.assertFalse(os.path.exists(self.path("out.pt")))

    def test_what_is_no_module_is_refused_by_name(self):
        torch.save({"x": torch.ones(1), "y": collections.deque([1])}, self.path("deque.pt"))
        code, _, err = self.run_tern("convert", "--records", self.path("deque.pt"), self.path("out.pt"))
        self.assertEqual(code, 1)
        self.assertIn('state["y"]', err)

    def test_what_nests_deep(self):
        """As deep as files may be. A list that contains itself twice, forty levels deep, is refused."""
        bomb, deep = [torch.ones(1)], torch.ones(1)
        for _ in range(40):
            bomb = [bomb, bomb]
        for _ in range(490):
            deep = {"x": deep}
        sys.setrecursionlimit(10000)
        torch.save(bomb, self.path("bomb.pt"))
        torch.save(deep, self.path("deep.pt"))
        name = ".".join("x" * 490)
        self.assertIn(f"\n{name} ", self.fine("inspect", self.path("deep.pt")))
        self.assertEqual(json.loads(self.fine("inspect", "--json", self.path("deep.pt")))["tensors"][0]["name"], name)
        self.fine("convert", "--flatten", self.path("deep.pt"), self.path("flat.safetensors"))
        self.assertSame(safetensors_file.read(self.path("flat.safetensors"))[0], {name: torch.ones(1)})
        self.fine("convert", self.path("deep.pt"), self.path("same.pt"))
        self.assertEqual(self.run_tern("inspect", "--diff", self.path("deep.pt"), self.path("same.pt"))[0], 0)
        self.assertEqual(self.run_tern("inspect", self.path("bomb.pt"))[0], 1)

    def test_records_are_shown_inertly(self):
        net = Net()
        torch.save(net, self.path("net.pth"))
        out = self.fine("inspect", "--records", self.path("net.pth"))
        for text in ("<__main__.Net>", "    b: <torch.nn.modules.sparse.Embedding>", "width: 4", "    [1]: ('y', None)"):
            self.assertIn(text, out)
        told = json.loads(self.fine("inspect", "--records", "--json", self.path("net.pth")))
        self.assertEqual(told["object"]["class"], "__main__.Net")
        names = {t["name"] for t in told["tensors"]}
        self.assertLessEqual(set(net.state_dict()), names)


class Checkpoints(Case):
    def checkpoint(self):
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        optimizer = torch.optim.Adam(net.parameters(), amsgrad=True)
        for _ in range(3):
            net(torch.randn(8, 6)).square().sum().backward()
            optimizer.step()
        return net, optimizer, {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "note": "é\n"}

    def test_of_all_kinds_into_pt_and_back(self):
        net, optimizer, state = self.checkpoint()
        torch.save(state, self.path("a.pt"), _use_new_zipfile_serialization=False)
        self.fine("convert", self.path("a.pt"), self.path("b.pth"))
        made = torch.load(self.path("b.pth"))
        self.assertEqual((list(made), made["epoch"], made["note"]), (list(state), 3, "é\n"))
        self.assertSame(made["model"], state["model"])
        self.assertEqual(made["optimizer"]["param_groups"], state["optimizer"]["param_groups"])
        again = torch.optim.Adam(net.parameters(), amsgrad=True)
        again.load_state_dict(made["optimizer"])
        for key, values in state["optimizer"]["state"].items():
            self.assertSame(again.state_dict()["state"][key], values)
        self.assertEqual(self.run_tern("inspect", "--diff", self.path("a.pt"), self.path("b.pth"))[0], 0)

    def test_the_tree_of_what_is_no_tensor(self):
        value = {"model": {"w": torch.ones(2), "b": torch.ones(1)}, "epoch": 3, "flat": [1, None, "x"], "none": None, "args": ("a", True), "empty": {},
                 "groups": [{"lr": 0.1, "params": list(range(200))}], 7: 1.5, "mixed": {"x": torch.ones(1), "y": "\x1b[31m"}, "long": "a" * 2000,
                 "many": {str(i): i for i in range(20)}}
        torch.save(value, self.path("a.pt"))
        tree = self.fine("inspect", self.path("a.pt")).split("\n\n")[1].splitlines()
        head = ["model: 2 tensors", "epoch: 3", "flat: [1, None, 'x']", "none: None", "args: ('a', True)", "empty: {}", "groups:", "  [0]:", "    lr: 0.1"]
        self.assertEqual(tree[:len(head)], head)
        self.assertRegex(tree[9], r"^    params: \[0, 1, 2, [\d, ]+\.\.\.$")
        self.assertLessEqual(len(tree[9]), 164)
        self.assertEqual(tree[10:14], ["7: 1.5", "mixed:", "  y: '\\x1b[31m'", "long: string of 2000 bytes"])
        self.assertEqual(tree[14:], ["many:", *(f"  {i}: {i}" for i in range(16)), "  ... 4 more (--all)"])
        everything = self.fine("inspect", "--all", self.path("a.pt"))
        self.assertIn(f"params: {list(range(200))}\n", everything)
        self.assertIn("long: '" + "a" * 2000 + "'\n", everything)
        self.assertIn("  19: 19\n", everything)
        for single, text in ((3, "3"), ({}, "{}"), ([1, "x"], "[1, 'x']")):
            torch.save(single, self.path("a.pt"))
            self.assertIn(f"\n\n{text}\n\n0 tensors, 0 values", self.fine("inspect", self.path("a.pt")))

    def test_keys_and_values_of_any_kind(self):
        state = {"by": {0.5: torch.zeros(2), 1.5: torch.ones(3), b"\0a": 1, None: 2, True: 3, -7: 4}, "raw": b"\x00\xff", "many": b"a" * 2000}
        torch.save(state, self.path("a.pt"))
        told = json.loads(self.fine("inspect", "--json", self.path("a.pt")))
        self.assertEqual(told["object"]["by"], {"0.5": "tensor f32 (2)", "1.5": "tensor f32 (3)", "b'\\x00a'": 1, "None": 2, "True": 3, "-7": 4})
        self.assertEqual([entry["name"] for entry in told["tensors"]], ["by[0.5]", "by[1.5]"])
        self.assertEqual((told["object"]["raw"], told["object"]["many"]), ("2 bytes", "2000 bytes"))
        tree = self.fine("inspect", self.path("a.pt"))
        self.assertIn("raw: b'\\x00\\xff'\n", tree)
        self.assertIn("many: bytes of 2000 bytes\n", tree)
        state["by"][1.5] = torch.full((3,), 2.0)
        torch.save(state, self.path("b.pt"))
        code, out, _ = self.run_tern("inspect", "--diff", self.path("a.pt"), self.path("b.pt"))
        self.assertEqual(code, 1)
        self.assertIn("by[1.5]", out)
        self.assertNotIn("by[0.5]", out)

    def test_a_part_into_safetensors(self):
        _, _, state = self.checkpoint()
        torch.save(state, self.path("a.pt"))
        code, _, err = self.run_tern("convert", self.path("a.pt"), self.path("out.safetensors"))
        self.assertEqual(code, 1)
        self.assertIn('state["model"]: expected a tensor, got dict', err)
        self.fine("convert", "--key", "model", self.path("a.pt"), self.path("out.safetensors"))
        self.assertSame(safetensors_file.read(self.path("out.safetensors"))[0], state["model"])

    def test_flatten(self):
        _, _, state = self.checkpoint()
        torch.save(state, self.path("a.pt"))
        code, _, err = self.run_tern("convert", "--flatten", self.path("a.pt"), self.path("out.safetensors"))
        self.assertEqual(code, 0)
        self.assertRegex(err, r"^tern convert: left out \d+ values that are not tensors\n$")
        want = {f"model.{name}": tensor for name, tensor in state["model"].items()}
        for key, values in state["optimizer"]["state"].items():
            want.update({f"optimizer.state[{key}].{name}": tensor for name, tensor in values.items()})
        self.assertSame(dict(sorted(safetensors_file.read(self.path("out.safetensors"))[0].items())), dict(sorted(want.items())))

    def test_the_prefix_of_parallel_modules(self):
        net, _, _ = self.checkpoint()
        torch.save(nn.DataParallel(net).state_dict(), self.path("a.pt"))
        self.fine("convert", "--strip", "module.", self.path("a.pt"), self.path("b.pt"))
        net.load_state_dict(torch.load(self.path("b.pt")), strict=True)
        self.assertSame(torch.load(self.path("b.pt")), net.state_dict())
        self.fine("convert", "--prefix", "module.", self.path("b.pt"), self.path("c.pt"))
        self.assertEqual(self.run_tern("inspect", "--diff", self.path("a.pt"), self.path("c.pt"))[0], 0)

    def test_what_differs(self):
        net, optimizer, state = self.checkpoint()
        torch.save(state, self.path("a.pt"))
        state["epoch"] = 4
        state["optimizer"]["param_groups"][0]["lr"] = 0.5
        state["model"]["0.weight"] = state["model"]["0.weight"] + 1
        torch.save(state, self.path("b.pt"))
        code, out, _ = self.run_tern("inspect", "--diff", self.path("a.pt"), self.path("b.pt"))
        self.assertEqual(code, 1)
        for line in ("- epoch: 3\n+ epoch: 4\n", "- optimizer.param_groups[0].lr: 0.001\n+ optimizer.param_groups[0].lr: 0.5\n",
                     "30 of 30", "2 other values are not equal\n"):
            self.assertIn(line, out)


class Records(Case):
    """What tern does not have: it is carried if it is a tensor, and keeps nothing else from being read."""

    def test_one_value_does_not_keep_the_model(self):
        model = {"w": torch.randn(3, 2), "b": torch.arange(3)}
        values = [numpy.random.default_rng(1).bit_generator.state, 2**64, numpy.arange(3, dtype=">f8"), numpy.arange(3), numpy.uint64(2**64 - 1), numpy.complex64(1j),
                  numpy.longdouble(1), numpy.datetime64("2020-01-01"), 1j, collections.deque([1]), {(1, 2): 3}, print, torch.arange(3.0).storage(),
                  torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex64), collections.defaultdict(list, a=[2])]
        for i, value in enumerate(values):
            torch.save({"model": model, "extra": [value]}, self.path("a.pt"), _use_new_zipfile_serialization=i % 2 == 0)
            for out in ("b.pt", "b.safetensors"):
                self.fine("convert", "--records", "--key", "model", self.path("a.pt"), self.path(out))
            self.assertSame(torch.load(self.path("b.pt")), model)
            self.assertSame(dict(sorted(safetensors_file.read(self.path("b.safetensors"))[0].items())), dict(sorted(model.items())))
            self.fine("inspect", "--records", self.path("a.pt"))
            json.loads(self.fine("inspect", "--records", "--json", self.path("a.pt")))
            if i + 1 < len(values):
                code, _, err = self.run_tern("inspect", self.path("a.pt"))
                self.assertEqual(code, 1)
                self.assertIn('a.pt: state["extra"][0]', err)
                self.assertIn("tern convert --records --key NAME IN OUT", err)

    def test_tensors_are_carried(self):
        torch.manual_seed(9)
        base = torch.randint(-100, 100, (3, 4, 2), dtype=torch.int16)
        wide = torch.randn(3, 4, 2, dtype=torch.complex64)
        want = {"wide.base": wide, "wide.part": wide[1:, ::2].permute(2, 0, 1), "wide.row": wide[1], "i8": torch.randint(-100, 100, (5, 7), dtype=torch.int8), "i16": base, "part": base[1:, ::2].permute(2, 0, 1), "row": base[1], "c64": torch.randn(3, 2, dtype=torch.complex64),
                "scalar": torch.tensor(-3, dtype=torch.int8), "empty": torch.zeros(0, 3, dtype=torch.int16), "wide": torch.randn(1, 2, 1, 2, 1, 2, 1), "f32": torch.randn(2, 2),
                "parameter": torch.nn.Parameter(torch.randn(2, dtype=torch.complex64))}
        large = {"c128": torch.randn(4, 3, dtype=torch.complex128)[:, 1:]}
        raw = lambda tensor: tensor.detach().contiguous().numpy().tobytes()

        def same(made, tensors):
            self.assertEqual(made.keys(), tensors.keys())
            for name, tensor in tensors.items():
                self.assertEqual((made[name].dtype, made[name].shape, raw(made[name])), (tensor.dtype, tensor.shape, raw(tensor)), name)

        for zipped in (True, False):
            torch.save({"m": {**want, **large}, "epoch": 3}, self.path("a.pt"), _use_new_zipfile_serialization=zipped)
            self.fine("convert", "--records", self.path("a.pt"), self.path("b.pt"))
            made = torch.load(self.path("b.pt"))
            same(made["m"], {**want, **large})
            self.assertEqual(made["epoch"], 3)
            for part, whole in (("row", "i16"), ("wide.row", "wide.base")):
                self.assertEqual(made["m"][part].storage().data_ptr(), made["m"][whole].storage().data_ptr(), "shared as before")
            self.assertEqual(self.run_tern("inspect", "--records", "--diff", self.path("a.pt"), self.path("b.pt"))[0], 0)
            told = {entry["name"]: (entry["dtype"], entry["shape"]) for entry in json.loads(self.fine("inspect", "--records", "--json", self.path("b.pt")))["tensors"]}
            self.assertEqual((told["m.part"], told["m.wide.part"], told["m.c128"], told["m.wide"]), (("i16", [2, 2, 2]), ("c64", [2, 2, 2]), ("c128", [4, 2]), ("f32", [1, 2, 1, 2, 1, 2, 1])))
            code, _, err = self.run_tern("convert", "--records", "--key", "m", self.path("a.pt"), self.path("c.safetensors"))
            self.assertEqual(code, 1)
            self.assertIn('state["c128"] has c128, a dtype that safetensors does not have', err)
            torch.save(want, self.path("a.pt"), _use_new_zipfile_serialization=zipped)
            self.fine("convert", "--records", self.path("a.pt"), self.path("c.safetensors"))
            self.fine("convert", self.path("c.safetensors"), self.path("d.pt"))
            made = torch.load(self.path("d.pt"))
            same({name: made[name] for name in want}, want)

    def test_modules_with_such_tensors(self):
        net = nn.Sequential(nn.Linear(2, 3, dtype=torch.complex64), nn.BatchNorm1d(3))
        net[1].register_buffer("codes", torch.arange(-3, 3, dtype=torch.int8).reshape(2, 3))
        torch.save({"net": net, "rng": numpy.random.default_rng(1).bit_generator.state}, self.path("a.pt"))
        self.fine("convert", "--records", "--key", "net", self.path("a.pt"), self.path("b.pt"))
        made = torch.load(self.path("b.pt"))
        self.assertEqual(list(made), list(net.state_dict()))
        for name, tensor in net.state_dict().items():
            self.assertTrue(made[name].dtype == tensor.dtype and torch.equal(made[name], tensor), name)
        self.fine("convert", "--records", "--key", "net", self.path("a.pt"), self.path("b.safetensors"))
        self.fine("convert", self.path("b.safetensors"), self.path("c.pt"))
        self.assertEqual(self.run_tern("inspect", "--records", "--diff", self.path("b.pt"), self.path("c.pt"))[0], 0)

    def test_newer_dtypes_are_written_as_newer_pytorch_does(self):
        """_rebuild_tensor_v3(storage, offset, shape, strides, requires_grad, hooks, dtype), which this PyTorch does not have."""
        kinds = {"U16": "uint16", "U32": "uint32", "U64": "uint64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
        header, data = {}, b""
        for kind in kinds:
            size = {"U16": 2, "U32": 4, "U64": 8}.get(kind, 1)
            header[kind] = {"dtype": kind, "shape": [2, 3], "data_offsets": [len(data), len(data) + 6 * size]}
            data += os.urandom(6 * size)
        text = json.dumps(header).encode()
        with open(self.path("a.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        self.fine("convert", self.path("a.safetensors"), self.path("b.pt"))
        with zipfile.ZipFile(self.path("b.pt")) as archive:
            entries = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}

        class Unpickler(pickle.Unpickler):
            def find_class(self, module, name):
                return (lambda *args: args) if name == "_rebuild_tensor_v3" else collections.OrderedDict if name == "OrderedDict" else f"{module}.{name}"

            def persistent_load(self, key):
                return key

        for name, call in Unpickler(io.BytesIO(entries["data.pkl"])).load().items():
            (what, storage, key, place, elements), offset, shape, strides, grad, hooks, dtype = call
            begin, end = header[name]["data_offsets"]
            self.assertEqual((what, storage, place, elements), ("storage", "torch.storage.UntypedStorage", "cpu", end - begin))
            self.assertEqual((offset, shape, strides, grad, hooks, dtype), (0, (2, 3), (3, 1), False, {}, f"torch.{kinds[name]}"))
            self.assertEqual(entries[f"data/{key}"], data[begin:end])


class Values(Case):
    def tensors(self):
        torch.manual_seed(7)
        made = {}
        for kind, dtype in safetensors_file.KINDS.items():
            for shape in ((), (0, 3), (1,), (5, 7), (3, 1, 2, 2), (83, 101)):
                values = torch.randn(shape) * 50
                made[f"{kind} {tuple(shape)}"] = values > 0 if dtype == torch.bool else values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype)
        made["strided"] = torch.randn(6, 4).t()[1:, ::2]
        made["special"] = torch.tensor([0.0, -0.0, 1e-40, 65504.0, 65520.0, 3.4e38, float("inf"), float("nan"), 2.0**-24, 2.0**-25])
        made["special f64"] = torch.tensor([1e300, 1e-300, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
        return made

    def test_from_safetensors_to_pytorch_and_back(self):
        want = self.tensors()
        safetensors_file.write(self.path("a.safetensors"), want)
        self.fine("convert", self.path("a.safetensors"), self.path("b.pt"))
        self.assertSame(torch.load(self.path("b.pt")), want)
        torch.save(want, self.path("c.pt"))
        self.fine("convert", self.path("c.pt"), self.path("d.safetensors"))
        self.assertSame(dict(sorted(safetensors_file.read(self.path("d.safetensors"))[0].items())), dict(sorted(want.items())))

    def test_dtypes_as_to(self):
        want = self.tensors()
        torch.save(want, self.path("a.pt"))
        for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32), ("f64", torch.float64)):
            self.fine("convert", "--dtype", name, self.path("a.pt"), self.path("b.pt"))
            made = torch.load(self.path("b.pt"))
            for key, tensor in want.items():
                cast = tensor.to(dtype) if tensor.is_floating_point() else tensor
                self.assertEqual(made[key].dtype, cast.dtype)
                self.assertTrue(torch.equal(made[key].nan_to_num(7), cast.nan_to_num(7)) if cast.is_floating_point() else torch.equal(made[key], cast), (name, key))
                self.assertTrue(not cast.is_floating_point() or torch.equal(made[key].isnan(), cast.isnan()))

    def test_statistics_are_pytorchs(self):
        want = self.tensors()
        torch.save(want, self.path("a.pt"))
        for entry in json.loads(self.fine("inspect", "--json", self.path("a.pt")))["tensors"]:
            tensor = want[entry["name"]].double().reshape(-1)
            finite = tensor[tensor.isfinite()]
            self.assertEqual((entry["nan"], entry["inf"]), (int(tensor.isnan().sum()), int(tensor.isinf().sum())))
            if not len(finite):
                self.assertEqual([entry[key] for key in ("min", "mean", "max", "std")], [None] * 4)
                continue
            self.assertEqual((entry["min"], entry["max"]), (float(finite.min()), float(finite.max())))
            delta = 1e-13 * float(finite.abs().max())
            self.assertAlmostEqual(entry["mean"], float(finite.mean()), delta=delta)
            if len(finite) > 1 and "f64" not in entry["name"]:
                self.assertAlmostEqual(entry["std"], float(finite.std()), delta=delta)


if __name__ == "__main__":
    skips.main()
