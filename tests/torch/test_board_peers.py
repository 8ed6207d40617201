"""Boards beside the newest TensorBoard and PyTorch, from the environment that scripts/peers.sh makes: records are the bytes
of SummaryWriter's, images its pixels, and EventAccumulator reads all of it, also after crashes and resumes."""
import base64
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy

import events
from boards import Board, files

PYTHON = os.path.join(os.environ.get("TERN_PEERS", os.path.expanduser("~/.cache/tern-peers")), "bin", "python")
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "board_peer.py")
RNG = numpy.random.default_rng(0)


def peer(*args):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")}
    done = subprocess.run([PYTHON, PEER, *args], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bare(path):
    """The file's records without their times, and the first without who wrote it."""
    first, *rest = events.records(path)
    first = {number: value for number, value in events.fields(first).items() if number not in (1, 10)}
    return [first] + [record[9:] for record in rest]


class Beside(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.ours, self.theirs = os.path.join(folder.name, "ours"), os.path.join(folder.name, "theirs")
        self.folder = folder.name

    def open(self, **opts):
        return Board(self.ours, **opts)

    def write(self, calls, **arrays):
        """SummaryWriter's calls, with "@name" for an array."""
        calls_file, arrays_file = os.path.join(self.folder, "calls.json"), os.path.join(self.folder, "arrays.npz")
        with open(calls_file, "w") as file:
            json.dump([(name, args, options) for name, *args, options in calls], file)
        numpy.savez(arrays_file, **arrays)
        peer("write", self.theirs, calls_file, arrays_file)

    def read(self, *folders):
        return json.loads(peer("read", *(os.path.join(self.ours, f) for f in folders)))


class Records(Beside):
    def compare(self, folder=""):
        (mine,), (yours,) = files(os.path.join(self.ours, folder)), files(os.path.join(self.theirs, folder))
        self.assertEqual(bare(mine), bare(yours))

    def test_scalars_and_text(self):
        board = self.open()
        values = [0.0, 0.1, -1e-30, math.inf, -2.5]
        for step, value in enumerate(values):
            board.scalar("loss/é", value, step << 33)
        board.text("note", "# é\n|a|b|\n|-|-|\n|1|2|", 3)
        board.scalars("Loss/training", {"train_loss": 0.5, "val_loss": 0.25}, 7)
        board.close()
        self.write([("add_scalar", "loss/é", value, step << 33, {}) for step, value in enumerate(values)]
                   + [("add_text", "note", "# é\n|a|b|\n|-|-|\n|1|2|", 3, {}), ("add_scalars", "Loss/training", {"train_loss": 0.5, "val_loss": 0.25}, 7, {})])
        self.compare()
        self.compare("Loss_training_train_loss")
        self.compare("Loss_training_val_loss")
        self.assertEqual(sorted(f for f in os.listdir(self.ours) if "." not in f), sorted(f for f in os.listdir(self.theirs) if "." not in f))

    def test_histograms(self):
        """Of numbers whose sums are exact."""
        arrays = {"normal": numpy.round(RNG.standard_normal(3000) * 64) / 64, "one": numpy.array([0.5]), "zeros": numpy.zeros((3, 4)),
                  "negative": -numpy.ldexp(1.0, RNG.integers(-20, 20, 60)), "wide": numpy.ldexp(1.0, RNG.integers(-26, 26, 50)), "ints": RNG.integers(-50, 50, (4, 5)),
                  "bytes": RNG.integers(0, 256, 40, "u1"), "f32": RNG.integers(-9, 9, 70).astype("f")}
        board = self.open()
        for name, array in arrays.items():
            board.histogram(name, board.run.constant(array), 2)
        board.close()
        self.write([("add_histogram", name, "@" + name, 2, {}) for name in arrays], **arrays)
        self.compare()

    def test_images(self):
        arrays = {"NCHW": RNG.uniform(-0.25, 1.25, (11, 3, 6, 5)).astype("f"), "NHWC": RNG.integers(0, 256, (3, 4, 5, 1), "u1"), "CHW": RNG.uniform(0, 1, (3, 9, 2)),
                  "HWC": RNG.uniform(0, 1, (9, 2, 4)).astype("f"), "HW": RNG.standard_normal((20, 30)) > 0, "CNHW": RNG.uniform(0, 1, (1, 2, 3, 4)).astype("f")}
        board = self.open()
        for name, array in arrays.items():
            board.image(name, board.run.constant(array), 4, format=name.encode())
        board.close()
        self.write([("add_images" if len(name) == 4 else "add_image", name, "@" + name, 4, {"dataformats": name}) for name in arrays], **arrays)
        mine, yours = (events.values(files(folder)[0]) for folder in (self.ours, self.theirs))
        self.assertEqual([v[:3] for v in mine], [v[:3] for v in yours])
        for (name, *_, a), (*_, b) in zip(mine, yours):
            with self.subTest(format=name):
                self.assertEqual((a["height"], a["width"]), (b["height"], b["width"]))
                numpy.testing.assert_array_equal(self.colours(a), self.colours(b))

    def colours(self, image):
        """Grey as SummaryWriter writes it: thrice."""
        height, width, channels, pixels = events.png_pixels(image["png"])
        pixels = numpy.frombuffer(pixels, "u1").reshape(height, width, channels)
        return pixels.repeat(3, 2) if channels == 1 else pixels


class Reading(Beside):
    def test_every_kind(self):
        board = self.open()
        x = RNG.standard_normal(500)
        image = RNG.integers(0, 256, (3, 8, 9), "u1")
        for step in range(3):
            board.scalar("loss", step / 4, step)
            board.scalars("main/tag", {"a": step, "b": math.nan}, step)
        board.histogram("weights", board.run.constant(x), 5)
        board.image("picture", board.run.constant(image), 6)
        board.text("note", "*é*", 7)
        board.values()
        here, a, b = self.read("", "main_tag_a", "main_tag_b")
        self.assertEqual(here["scalars"], {"loss": [[s, repr(s / 4)] for s in range(3)]})
        self.assertEqual(a["scalars"], {"main/tag": [[s, repr(float(s))] for s in range(3)]})
        self.assertEqual(b["scalars"], {"main/tag": [[s, "nan"] for s in range(3)]})
        ((step, width, height, png),) = here["images"]["picture"]
        self.assertEqual((step, width, height), (6, 9, 8))
        self.assertEqual(events.png_pixels(base64.b64decode(png)), (8, 9, 3, image.transpose(1, 2, 0).tobytes()))
        ((step, histogram),) = here["histograms"]["weights"]
        self.assertEqual((step, histogram), (5, [v for v in board.values() if v[2] == "histogram"][0][3]))
        self.assertEqual(here["text"], {"note/text_summary": [[7, ["*é*"]]]})
        board.close()

    def test_a_resume_hides_what_is_done_again(self):
        for purge, first, steps in (-1, 0, 10), (5, 100, 3):
            board = self.open(purge_step=purge)
            for step in range(max(purge, 0), max(purge, 0) + steps):
                board.scalar("loss", first + step, step)
                board.scalars("c", {"d": first + step}, step)
            board.close()
        for folder, tag in ("", "loss"), ("c_d", "c"):
            (found,) = self.read(folder)
            self.assertEqual(found["scalars"][tag], [[s, repr(float(s))] for s in range(5)] + [[s, repr(100.0 + s)] for s in (5, 6, 7)])

    def test_after_a_crash(self):
        """The first file is cut off anywhere in its last record; a second one goes on."""
        board = self.open()
        for step in range(4):
            board.scalar("loss", step, step)
        board.close()
        (path,) = files(self.ours)
        last = 16 + len(events.records(path)[-1])
        board = self.open()
        board.scalar("loss", 9, 9)
        board.close()
        folders = []
        for cut in range(1, last):
            folders.append(f"../cut{cut}")
            shutil.copytree(self.ours, os.path.join(self.ours, folders[-1]))
            os.truncate(os.path.join(self.ours, folders[-1], os.path.basename(path)), os.path.getsize(path) - cut)
        for found in self.read(*folders):
            self.assertEqual(found["scalars"], {"loss": [[s, repr(float(s))] for s in (0, 1, 2, 9)]})


if __name__ == "__main__":
    if not os.path.exists(PYTHON):
        print(f"skipped: no {PYTHON}; scripts/peers.sh makes it, TERN_PEERS says where it is")
        sys.exit(0)
    unittest.main()
