"""Boards compared with the newest TensorBoard and PyTorch: records have the bytes of SummaryWriter's, images its
pixels, and EventAccumulator reads all of them, also after crashes and resumes."""
import math
import os
import shutil

import peers
import skips
from folder import InFolder

peers.enter()

import numpy  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # noqa: E402
from torch.utils.tensorboard import SummaryWriter  # noqa: E402
from torch.utils.tensorboard.summary import hparams  # noqa: E402

import events  # noqa: E402
from boards import Board, files  # noqa: E402

RNG = numpy.random.default_rng(0)
KINDS = "scalars", "images", "histograms", "tensors"


def bare(path):
    """The file's records without their times, the first one also without its writer."""
    first, *rest = events.records(path)
    first = {number: value for number, value in events.fields(first).items() if number not in (1, 10)}
    return [first] + [record[9:] for record in rest]


class Beside(InFolder):
    def setUp(self):
        super().setUp()
        self.ours, self.theirs = os.path.join(self.folder, "ours"), os.path.join(self.folder, "theirs")


class Records(Beside):
    def compare(self, folder=""):
        (mine,), (yours,) = files(os.path.join(self.ours, folder)), files(os.path.join(self.theirs, folder))
        self.assertEqual(bare(mine), bare(yours))

    def test_scalars_and_text(self):
        board = Board(self.ours)
        with SummaryWriter(self.theirs) as writer:
            for step, value in enumerate([0.0, 0.1, -1e-30, math.inf, -2.5]):
                board.scalar("loss/é", value, step << 33)
                writer.add_scalar("loss/é", value, step << 33)
            for note in board.text, writer.add_text:
                note("note", "# é\n|a|b|\n|-|-|\n|1|2|", 3)
            for scalars in board.scalars, writer.add_scalars:
                scalars("Loss/training", {"train_loss": 0.5, "val_loss": 0.25}, 7)
        board.close()
        folders = [sorted(name for name in os.listdir(path) if not name.startswith("events.")) for path in (self.ours, self.theirs)]
        self.assertEqual(*folders)
        for folder in "", *folders[0]:
            self.compare(folder)

    def test_histograms(self):
        """Of numbers whose sums are exact."""
        board = Board(self.ours)
        with SummaryWriter(self.theirs) as writer:
            for array in (numpy.round(RNG.standard_normal(3000) * 64) / 64, numpy.array([0.5]), numpy.zeros((3, 4)), -numpy.ldexp(1.0, RNG.integers(-20, 20, 60)),
                          numpy.ldexp(1.0, RNG.integers(-26, 26, 50)), RNG.integers(-50, 50, (4, 5)), RNG.integers(0, 256, 40, "u1"), RNG.integers(-9, 9, 70).astype("f")):
                board.histogram("h", board.run.constant(array), 2)
                writer.add_histogram("h", array, 2)
        board.close()
        self.compare()

    def test_images(self):
        arrays = {"NCHW": RNG.uniform(-0.25, 1.25, (11, 3, 6, 5)).astype("f"), "NHWC": RNG.integers(0, 256, (3, 4, 5, 1), "u1"), "CHW": RNG.uniform(0, 1, (3, 9, 2)),
                  "HWC": RNG.uniform(0, 1, (9, 2, 4)).astype("f"), "HW": RNG.standard_normal((20, 30)) > 0, "CNHW": RNG.uniform(0, 1, (1, 2, 3, 4)).astype("f")}
        board = Board(self.ours)
        with SummaryWriter(self.theirs) as writer:
            for format, array in arrays.items():
                board.image(format, board.run.constant(array), 4, format=format.encode())
                (writer.add_images if len(format) == 4 else writer.add_image)(format, array, 4, dataformats=format)
        board.close()
        mine, yours = (events.values(files(folder)[0]) for folder in (self.ours, self.theirs))
        self.assertEqual([v[:3] for v in mine], [(format, 4, "image") for format in arrays])
        self.assertEqual([v[:3] for v in mine], [v[:3] for v in yours])
        for (format, *_, a), (*_, b) in zip(mine, yours):
            with self.subTest(format=format):
                self.assertEqual((a["height"], a["width"]), (b["height"], b["width"]))
                numpy.testing.assert_array_equal(self.colours(a), self.colours(b))

    def test_hparams(self):
        """As messages, since a map has no order; SummaryWriter makes numbers of bools."""
        values = {"lr": 0.1, "batch": 8, "optim": "sgd é"}
        board = Board(self.ours)
        board.hparams(values, ["loss"])
        mine = [HParamsPluginData.FromString(content) for *_, (_, content) in board.values()]
        yours = [HParamsPluginData.FromString(s.value[0].metadata.plugin_data.content) for s in hparams(values, {"loss": 0.0})]
        self.assertEqual(mine, yours[:2])
        board.close()

    def colours(self, image):
        """Grey as SummaryWriter writes it: three equal channels."""
        height, width, channels, pixels = events.png_pixels(image["png"])
        pixels = numpy.frombuffer(pixels, "u1").reshape(height, width, channels)
        return pixels.repeat(3, 2) if channels == 1 else pixels


