"""bench/modes: every way is started and measured, and the tables show the results."""
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

import skips

sys.path.insert(0, os.path.join(os.environ["TERN_SOURCE"], "bench", "modes"))
import measure  # noqa: E402

import events  # noqa: E402

SMALL = {"mlp": ("MLP", 8, 2, 60000), "resnet18": ("ResNet-18", 2, 1, 50000)}


def said(ms, memory):
    return {"median_ms": [ms, 9 * ms, ms], "samples_per_s": [1000 / ms] * 3, "epoch_s": [10 * ms] * 3, "pss_mb": [memory] * 3}


VALUES = {model: {"single": said(8, 30), "DataParallel": said(5, 10), "DDP": said(4, 22), "ranks apart": said(3.2, 20)} for model in SMALL}


class Tables(unittest.TestCase):
    def test_ratios_are_of_medians(self):
        found = {what: (got, aim) for what, got, aim in measure.aims(VALUES)}
        self.assertEqual(len(found), 6)
        for title, apart in (("ResNet-18", 1.05), ("MLP", 1.2)):
            self.assertEqual(found[f"{title}: DDP's step / that of ranks apart"], (1.25, apart))
            self.assertEqual(found[f"{title}: DataParallel's step / DDP's"], (1.25, 1.05))
            self.assertEqual(found[f"{title}: DDP's memory of a rank / apart"], (1.1, 1.05))

    def test_text(self):
        text = measure.table("mlp", VALUES["mlp"], 2).splitlines()
        self.assertEqual(text[0], "| MLP, batch 64 x 2 | processes x threads | s an epoch of 60000 | ms a step | MB a replica (PSS) | lines changed |")
        self.assertEqual(text[2], "| single | 1 x 2 | 80 (80..80) | 8 (8..72) | 30 (30..30) | 0 |")
        self.assertEqual([line.split(" | ")[1] for line in text[2:]], ["1 x 2", "1 x 2", "2 x 1", "2 x 1"])
        self.assertEqual([line.split(" | ")[-1] for line in text[3:]], ["5 |", "11 |", " |"])

    def test_other_work_is_refused(self):
        for one, other, most in measure.SAME + measure.SAME_MLP:
            for less, more in ((2.31, 2.31 + 1.1 * most + 1e-9), (2.31, float("nan"))):
                with self.assertRaisesRegex(SystemExit, f"not the same work: the first losses of {one} and {other}"):
                    measure.check_same_work({one: {"loss_first": less}, other: {"loss_first": more}}, [(one, other, most)])
            measure.check_same_work({one: {"loss_first": 2.31}, other: {"loss_first": 2.31 + 0.9 * most}}, [(one, other, most)])
        measure.check_same_work({"single": {"loss_first": 2.31}}, measure.SAME)  # no PyTorch

    def test_an_epoch_is_of_its_samples(self):
        fields = measure.fields_of("mlp", {"median_ms": 1, "samples_per_s": 30000, "pss_mb": 2, "peak_rss_mb": 3})
        self.assertEqual(fields["epoch_s"], 2)


class Ways(unittest.TestCase):
    """The real ways on little work."""

    def test_a_round(self):
        cores = min(2, len(os.sched_getaffinity(0)))
        before = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, before)
        with tempfile.NamedTemporaryFile("r") as file, tempfile.NamedTemporaryFile("rb", suffix=".png") as picture, mock.patch.object(measure, "MODELS", {"mlp": SMALL["mlp"]}), \
                mock.patch.object(sys, "argv", ["run.sh", "--cores", str(cores), "--json", file.name, "--chart", picture.name, "1"]), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            measure.main()
            found = json.load(file)
            with open(picture.name, "rb") as drawn:  # the file has been replaced by now
                height, width, _, _ = events.png_pixels(drawn.read())
        ways = [*measure.WAYS, "PyTorch single", "PyTorch DDP"]
        for way in ways:
            self.assertEqual(len(re.findall(rf"(?m)^\| {way} \|", out.getvalue())), 1, way)
        self.assertEqual(list(found["values"]["mlp"]), ways)
        self.assertTrue(width == 1640 and height > 300)
        for ways in found["values"].values():
            for fields in ways.values():
                self.assertTrue(all(len(samples) == 1 and samples[0] > 0 for samples in fields.values()), fields)

    def test_a_copy_that_fails(self):
        broken = {"mlp": ("MLP", 8, 2, 60000)}
        real = measure.command
        with mock.patch.object(measure, "MODELS", broken), \
                mock.patch.object(measure, "command", lambda model, batch, steps: real(model, batch, steps) if steps == 2 else ["false"]):
            with self.assertRaisesRegex(SystemExit, "a copy of the rank has failed"):
                measure.beside_copies("mlp", 2)

    def test_wrong_arguments(self):
        for args, text in ((["0"], "rounds: expected 1 or more"), (["--cores", "0"], "--cores: expected 1 to")):
            with mock.patch.object(sys, "argv", ["run.sh", *args]), contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertRaises(SystemExit, measure.main)
            self.assertIn(text, err.getvalue())


if __name__ == "__main__":
    skips.main()
