"""bench/parallel: every way is started and measured, and the tables say what was."""
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.environ["TERN_SOURCE"], "bench", "parallel"))
import measure  # noqa: E402

SMALL = {"mlp": ("MLP", 8, 2), "resnet18": ("ResNet-18", 2, 1)}


def said(ms, memory):
    return {"median_ms": [ms, 9 * ms, ms], "samples_per_s": [1000 / ms] * 3, "pss_mb": [memory] * 3}


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
        self.assertEqual(text[0], "| MLP, batch 64 x 2 | samples/s | ms a step | MB a replica (PSS) | lines changed |")
        self.assertEqual(text[2], "| single | 125 (125..125) | 8 (8..72) | 30 (30..30) | 0 |")
        self.assertEqual([line.split(" | ")[-1] for line in text[3:]], ["5 |", "11 |", " |"])

    def test_other_work_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "not the same work"):
            measure.check_same_work({"single": {"loss_first": 2.31}, "DataParallel": {"loss_first": 2.32}})


class Ways(unittest.TestCase):
    """The real ones, on little work."""

    def test_a_round(self):
        cores = min(2, len(os.sched_getaffinity(0)))
        before = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, before)
        with tempfile.NamedTemporaryFile("r") as file, mock.patch.object(measure, "MODELS", SMALL), \
                mock.patch.object(sys, "argv", ["run.sh", "--cores", str(cores), "--json", file.name, "1"]), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            measure.main()
            found = json.load(file)
        self.assertEqual(len(re.findall(r"(?m)^\| (single|DataParallel|DDP|ranks apart) \|", out.getvalue())), 8)
        for ways in found["values"].values():
            for fields in ways.values():
                self.assertTrue(all(len(samples) == 1 and samples[0] > 0 for samples in fields.values()), fields)

    def test_a_copy_that_fails(self):
        broken = {"mlp": ("MLP", 8, 2)}
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
    unittest.main()