class Reading(Beside):
    def read(self, folder=""):
        found = EventAccumulator(os.path.join(self.ours, folder), size_guidance={kind: 0 for kind in KINDS})
        return found.Reload()

    def points(self, tag, folder=""):
        return [(e.step, e.value) for e in self.read(folder).Scalars(tag)]

    def test_every_kind(self):
        board = Board(self.ours)
        image = RNG.integers(0, 256, (3, 8, 9), "u1")
        for step in range(3):
            board.scalar("loss", step / 4, step)
            board.scalars("main/tag", {"a": step, "b": 2 * step}, step)
        board.histogram("weights", board.run.constant(RNG.standard_normal(500)), 5)
        board.image("picture", board.run.constant(image), 6)
        board.text("note", "*é*", 7)
        written = board.values()
        found = self.read()
        self.assertEqual({kind: found.Tags()[kind] for kind in KINDS},
                         {"scalars": ["loss"], "images": ["picture"], "histograms": ["weights"], "tensors": ["note/text_summary"]})
        self.assertEqual(self.points("loss"), [(s, s / 4) for s in range(3)])
        self.assertEqual(self.points("main/tag", "main_tag_a"), [(s, s) for s in range(3)])
        self.assertEqual(self.points("main/tag", "main_tag_b"), [(s, 2 * s) for s in range(3)])
        (picture,) = found.Images("picture")
        self.assertEqual((picture.step, picture.width, picture.height), (6, 9, 8))
        self.assertEqual(events.png_pixels(picture.encoded_image_string), (8, 9, 3, image.transpose(1, 2, 0).tobytes()))
        (histogram,) = found.Histograms("weights")
        (what,) = [v[3] for v in written if v[2] == "histogram"]
        h = histogram.histogram_value
        self.assertEqual((histogram.step, list(h.bucket_limit), list(h.bucket)), (5, what["limits"], what["counts"]))
        self.assertEqual((h.min, h.max, h.num, h.sum, h.sum_squares), tuple(what[n] for n in "min max num sum sum_squares".split()))
        (note,) = found.Tensors("note/text_summary")
        self.assertEqual((note.step, list(note.tensor_proto.string_val)), (7, ["*é*".encode()]))
        self.assertEqual(list(found.PluginTagToContent("text")), ["note/text_summary"])
        board.close()

    def test_a_resume_hides_what_is_done_again(self):
        for purge, value, steps in (-1, 0, range(10)), (5, 100, range(5, 8)):
            board = Board(self.ours, purge_step=purge)
            for step in steps:
                board.scalar("loss", value + step, step)
                board.scalars("c", {"d": value + step}, step)
            board.close()
        for tag, folder in ("loss", ""), ("c", "c_d"):
            self.assertEqual(self.points(tag, folder), [(s, s) for s in range(5)] + [(s, 100 + s) for s in (5, 6, 7)])

    def test_after_a_crash(self):
        """The first file is cut off within its last record; a second one continues it."""
        for steps in range(4), [9]:
            board = Board(self.ours)
            for step in steps:
                board.scalar("loss", step, step)
            board.close()
        path = files(self.ours)[0]
        last = 16 + len(events.records(path)[-1])
        for cut in range(1, last + 1):
            folder = os.path.join(self.folder, str(cut))
            shutil.copytree(self.ours, folder)
            os.truncate(os.path.join(folder, os.path.basename(path)), os.path.getsize(path) - cut)
            self.assertEqual(self.points("loss", folder), [(s, s) for s in (0, 1, 2, 9)])


if __name__ == "__main__":
    skips.main()
