"""A board's files, read back by hand (events.py): scalars, images, histograms and text from tensors of every dtype
and layout, compared with numpy and torch. test_board_peers.py reads them with TensorBoard."""
import csv
import ctypes
import json
import math
import os
import struct

import numpy
import torch

import events
import skips
from folder import InFolder
from boards import Board, files
from ops import BF16, F16, I32, blocked
from tern import TernError

RNG = numpy.random.default_rng(0)


class InAFolder(InFolder):
    def open(self, **opts):
        board = Board(self.folder, **opts)
        self.addCleanup(board.close)
        return board


class Numbers(InAFolder):
    def test_scalars(self):
        board = self.open()
        points = [("loss", v, s) for s, v in enumerate([0.0, 1.5, -1e-30, 1e300, math.inf, math.nan])]
        points += [("é/ü", 2.0, -3), ("x", 1.0, (1 << 62) + 1)]
        for tag, value, step in points:
            board.scalar(tag, value, step)
        found = board.values()
        self.assertEqual([(t, s, k) for t, s, k, _ in found], [(t, s, "scalar") for t, _, s in points])
        with numpy.errstate(over="ignore"):
            numpy.testing.assert_array_equal([v for *_, v in found], numpy.array([v for _, v, _ in points], "f"))

    def test_a_file_begins_with_its_version(self):
        board = self.open()
        board.scalar("x", 1, 1)
        board.values()
        (path,) = files(self.folder)
        self.assertRegex(os.path.basename(path), rf"^events\.out\.tfevents\.\d{{10}}\.{os.uname().nodename}\.{os.getpid()}\.\d+$")
        first, second = events.events(path)
        self.assertEqual((first["version"], first["step"], "value" in first), ("brain.Event:2", 0, False))
        self.assertLessEqual(first["wall_time"], second["wall_time"])
        self.assertAlmostEqual(second["wall_time"], os.stat(path).st_mtime, delta=5)

    def test_curves_of_one_chart_are_runs(self):
        board = self.open()
        for step in range(3):
            board.scalars("Loss/training", {"train_loss": step, "val_loss": 2 * step}, step)
        self.assertEqual(board.values(), [])
        for name, slope in ("train_loss", 1), ("val_loss", 2):
            (path,) = files(os.path.join(self.folder, f"Loss_training_{name}"))
            self.assertEqual(events.values(path), [("Loss/training", s, "scalar", slope * s) for s in range(3)])
            self.assertEqual(events.events(path)[0]["version"], "brain.Event:2")

    def test_a_resumed_run_purges(self):
        for purge in -1, 7:
            board = Board(self.folder, purge_step=purge)
            board.scalars("a", {"b": 1}, 7)
            board.close()
        for folder in self.folder, os.path.join(self.folder, "a_b"):
            first, second = map(events.events, files(folder))
            self.assertFalse(any("session" in e for e in first))
            heading = [(e["step"], e.get("version"), e.get("session")) for e in second[:2]]
            self.assertEqual(heading, [(0, "brain.Event:2", None), (7, None, 1)])

    def test_tables(self):
        board = self.open(csv=True, jsonl=True)
        values = [0.1, 1 / 3, 1e22, -5.0, math.nan, math.inf, -math.inf, 5e-324]
        tag = 'a,"b" \\ \n é'
        for step, value in enumerate(values):
            board.scalar(tag, value, step << 40)
        board.scalars("main", {"x": 1, "y": 2}, 9)
        board.values()
        want = [(step << 40, tag, value) for step, value in enumerate(values)] + [(9, "main/x", 1.0), (9, "main/y", 2.0)]
        with open(os.path.join(self.folder, "scalars.csv"), newline="") as file:
            head, *rows = list(csv.reader(file))
        self.assertEqual(head, ["wall_time", "step", "tag", "value"])
        self.assertEqual(repr([(int(s), t, float(v)) for _, s, t, v in rows]), repr(want))
        with open(os.path.join(self.folder, "scalars.jsonl")) as file:
            lines = [json.loads(line, parse_constant=self.fail) for line in file]
        self.assertEqual(repr([(o["step"], o["tag"], float(o["value"])) for o in lines]), repr(want))
        self.assertEqual([o["value"] for o in lines[4:7]], ["NaN", "Infinity", "-Infinity"])
        self.assertTrue(all(abs(o["wall_time"] - float(r[0])) < 5 for o, r in zip(lines, rows)))

    def test_text(self):
        board = self.open()
        board.text("note", "# Überschrift\n*x*", 4)
        ((tag, step, plugin, (tensor, content)),) = board.values()
        self.assertEqual((tag, step, plugin, content), ("note/text_summary", 4, "text", b""))
        self.assertEqual((tensor[1], tensor[8]), ([7], ["# Überschrift\n*x*".encode()]))
        self.assertEqual(events.fields(events.fields(tensor[2][0])[2][0]), {1: [1]})

    def test_hparams(self):
        board = self.open()
        board.hparams({"lr": 0.125, "batch": 8, "optim": "sgd é", "amp": True, "none": None, "zero": 0}, ["loss", "dice"])
        (a, _, plugin, (_, columns)), (b, _, other, (_, row)) = board.values()
        self.assertEqual((a, b, plugin, other), ("_hparams_/experiment", "_hparams_/session_start_info", "hparams", "hparams"))
        (experiment,) = events.fields(columns)[2]
        infos, metrics = (events.fields(experiment)[number] for number in (4, 5))
        self.assertEqual([(f[1][0].decode(), f[4][0]) for f in map(events.fields, infos)],
                         [("lr", 3), ("batch", 3), ("optim", 1), ("amp", 2), ("zero", 3)])
        self.assertEqual([events.fields(events.fields(m)[1][0]) for m in metrics], [{2: [b"loss"]}, {2: [b"dice"]}])
        (session,) = events.fields(row)[3]
        pairs = {f[1][0].decode(): events.fields(f[2][0]) for f in map(events.fields, events.fields(session)[1])}
        number = lambda value: {2: [struct.pack("<d", value)]}
        self.assertEqual(pairs, {"lr": number(0.125), "batch": number(8), "optim": {3: ["sgd é".encode()]}, "amp": {4: [1]}, "zero": number(0)})

    def test_hparams_that_are_none(self):
        board = self.open()
        with self.assertRaisesRegex(TernError, r'hparams\["a"\]: expected a bool, number or string, got a list'):
            board.hparams({"a": []}, [])
        with self.assertRaisesRegex(TernError, "the tag is empty"):
            board.hparams({"": 1}, [])
        with self.assertRaisesRegex(TernError, "the tag is empty"):
            board.hparams({"a": 1}, [""])
        with self.assertRaisesRegex(TernError, "expected a dict and the metrics' tags, got a none"):
            board.lib.check("tern_board_hparams", board.board, None, 0, None)
        self.assertEqual(board.values(), [])
        board.hparams({}, [])
        self.assertEqual(len(board.values()), 2)

    def test_the_reader_sees_a_flipped_bit(self):
        board = self.open()
        board.scalar("x", 1, 1)
        board.values()
        (path,) = files(self.folder)
        with open(path, "rb") as file:
            good = file.read()
        for at in range(len(good)):
            with open(path, "wb") as file:
                file.write(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
            with self.assertRaises(ValueError):
                events.records(path)


# Events of SummaryWriter (PyTorch 2.15, TensorBoard 2.21) without their times.
GOLDEN = {"scalar": "1080808080202a100a0e0a076c6f73732fc3a9150000c0be",
          "text": "10032a2f0a2d0a116e6f74652f746578745f73756d6d617279420e080712041202080142042ac3a92a4a080a060a0474657874",
          "histogram": "10042a680a660a01682a6109000000000000f83f11000000000000fa3f190000000000000840210000000000801240290000000000901c"
               "4032188545cc9fc0a2f73f794cfae2d3fff93f538746136999fc3f3a1800000000000000000000000000000040000000000000f03f"}


class Golden(InAFolder):
    def test_the_same_bytes(self):
        board = self.open()
        board.scalar("loss/é", -0.375, 1 << 33)
        board.text("note", "*é*", 3)
        board.histogram("h", board.run.constant(numpy.array([1.5, 1.5, 1.625])), 4)
        board.values()
        (path,) = files(self.folder)
        self.assertEqual([record[9:].hex() for record in events.records(path)[1:]], list(GOLDEN.values()))


def shades(array):
    """SummaryWriter's conversion: in f32, and truncated."""
    if array.dtype == numpy.uint8:
        return array
    return (numpy.nan_to_num(array.astype("f")) * numpy.float32(255)).clip(0, 255).astype("u1")


def grid(images, across=8):
    """Arranges (N, C, H, W) as one image (C, rows of H, columns of W)."""
    n, c, h, w = images.shape
    across = min(n, across)
    canvas = numpy.zeros((c, -(-n // across) * h, across * w), "u1")
    for i in range(n):
        y, x = divmod(i, across)
        canvas[:, y * h : y * h + h, x * w : x * w + w] = images[i]
    return canvas


class Images(InAFolder):
    def check(self, board, want, tag="image"):
        """The last value is the picture `want`, (C, H, W)."""
        found_tag, _, kind, image = board.values()[-1]
        height, width, channels, pixels = events.png_pixels(image["png"])
        self.assertEqual((found_tag, kind), (tag, "image"))
        self.assertEqual((image["channels"], image["height"], image["width"]), want.shape)
        self.assertEqual((channels, height, width), want.shape)
        numpy.testing.assert_array_equal(numpy.frombuffer(pixels, "u1").reshape(height, width, channels).transpose(2, 0, 1), want)

    def test_shapes(self):
        board = self.open()
        for shape in (5, 7), (1, 5, 7), (3, 5, 7), (4, 1, 1), (1, 3, 4, 6), (11, 1, 5, 3), (3, 4, 2, 9), (8, 3, 1, 1), (9, 3, 2, 2):
            with self.subTest(shape=shape):
                x = RNG.uniform(-0.25, 1.25, shape).astype("f")
                board.image("image", board.run.constant(x), 0)
                self.check(board, grid(shades(x).reshape((1,) * (4 - x.ndim) + shape)))
                board.run.end()

    def test_formats(self):
        board = self.open()
        full = RNG.uniform(0, 1, (6, 3, 4, 5, 7)).astype("f")  # NCDHW
        cases = {"NHWC": 8, "CNHW": 4, "WHNC": 1, "NDHWC": 3, "DWHCN": 2, "HWC": 8, "WH": 8, "CDHW": 8, "DHW": 8}
        for format, across in cases.items():
            with self.subTest(format=format):
                part = full[tuple(slice(None) if c in format else 0 for c in "NCDHW")]
                own = [c for c in "NCDHW" if c in format]
                x = part.transpose([own.index(c) for c in format])
                slice_ = 2 if "D" in format else 0
                board.image("image", board.run.constant(x), 0, format=format.encode(), across=across, slice=slice_)
                want = part.take(slice_, own.index("D")) if "D" in format else part
                want = want.reshape([full.shape["NCDHW".index(c)] if c in format else 1 for c in "NCHW"])
                self.check(board, grid(shades(want), across))
                board.run.end()

    def test_a_slice_of_a_volume_and_a_mask(self):
        """What the users of 3-D U-Nets show: images[:, :, 0], and sigmoid(predict[:, :, 0]) > 0.5."""
        board = self.open()
        scores = RNG.standard_normal((3, 1, 4, 6, 5)).astype("f")
        scores[0, 0, 1, 0, :3] = [0, -0.0, math.nan]
        for at in 0, 1, 3:
            board.image("image", board.run.constant(scores), at, slice=at, threshold=0)
            self.check(board, grid(255 * (torch.sigmoid(torch.tensor(scores[:, :, at])) > 0.5).numpy().astype("u1")))

    def test_dtypes(self):
        board = self.open()
        x = RNG.uniform(-0.5, 1.5, (2, 3, 4, 5))
        ints = [RNG.integers(*ends, x.shape, kind) for *ends, kind in ((0, 256, "u1"), (-1, 3, "i8"), (-1, 3, "i4"), (-1, 3, "i1"), (-1, 3, "i2"))]
        for array in x.astype("f"), x.astype("d"), x > 0.5, *ints:
            with self.subTest(dtype=array.dtype):
                board.image("image", board.run.constant(array), 0)
                self.check(board, grid(shades(array)))
        for dtype, kind in (BF16, torch.bfloat16), (F16, torch.float16):
            with self.subTest(dtype=kind):
                board.image("image", board.run.op("tern_cast", board.run.constant(x.astype("f")), dtype), 0)
                self.check(board, grid(shades(torch.tensor(x.astype("f")).to(kind).float().numpy())))

    def test_values_at_the_ends(self):
        board = self.open()
        x = numpy.array([[0, 1, -0.0, -1e-9, 1 + 1e-6, math.nan, math.inf, -math.inf, 0.5, 254.999 / 255]], "f")
        board.image("image", board.run.constant(x), 0)
        self.check(board, numpy.array([[[0, 255, 0, 0, 255, 0, 255, 0, 127, 254]]], "u1"))

    def test_layouts(self):
        board = self.open()
        run = board.run
        x = RNG.uniform(0, 1, (2, 16, 4, 6)).astype("f")
        channels = blocked(run, run.constant(x))
        board.image("image", channels, 0, format=b"NDHW", slice=5)
        self.check(board, grid(shades(run.value(channels)[:, 5:6])))
        c = run.constant(x)
        part = run.op("tern_slice", run.op("tern_transpose", c, 2, 3), 1, *map(ctypes.c_int64, (3, 16, 6)))
        board.image("image", part, 0)
        self.check(board, grid(shades(x.transpose(0, 1, 3, 2)[:, 3:16:6])))

    def test_large(self):
        board = self.open()
        x = RNG.integers(0, 256, (3, 120, 160), "u1")
        for _ in range(2):
            board.image("image", board.run.constant(x), 0)
            self.check(board, x)


def buckets():
    """SummaryWriter's default_bins."""
    positive, v = [], 1e-12
    while v < 1e20:
        positive.append(v)
        v *= 1.1
    return numpy.array([-v for v in reversed(positive)] + [0] + positive)


class Histograms(InAFolder):
    def check_buckets(self, found, values):
        ends = buckets()
        counts, _ = numpy.histogram(values.clip(ends[0], ends[-1]), ends)
        first, last = numpy.nonzero(counts)[0][[0, -1]]
        numpy.testing.assert_array_equal(found["limits"], ends[first : last + 2])
        numpy.testing.assert_array_equal(found["counts"], [0, *counts[first : last + 1]])

    def check(self, found, values):
        """Buckets, least, largest and number exactly; the sums to rounding."""
        values = values.astype("d").reshape(-1)
        self.check_buckets(found, values)
        self.assertEqual((found["min"], found["max"], found["num"]), (values.min(), values.max(), values.size))
        numpy.testing.assert_allclose(found["sum"], values.sum(), rtol=1e-12, atol=1e-12 * abs(values).sum())
        numpy.testing.assert_allclose(found["sum_squares"], values.dot(values), rtol=1e-12)

    def test_random(self):
        board = self.open()
        for array in (RNG.standard_normal((50, 70)).astype("f"), 10.0 ** RNG.uniform(-15, 21, 5000) * RNG.choice([-1, 1], 5000),
                      RNG.integers(-1000, 1000, (4, 5, 6)), RNG.integers(0, 5, 100, "i4"), RNG.integers(0, 256, 100, "u1"),
                      RNG.integers(-128, 128, 100, "i1"), RNG.integers(-(1 << 15), 1 << 15, 100, "i2"),
                      RNG.standard_normal(50) > 0, numpy.zeros(3, "f"), numpy.full((), -2.5)):
            with self.subTest(dtype=array.dtype, shape=array.shape):
                board.histogram("h", board.run.constant(array), 1)
                tag, step, kind, found = board.values()[-1]
                self.assertEqual((tag, step, kind), ("h", 1, "histogram"))
                self.check(found, array)

    def test_at_the_ends_of_buckets(self):
        board = self.open()
        ends = buckets()
        near = numpy.concatenate([ends, numpy.nextafter(ends, math.inf), numpy.nextafter(ends, -math.inf), [-0.0, 5e-324, -5e-324, 1e300]])
        cases = [near, *numpy.split(near[::67], len(near[::67]))]
        for values in cases:
            board.histogram("h", board.run.constant(values), 0)
        for values, (*_, found) in zip(cases, board.values(), strict=True):
            self.check_buckets(found, values)

    def test_layouts_and_halves(self):
        board = self.open()
        run = board.run
        x = RNG.standard_normal((2, 16, 4, 6)).astype("f")
        c = run.constant(x)
        part = run.op("tern_slice", run.op("tern_transpose", c, 0, 3), 2, *map(ctypes.c_int64, (1, 4, 2)))
        bf16 = torch.tensor(x).bfloat16().float().numpy()
        for tensor, want in ((part, x.transpose(3, 1, 2, 0)[:, :, 1:4:2]), (blocked(run, c), x), (run.op("tern_cast", c, BF16), bf16),
                             (run.op("tern_cast", c, F16), x.astype("f2")), (run.op("tern_cast", c, I32), x.astype("i4"))):
            board.histogram("h", tensor, 0)
            self.check(board.values()[-1][-1], want)

    def test_values_that_are_not_finite(self):
        board = self.open()
        board.histogram("h", board.run.constant(numpy.array([1, math.nan, -2, math.inf, -math.inf], "f")), 3)
        (tag, step, kind, found), other = board.values()
        self.check(found, numpy.array([1.0, -2.0]))
        self.assertEqual(other, ("h/nonfinite", 3, "scalar", 3))
        board.histogram("all", board.run.constant(numpy.full(4, math.nan)), 4)
        self.assertEqual(board.values()[2:], [("all/nonfinite", 4, "scalar", 4)])

    def test_of_a_module(self):
        """Parameters and gradients of all layers; what has no gradient has no histogram; nothing is recorded or changed."""
        board = self.open()
        run = board.run
        rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(3)))
        net = run.layer("tern_mlp_new", (ctypes.c_int64 * 3)(5, 7, 2), 3, rng)
        run.lib.tern_rng_free(rng)
        names = board.parameter_names(net)
        self.assertEqual(len(names), 4)
        find = lambda name: ctypes.c_void_p(run.lib.tern_state_find(net, name.encode()))
        run.lib.check("tern_requires_grad_set", find(names[1]), False)
        board.of_module("gradients", net, 0)
        self.assertEqual(board.values(), [])
        x = run.constant(RNG.standard_normal((4, 5)).astype("f"))
        y = run.forward(net, x)
        board.of_module("parameters", net, 1)
        run.backward(y, RNG.standard_normal((4, 2)).astype("f"))
        board.of_module("gradients", net, 2)
        found = {(tag, step): what for tag, step, _, what in board.values()}
        with_grad = names[:1] + names[2:]
        self.assertEqual(list(found), [(f"parameters/{n}", 1) for n in names] + [(f"gradients/{n}", 2) for n in with_grad])
        for name in names:
            self.check(found[f"parameters/{name}", 1], run.value(find(name)))
        for name in with_grad:
            self.check(found[f"gradients/{name}", 2], run.grad(find(name)))

    def test_a_parameter_without_elements_has_none(self):
        """Those after it have theirs. On its own it is an error, as in SummaryWriter."""
        board = self.open()
        run = board.run
        shapes = [(3,), (0, 8), (2, 5), (4, 0, 2), (1,)]
        parameters = [run.parameter(RNG.standard_normal(shape)) for shape in shapes]
        kept = [f"p{i}" for i, shape in enumerate(shapes) if 0 not in shape]
        board.of_module("parameters", ctypes.byref(run.module), 3)
        found = {tag: what for tag, step, _, what in board.values()}
        self.assertEqual(list(found), [f"parameters/{name}" for name in kept])
        for name in kept:
            self.check(found[f"parameters/{name}"], run.value(parameters[int(name[1:])]))
        with self.assertRaisesRegex(TernError, r"a tensor of shape \(0, 8\) has no elements"):
            board.histogram("h", parameters[1], 4)

    def test_a_shared_parameter_is_one(self):
        board = self.open()
        run = board.run
        tied = run.parameter(numpy.arange(4.0))
        run.lib.check("tern_parameter_share", ctypes.byref(run.module), b"again", tied)
        board.of_module("parameters", ctypes.byref(run.module), 0)
        self.assertEqual([tag for tag, *_ in board.values()], ["parameters/p0"])


if __name__ == "__main__":
    skips.main()
