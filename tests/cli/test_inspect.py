"""tern inspect and tern convert on safetensors files that the test builds byte by byte. For PyTorch's files see torch/test_convert.py."""
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
import unittest

import numpy

import job

RANDOM = numpy.random.default_rng(5)
KINDS = {"F32": numpy.float32, "F64": numpy.float64, "I64": numpy.int64, "I32": numpy.int32, "U8": numpy.uint8, "F16": numpy.float16,
         "BOOL": numpy.bool_}
NAMES = {"F32": "f32", "F64": "f64", "I64": "i64", "I32": "i32", "U8": "u8", "F16": "f16", "BOOL": "bool"}


def write(path, tensors, metadata=None):
    """Builds a file from (name, array) pairs; the dtype is the array's."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, array in tensors.items():
        kind = next(k for k, dtype in KINDS.items() if array.dtype == dtype)
        raw = numpy.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """Returns (name -> array, metadata); does not support bf16."""
    with open(path, "rb") as file:
        whole = file.read()
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8:8 + length]), whole[8 + length:]
    metadata = header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[name] = numpy.frombuffer(data[begin:end], KINDS[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata


def some_tensors():
    tensors = {}
    for kind, dtype in KINDS.items():
        for shape in ((), (3,), (5, 7), (2, 3, 1, 4), (97, 131)):
            values = RANDOM.normal(size=shape) * 50 + 100
            tensors[f"{kind}{len(shape)}.{numpy.prod(shape, dtype=int)}"] = numpy.asarray(values > 100 if kind == "BOOL" else values).astype(dtype)
    tensors["empty"] = numpy.zeros((0, 3), numpy.float32)
    tensors["far"] = (RANDOM.normal(size=20000) + 1e6).astype(numpy.float64)
    bad = RANDOM.normal(size=(100, 90)).astype(numpy.float32)
    bad[3, 5], bad[50, 2], bad[99, 89], bad[0, 0] = numpy.nan, numpy.nan, numpy.inf, -numpy.inf
    tensors["bad"] = bad
    tensors["only.nan"] = numpy.full(3, numpy.nan, numpy.float32)
    return tensors


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def fine(self, *args):
        code, out, err = job.tern(*args)
        self.assertEqual((code, err), (0, ""))
        return out

    def fails(self, code, text, *args):
        got, out, err = job.tern(*args)
        self.assertEqual((got, out), (code, ""))
        self.assertIn(text, err)


class Inspect(Case):
    def test_statistics_are_numpys(self):
        tensors = some_tensors()
        write(self.path("a.safetensors"), tensors, {"format": "pt", "epoch": "3"})
        told = json.loads(self.fine("inspect", "--json", self.path("a.safetensors")))
        self.assertEqual([t["name"] for t in told["tensors"]], list(tensors))
        self.assertEqual(told["format"], "safetensors")
        self.assertEqual(told["bytes"], os.path.getsize(self.path("a.safetensors")))
        self.assertEqual(told["object"]["__metadata__"], {"format": "pt", "epoch": "3"})
        for entry in told["tensors"]:
            array = tensors[entry["name"]]
            flat = array.astype(numpy.float64).ravel()
            finite = flat[numpy.isfinite(flat)]
            self.assertEqual(entry["shape"], list(array.shape))
            self.assertEqual(entry["dtype"], NAMES[next(k for k, d in KINDS.items() if array.dtype == d)])
            self.assertEqual((entry["nan"], entry["inf"]), (numpy.isnan(flat).sum(), numpy.isinf(flat).sum()))
            want = {"min": finite.min(), "max": finite.max(), "mean": finite.mean()} if finite.size else dict.fromkeys(("min", "max", "mean"))
            want["std"] = finite.std(ddof=1) if finite.size > 1 else None
            for key, value in want.items():
                if value is None:
                    self.assertIsNone(entry[key], (entry["name"], key))
                else:
                    # Deviations from the mean are only as exact as the mean.
                    delta = 1e-12 * abs(value) + 4 * numpy.finfo(float).eps * abs(finite).max()
                    self.assertAlmostEqual(entry[key], value, delta=delta, msg=(entry["name"], key))
        total = told["totals"]
        self.assertEqual((total["tensors"], total["values"], total["bytes"]),
                         (len(tensors), sum(a.size for a in tensors.values()), sum(a.nbytes for a in tensors.values())))
        self.assertEqual((total["nan"], total["inf"]), (5, 2))

    def test_length_of_a_header_is_no_format(self):
        """Its bytes may begin as a pickle or as a zip archive do."""
        for length in (128, 0x4B50):
            header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).ljust(length)
            with open(self.path("a.safetensors"), "wb") as file:
                file.write(struct.pack("<Q", length) + header.encode() + bytes(4))
            self.assertEqual(json.loads(self.fine("inspect", "--json", self.path("a.safetensors")))["format"], "safetensors")

    def test_the_table_says_the_same(self):
        tensors = some_tensors()
        write(self.path("a.safetensors"), tensors, {"format": "pt"})
        told = json.loads(self.fine("inspect", "--json", self.path("a.safetensors")))
        lines = self.fine("inspect", self.path("a.safetensors")).splitlines()
        self.assertRegex(lines[0], r"a\.safetensors: safetensors, \d+\.\d KiB$")
        self.assertEqual(lines[2:4], ["__metadata__:", "  format: 'pt'"])
        rows = lines[6:6 + len(tensors)]
        for entry, row in zip(told["tensors"], rows):
            self.assertTrue(row.startswith(entry["name"] + " "), row)
            self.assertTrue(row.endswith(" " + entry["checksum"]), row)
            numbers = [f"{entry[k]:.4g}" if entry[k] is not None else "-" for k in ("min", "mean", "max", "std")]
            self.assertEqual(row.split()[-5:-1], numbers)
        self.assertEqual(len(set(map(len, rows))), 1, "aligned")
        self.assertIn(" 2 NaN 2 Inf ", next(row for row in rows if row.startswith("bad")))
        total = told["totals"]
        self.assertRegex(lines[-1], f"^{len(tensors)} tensors, {total['values']} values, .*, 5 NaN, 2 Inf, checksum {total['checksum']}$")

    def test_checksums_are_of_values_and_names(self):
        """The XXH3 of no bytes is a known value; the total depends neither on order nor on format."""
        tensors = some_tensors()
        files = {"a": tensors, "b": dict(reversed(tensors.items())), "c": {**tensors, "far": tensors["far"] + 1}}
        files["d"] = {("renamed" if name == "far" else name): array for name, array in tensors.items()}
        sums = {}
        for name, content in files.items():
            write(self.path(name), content)
            told = json.loads(self.fine("inspect", "--json", self.path(name)))
            sums[name] = told["totals"]["checksum"]
            self.assertEqual([t["checksum"] for t in told["tensors"] if t["name"] == "empty"], ["2d06800538d394c2"])
        self.assertEqual(sums["a"], sums["b"])
        self.assertEqual(len(set(sums.values())), 3)

    def test_names_do_nothing_to_a_terminal(self):
        evil = "x\x1b]0;title\x07\x9b31m\u202e\n"
        write(self.path("a.safetensors"), {evil: numpy.zeros(1, numpy.float32)}, {evil: evil})
        out = self.fine("inspect", self.path("a.safetensors"))
        self.assertEqual(set(re.findall(r"[\x00-\x1f\x7f-\x9f\u202e]", out)), {"\n"})
        self.assertIn(r"x\x1b]0;title\a\u009b31m\u202e\n ", out)

    def test_paths_do_nothing_to_a_terminal(self):
        evil, shown = "p\x1b]0;title\x07\x9b31m\u202e\n\udcffä", r"p\x1b]0;title\a\u009b31m\u202e\n\xffä"
        write(self.path(evil), {"x": numpy.zeros(1, numpy.float32)})
        write(self.path("b"), {"y": numpy.zeros(1, numpy.float32)})
        for args in (["inspect", self.path(evil)], ["inspect", self.path(evil + "none")], ["inspect", "--diff", self.path(evil), self.path("b")],
                     ["inspect", "--memory", evil, "a"], ["convert", self.path("b"), self.path(evil)], ["convert", "--dtype", evil, "a", "b"],
                     ["convert", "--strip", evil, self.path("b"), self.path("c.pt")], ["info", evil], [evil], ["bench", evil],
                     ["bench", "step", "--model", evil], ["bench", "conv", "--case", evil], ["bench", "all_reduce", "--sizes", evil],
                     ["run", "--standalone", evil], ["run", "--log-dir", self.path(evil), "true"]):
            with self.subTest(args=args):
                _, out, err = job.tern(*args)
                self.assertEqual(set(re.findall(r"[\x00-\x1f\x7f-\x9f\u202e\udcff]", out + err)), {"\n"})
                self.assertIn(shown, out + err)

    def terminal(self, columns, *args):
        """Returns what the command prints on a terminal of this width."""
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen([job.TERN, *args], stdin=subprocess.DEVNULL, stdout=follower) as process:
            os.close(follower)
            text = b""
            while True:
                try:
                    piece = os.read(leader, 65536)
                except OSError:  # end of file, on Linux
                    break
                if not piece:
                    break
                text += piece
            process.wait(30)
        os.close(leader)
        return text.decode().replace("\r\n", "\n")

    def test_a_table_is_no_wider_than_the_terminal(self):
        name = "a.very." + "long." * 30 + "name.weight"
        write(self.path("a"), {name: numpy.ones((3, 4), numpy.float32), "b": numpy.ones(2, numpy.float32)})
        whole = self.fine("inspect", self.path("a"))
        self.assertIn(name + " ", whole)
        for columns in (200, 120, 100, 80, 60, 40, 30):
            rows = self.terminal(columns, "inspect", self.path("a")).split("\n\n")[1].splitlines()
            self.assertEqual(len(rows), 3)
            self.assertLessEqual(max(map(len, rows)), columns)
            self.assertRegex(rows[1], r"^a\.\S+\.\.\.\S+weight( |$)")
            self.assertEqual("checksum" in rows[0], columns >= 80)

    def test_many_small_tensors_need_leave(self):
        write(self.path("a"), {str(i): numpy.ones((), numpy.uint8) for i in range(30000)})
        self.fails(1, "need more memory than its size", "inspect", self.path("a"))
        self.fails(1, "need more memory than its size", "convert", self.path("a"), self.path("b.pt"))
        self.assertIn("\n30000 tensors, 30000 values", self.fine("inspect", "--memory", "64", self.path("a")))
        self.fine("convert", "--memory", "64", self.path("a"), self.path("b.safetensors"))
        self.assertEqual(len(read(self.path("b.safetensors"))[0]), 30000)
        for command in ("inspect", "convert"):
            for bad in ("0", "x", "-1", "1048577"):
                self.fails(2, f'tern {command}: --memory: expected MiB from 1 to 1048576, got "{bad}"', command, "--memory", bad, "a")

    def test_errors(self):
        self.fails(2, "expected one file, got 0", "inspect")
        self.fails(2, "expected one file, got 2", "inspect", "a", "b")
        self.fails(2, "unrecognized option", "inspect", "--fly", "a")
        self.fails(1, "No such file", "inspect", self.path("none"))
        self.fails(1, "regular file", "inspect", self.folder.name)
        self.assertIn("usage: tern inspect", self.fine("inspect", "--help"))


class Diff(Case):
    def diff(self, code, *args):
        got, out, err = job.tern("inspect", "--diff", *args)
        self.assertEqual((got, err), (code, ""))
        return out

    def test_equal(self):
        tensors = some_tensors()
        write(self.path("a"), tensors, {"format": "pt"})
        write(self.path("b"), dict(reversed(tensors.items())))
        self.assertEqual(self.diff(0, self.path("a"), self.path("b")),
                         f"{len(tensors)} tensors in both: {len(tensors)} equal, 0 of other values, 0 of another shape or dtype\n")

    def test_what_differs_is_named(self):
        base = numpy.array([1, 2, -4, 0], numpy.float32)
        near = numpy.array([1, 2.5, -4, 0], numpy.float32)
        write(self.path("a"), {"same": base, "near": base, "zero": base, "nan": base, "shape": base, "dtype": base, "gone": base})
        write(self.path("b"), {"same": base, "near": near, "zero": base * numpy.float32([1, 1, 1, -1]),
                               "nan": numpy.array([1, numpy.nan, -4, 0], numpy.float32), "shape": base[:3], "dtype": base.astype(numpy.float64),
                               "new": base})
        out = self.diff(1, self.path("a"), self.path("b"))
        rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
        self.assertNotIn("same", rows)
        self.assertEqual(rows["near"], "(4) f32 1 of 4 0.5 0.2".split())
        self.assertEqual(rows["zero"], "(4) f32 1 of 4 0 0".split())
        self.assertEqual(rows["nan"], "(4) f32 1 of 4 inf inf".split())
        self.assertEqual(rows["shape"], "(4) f32 -> (3) f32 - - -".split())
        self.assertEqual(rows["dtype"], "(4) f32 -> (4) f64 4 of 4 0 0".split())
        self.assertIn(f"only in {self.path('a')}: gone: tensor(f32 (4))\n", out)
        self.assertIn(f"only in {self.path('b')}: new: tensor(f32 (4))\n", out)
        self.assertIn("6 tensors in both: 1 equal, 3 of other values, 2 of another shape or dtype\n", out)
        self.assertIn("only in the first: 1, only in the second: 1\n", out)

    def test_random_distances_are_numpys(self):
        for size in (1, 7, 4095, 4096, 4097, 10001):
            a = RANDOM.normal(size=size).astype(numpy.float32)
            b = a.copy()
            b[RANDOM.integers(size, size=max(1, size // 10))] += numpy.float32(RANDOM.normal())
            write(self.path("a"), {"x": a})
            write(self.path("b"), {"x": b})
            row = self.diff(1, self.path("a"), self.path("b")).splitlines()[1].split()
            x, y = a.astype(float), b.astype(float)
            absolute, relative = abs(x - y), abs(x - y) / numpy.maximum(abs(x), abs(y))
            self.assertEqual(row[3:], [str((a != b).sum()), "of", str(size), f"{absolute.max():.4g}", f"{relative.max():.4g}"])

    def test_trouble_is_2(self):
        write(self.path("a"), {"x": numpy.ones(1, numpy.float32)})
        self.fails(2, "No such file", "inspect", "--diff", self.path("a"), self.path("none"))
        self.fails(2, "No such file", "inspect", "--diff", self.path("none"), self.path("a"))
        self.fails(2, "expected two files, got 1", "inspect", "--diff", self.path("a"))
        self.fails(2, "--diff cannot be combined with --json", "inspect", "--diff", "--json", self.path("a"), self.path("a"))


class Convert(Case):
    def test_there_and_back(self):
        tensors = some_tensors()
        write(self.path("a.safetensors"), tensors, {"note": "x"})
        for there in ("b.pt", "b.pth", "b.safetensors"):
            self.fine("convert", self.path("a.safetensors"), self.path(there))
            self.assertEqual(job.tern("inspect", "--diff", self.path("a.safetensors"), self.path(there))[0], 0, there)
            self.fine("convert", self.path(there), self.path("c.safetensors"))
            back, metadata = read(self.path("c.safetensors"))
            self.assertEqual(set(back), set(tensors))
            for name, array in tensors.items():
                self.assertEqual((back[name].dtype, back[name].shape, back[name].tobytes()), (array.dtype, array.shape, array.tobytes()))
            self.assertEqual(metadata, {"note": "x"} if there == "b.safetensors" else {"format": "pt"})

    def test_dtype_is_of_floats(self):
        tensors = some_tensors()
        write(self.path("a.safetensors"), tensors)
        for name, dtype in (("f16", numpy.float16), ("f64", numpy.float64), ("f32", numpy.float32)):
            self.fine("convert", "--dtype", name, self.path("a.safetensors"), self.path("b.safetensors"))
            made, _ = read(self.path("b.safetensors"))
            for key, array in tensors.items():
                with numpy.errstate(over="ignore"):
                    # f64 is converted to f16 through f32, as in PyTorch.
                    by = array.astype(numpy.float32) if dtype == numpy.float16 and array.dtype.kind == "f" else array
                    want = by.astype(dtype if array.dtype.kind == "f" else array.dtype)
                self.assertEqual(made[key].dtype, want.dtype, key)
                numpy.testing.assert_array_equal(made[key], want, key)

    def test_names(self):
        one = numpy.ones(1, numpy.float32)
        write(self.path("a.safetensors"), {"module.x": one, "module.y": one, "z": one}, {"a": "b"})
        self.fine("convert", "--strip", "module.", "--prefix", "net.", self.path("a.safetensors"), self.path("b.safetensors"))
        made, metadata = read(self.path("b.safetensors"))
        self.assertEqual((sorted(made), metadata), (["net.x", "net.y", "net.z"], {"a": "b"}))
        said = job.tern("convert", "--strip", "WRONG.", self.path("a.safetensors"), self.path("c.safetensors"))
        self.assertEqual(said, (0, "", 'tern convert: --strip: no name begins with "WRONG."; `tern inspect` shows them\n'))
        write(self.path("d.safetensors"), {"x": one})
        self.assertIn("\n1 tensor, 1 value, 4 bytes, ", self.fine("inspect", self.path("d.safetensors")))
        write(self.path("a.safetensors"), {"module.x": one, "x": one})
        self.fails(1, 'two tensors would have the name "x"', "convert", "--strip", "module.", self.path("a.safetensors"), self.path("b.safetensors"))
        self.assertEqual(sorted(read(self.path("b.safetensors"))[0]), ["net.x", "net.y", "net.z"], "the old file stays")

    def test_errors(self):
        write(self.path("a.safetensors"), {"x": numpy.ones(1, numpy.float32)})
        a, b = self.path("a.safetensors"), self.path("b.pt")
        self.fails(2, "expected two files, IN and OUT, got 1", "convert", a)
        self.fails(2, 'expected OUT to end in .pt, .pth or .safetensors, got "x.npz"', "convert", a, "x.npz")
        self.fails(2, '--dtype: expected f32, f64, bf16 or f16, got "i8"', "convert", "--dtype", "i8", a, b)
        self.fails(1, 'has no key "model"', "convert", "--key", "model", a, b)
        self.fails(1, "--strip and --prefix: expected a dict, got tensor", "convert", "--key", "x", "--prefix", "y", a, b)
        self.fails(1, "No such file", "convert", self.path("none"), b)
        self.fails(1, "No such file", "convert", a, self.path("none/b.pt"))
        self.assertFalse(os.path.exists(b))
        self.assertIn("usage: tern convert", self.fine("convert", "--help"))


if __name__ == "__main__":
    unittest.main()
