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
import skips

RANDOM = numpy.random.default_rng(5)
KINDS = {"F32": numpy.float32, "F64": numpy.float64, "I64": numpy.int64, "I32": numpy.int32, "U8": numpy.uint8, "F16": numpy.float16,
         "BOOL": numpy.bool_, "I8": numpy.int8, "I16": numpy.int16}
NAMES = {"F32": "f32", "F64": "f64", "I64": "i64", "I32": "i32", "U8": "u8", "F16": "f16", "BOOL": "bool", "I8": "i8", "I16": "i16"}


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


# Dtypes that tern does not have, and the bits of an element.
OTHERS = {"U16": 16, "U32": 32, "U64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
          "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
# The order in which the package writes dtypes (0.8).
ORDER = """U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 I8 U8 F6_E3M2 F6_E2M3 F4 BOOL""".split()


def write_rows(path, rows, metadata=None):
    """Builds a file from (name, dtype, shape, bytes) and the text of the metadata, sorted as the package does."""
    members, data = [] if metadata is None else [f'"__metadata__":{metadata}'], b""
    for name, kind, shape, raw in sorted(rows, key=lambda row: (ORDER.index(row[1]), row[0].encode())):
        entry = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        members.append(f"{json.dumps(name, ensure_ascii=False)}:{json.dumps(entry, separators=(',', ':'))}")
        data += raw
    text = ("{" + ",".join(members) + "}").encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def other_rows():
    """Tensors of every dtype that tern does not have, and of too many dimensions, beside others."""
    rows = [("w", "F32", (2, 3), RANDOM.bytes(24)), ("a.deep", "F32", (1, 2, 1, 2, 1, 1, 2), numpy.float32(RANDOM.normal(size=8)).tobytes()),
            ("deep.bool", "BOOL", (1,) * 9, b"\1"), ("empty", "F8_E4M3", (0, 3), b""), ("scalar", "F8_E5M2", (), b"\xff")]
    for kind, bits in OTHERS.items():
        for shape in ((8,), (3, 8), (2, 1, 4)):
            rows.append((f"{kind}.{len(shape)}", kind, shape, RANDOM.bytes(int(numpy.prod(shape)) * bits // 8)))
    return rows


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


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
                     ["bench", "step", "--model", evil], ["bench", "store", "--port", evil], ["bench", "all_reduce", "--sizes", evil],
                     ["run", "--standalone", evil], ["run", "--log-dir", self.path(evil), "true"]):
            with self.subTest(args=args):
                _, out, err = job.tern(*args)
                self.assertEqual(set(re.findall(r"[\x00-\x1f\x7f-\x9f\u202e\udcff]", out + err)), {"\n"})
                self.assertIn(shown, out + err)

    def test_dtypes_that_tern_has_not(self):
        rows = other_rows()
        write_rows(self.path("a.safetensors"), rows, '{"format":"pt"}')
        told = json.loads(self.fine("inspect", "--json", self.path("a.safetensors")))
        entries = {entry["name"]: entry for entry in told["tensors"]}
        lines = {line.split()[0]: line for line in self.fine("inspect", self.path("a.safetensors")).splitlines() if line}
        for name, kind, shape, raw in rows:
            entry = entries[name]
            self.assertEqual((entry["dtype"], entry["shape"]), (kind.lower(), list(shape)))
            self.assertTrue(lines[name].startswith(f"{name} ") and f" ({', '.join(map(str, shape))}) " in lines[name] and f" {kind.lower()} " in lines[name])
            self.assertTrue(lines[name].endswith(entry["checksum"]))
            if name != "w":
                self.assertEqual([entry[key] for key in ("min", "mean", "max", "std", "nan", "inf")], [None] * 4 + [0, 0])
                self.assertEqual(lines[name].split()[-5:-1], ["-"] * 4)
                self.assertEqual(told["object"][name], f"tensor {kind.lower()} ({', '.join(map(str, shape))})")
        self.assertEqual([told["totals"][key] for key in ("tensors", "values", "bytes")],
                         [len(rows), sum(int(numpy.prod(row[2])) for row in rows), sum(len(row[3]) for row in rows)])
        write_rows(self.path("b"), [row for row in rows if row[1] == "F8_E5M2"])
        write_rows(self.path("c"), [(name, "U8", shape, raw) for name, kind, shape, raw in rows if kind == "F8_E5M2"])
        sums = [[entry["checksum"] for entry in json.loads(self.fine("inspect", "--json", self.path(name)))["tensors"]] for name in "bc"]
        self.assertEqual(*sums, "of the bytes")

    def test_names_with_zero_bytes(self):
        names = ["a\0b", "a\0c", "\0", "a", "__metadata__\0"]
        write(self.path("a.safetensors"), {name: numpy.full(1, i, numpy.float32) for i, name in enumerate(names)}, {"x\0y": "z\0\x01\x1f\"\\é"})
        told = json.loads(self.fine("inspect", "--json", self.path("a.safetensors")))
        self.assertEqual([(entry["name"], entry["min"]) for entry in told["tensors"]], [(name, i) for i, name in enumerate(names)])
        self.assertEqual(told["object"], {**{name: "tensor f32 (1)" for name in names}, "__metadata__": {"x\0y": "z\0\x01\x1f\"\\é"}})
        self.fine("convert", self.path("a.safetensors"), self.path("b.safetensors"))
        made, metadata = read(self.path("b.safetensors"))
        self.assertEqual(({name: array[0] for name, array in made.items()}, metadata), ({name: i for i, name in enumerate(names)}, {"x\0y": "z\0\x01\x1f\"\\é"}))

    def test_metadata_may_be_null(self):
        for metadata in ("null", " null\n", "{}"):
            write_rows(self.path("a.safetensors"), [("x", "F32", (1,), bytes(4))], metadata)
            self.assertEqual(json.loads(self.fine("inspect", "--json", self.path("a.safetensors")))["object"].get("__metadata__"), {} if metadata == "{}" else None)
            self.fine("convert", self.path("a.safetensors"), self.path("b.safetensors"))
            self.assertEqual(read(self.path("b.safetensors"))[1], {} if metadata == "{}" else {"format": "pt"})
        for metadata in ("nul", "nullx", "1", "[null]"):
            write_rows(self.path("a.safetensors"), [("x", "F32", (1,), bytes(4))], metadata)
            self.fails(1, "expected", "inspect", self.path("a.safetensors"))

    def test_a_name_that_occurs_twice_is_named(self):
        """Also if both have the same place in the data, or the second one none."""
        for first, second in (([0, 4], [4, 8]), ([0, 8], [0, 8]), ([0, 4], [0, 8])):
            entries = [f'"{key}":{{"dtype":"U8","shape":[{end - begin}],"data_offsets":[{begin},{end}]}}' for key, (begin, end) in (("x", first), ("\\u0078", second))]
            text = ("{" + ",".join(entries) + "}").encode()
            with open(self.path("a.safetensors"), "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + bytes(8))
            self.fails(1, "occurs twice", "inspect", self.path("a.safetensors"))

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
        self.fails(2, "expected one file, got 2: --diff compares two", "inspect", "a", "b")
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

    def test_bytes_of_dtypes_that_tern_has_not(self):
        rows = other_rows()
        changed = [(name, kind, shape, bytes([raw[0] ^ 1]) + raw[1:] if raw and kind not in ("F32", "BOOL") else raw) for name, kind, shape, raw in rows]
        write_rows(self.path("a"), rows)
        write_rows(self.path("b"), reversed(rows))
        self.diff(0, self.path("a"), self.path("b"))
        write_rows(self.path("b"), changed)
        out = {line.split()[0]: line.split()[1:] for line in self.diff(1, self.path("a"), self.path("b")).splitlines()}
        self.assertEqual(out["U16.2"], "(3, 8) u16 1 of 24 - -".split())
        self.assertEqual(out["C64.1"], "(8) c64 1 of 8 - -".split())
        self.assertFalse({"w", "a.deep", "deep.bool", "empty"} & set(out))
        write_rows(self.path("a"), [("x", "F8_E4M3", (8,), bytes(8)), ("y", "F8_E4M3", (2,), bytes(2)), ("__metadata__x", "F8_E4M3", (1,), b"a")])
        write_rows(self.path("b"), [("x", "U8", (8,), bytes(8)), ("y", "F8_E4M3", (1, 2), bytes(2)), ("__metadata__x", "F8_E4M3", (1,), b"b")])
        out = self.diff(1, self.path("a"), self.path("b"))
        for text in ("(8) f8_e4m3 -> (8) u8", "(2) f8_e4m3 -> (1, 2) f8_e4m3", "__metadata__x"):
            self.assertIn(text, out)

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

    def test_dtypes_that_tern_has_not_are_carried(self):
        rows = other_rows()
        write_rows(self.path("a.safetensors"), rows, '{"format":"pt"}')
        self.fine("convert", self.path("a.safetensors"), self.path("b.safetensors"))
        self.assertEqual(bytes_of(self.path("b.safetensors")), bytes_of(self.path("a.safetensors")), "the same file")
        self.fine("convert", "--dtype", "bf16", "--prefix", "p.", self.path("a.safetensors"), self.path("c.safetensors"))
        with open(self.path("c.safetensors"), "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        self.assertEqual({name: entry["dtype"] for name, entry in header.items() if name != "__metadata__"},
                         {f"p.{name}": "BF16" if name == "w" else kind for name, kind, shape, raw in rows})
        for kind in ("F4", "F6_E2M3", "F6_E3M2"):
            write_rows(self.path("d.safetensors"), [("x", kind, (4,), RANDOM.bytes(OTHERS[kind] // 2))])
            self.fails(1, f'state["x"] has {kind.lower()}, a dtype that PyTorch does not have', "convert", self.path("d.safetensors"), self.path("e.pt"))
        self.assertEqual(job.tern("convert", "--flatten", self.path("a.safetensors"), self.path("f.safetensors"))[0], 0)
        self.assertEqual(bytes_of(self.path("f.safetensors")), bytes_of(self.path("a.safetensors")))
        rows = [row for row in rows if OTHERS.get(row[1], 8) >= 8]
        write_rows(self.path("a.safetensors"), rows, '{"format":"pt"}')
        self.fine("convert", self.path("a.safetensors"), self.path("g.pt"))
        self.fine("convert", "--records", self.path("g.pt"), self.path("h.safetensors"))
        self.assertEqual(bytes_of(self.path("h.safetensors")), bytes_of(self.path("a.safetensors")), "over .pt")
        self.fails(1, 'state["', "convert", self.path("g.pt"), self.path("i.safetensors"))

    def test_parts_of_bytes_are_refused(self):
        for kind, shape, raw in (("F4", (3,), bytes(2)), ("F6_E2M3", (2,), bytes(2)), ("F4", (1,), b"\0"), ("F4", (2**62, 4), b"")):
            write_rows(self.path("a.safetensors"), [("x", kind, shape, raw)])
            why = "too many elements" if max(shape) > 9 else f'"x" ends inside a byte: it has {shape[0]} elements of {OTHERS[kind]} bits'
            self.fails(1, why, "inspect", self.path("a.safetensors"))

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
        self.fails(2, 'expected OUT to end in .pt, .pth, .safetensors or .gguf, or IN to be a folder, got "x.npz"', "convert", a, "x.npz")
        self.fails(2, '--dtype: expected f32 or f64 or bf16 or f16 or q8_0, got "i8"', "convert", "--dtype", "i8", a, b)
        self.fails(1, 'has no key "model"', "convert", "--key", "model", a, b)
        self.fails(1, "--strip and --prefix: expected a dict, got tensor", "convert", "--key", "x", "--prefix", "y", a, b)
        self.fails(1, "No such file", "convert", self.path("none"), b)
        self.fails(1, "No such file", "convert", a, self.path("none/b.pt"))
        self.assertFalse(os.path.exists(b))
        self.assertIn("usage: tern convert", self.fine("convert", "--help"))


if __name__ == "__main__":
    skips.main()
