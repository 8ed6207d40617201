"""bench/peers: the peers do tern's work, and the table says what they measured."""
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

PEERS = os.path.join(os.environ["TERN_SOURCE"], "bench", "peers")
sys.path.insert(0, PEERS)
import run  # noqa: E402


class Scripted:
    """A peer that says what it is told to, and writes down when."""

    def __init__(self, name, log, steps, reduces):
        self.name, self.log, self.steps, self.reduces = name, log, list(steps), reduces

    def step(self, model):
        self.log.append((self.name, model))
        return {"median_ms": self.steps.pop(0), "loss_first": 2.5}

    def all_reduce(self, ranks, memory):
        return self.reduces.get(memory)


ROWS = [("a step", "ms", ("step", "mlp"), "median_ms"), ("a sum", "us", ("all_reduce", 2, "window"), 4),
        ("the same", "us", ("all_reduce", 2, "plain"), 4)]


class Table(unittest.TestCase):
    def measured(self):
        self.log = []
        peers = [Scripted("ours", self.log, [5, 3, 4], {"window": {4: 1, ("bound", 4): 1.25}, "plain": {4: 2}}),
                 Scripted("theirs", self.log, [6, 60, 10], {"plain": {4: 8}}), Scripted("others", self.log, [1, 2, 3], {})]
        clock = iter([(100 + 10 * i, 50 + 6 * i, 20 + 5 * i) for i in range(6)])
        with mock.patch.object(run, "cpu_seconds", lambda: next(clock)):
            values, others = run.measure(ROWS, peers, 3, self.log.append)
        self.assertEqual(others, [10.0] * 3)
        names = [peer.name for peer in peers]
        return run.summary(ROWS, names, values), names

    def test_peers_take_turns(self):
        self.measured()
        turn = [("ours", "mlp"), ("theirs", "mlp"), ("others", "mlp")]
        said = [f"round {number} of 3: others used 10 % of the cores meanwhile" for number in (1, 2, 3)]
        self.assertEqual(self.log, [*turn, said[0], *turn, said[1], *turn, said[2]])

    def test_others_are_what_is_busy_and_not_ours(self):
        before = run.cpu_seconds()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        passed, busy, own = (late - early for early, late in zip(before, run.cpu_seconds()))
        self.assertTrue(0 < own < busy + 0.1 and busy < passed + 0.1, (passed, busy, own))
        self.assertEqual(run.others_percent((0, 0, 0), (2, 1, 1.1)), 0)

    def test_ratios_are_of_medians(self):
        lines, _ = self.measured()
        self.assertEqual(lines[0]["samples"], {"ours": [5, 3, 4], "theirs": [6, 60, 10], "others": [1, 2, 3]})
        self.assertEqual(lines[0]["ratio"], {"ours": 1, "theirs": 2.5, "others": 0.5})

    def test_who_has_no_windows_is_compared_by_ordinary_memory(self):
        lines, _ = self.measured()
        self.assertEqual(lines[1]["ratio"], {"ours": 1, "theirs": 8})
        self.assertEqual(lines[2]["ratio"], {"ours": 1, "theirs": 4})
        self.assertEqual([line["bound_ratio"] for line in lines], [None, 1.25, None])

    def test_text(self):
        text = run.table(*self.measured()).splitlines()
        self.assertEqual([" ".join(line.split()) for line in text], [
            "median (lowest..highest) unit ours of bound theirs ratio others ratio", "a step ms 4 (3..5) 10 (6..60) 2.50 2 (1..3) 0.50",
            "a sum us 1 (1..1) 1.25 8 (8..8) 8.00 -", "the same us 2 (2..2) 8 (8..8) 4.00 -"])
        self.assertEqual({line.index(word) for line, word in zip(text, ("unit", "ms", "us"))}, {text[0].index("unit")})

    def test_other_work_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "not the same work"):
            run.check_same_work({"ours": {"loss_first": 2.31}, "theirs": {"loss_first": 2.32}, "sums": {4: 1.0}})


class Peers(unittest.TestCase):
    """The real ones, on little work. PyTorch is the tests' own; Open MPI takes part where it is installed."""

    SMALL = {"STEPS": {"mlp": (8, 4), "resnet18": (2, 1)}, "SIZES": {4: "4 B", 65536: "64 KB"},
             "ROWS": [("mlp", "ms", run.MLP, "median_ms"), ("start", "ms", run.MLP, "first_step_ms"),
                      ("resnet18", "MB", run.RESNET, "peak_rss_mb"), ("sum", "us", ("all_reduce", 2, "window"), 65536),
                      ("plain sum", "us", ("all_reduce", 2, "plain"), 4)]}

    def test_a_round(self):
        with tempfile.NamedTemporaryFile("r") as file, mock.patch.multiple(run, **self.SMALL), \
                mock.patch.object(run, "check_same_work", wraps=run.check_same_work) as check, \
                mock.patch.object(sys, "argv", ["run.sh", "--profile", "--json", file.name, "1"]), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            run.main()
            found = json.load(file)
        self.assertGreater(found["machine"]["cores"], 0)
        self.assertEqual(len(re.findall("(?m)^kernel ", out.getvalue())), 2)
        self.assertEqual([line["model"] for line in found["profiles"] if line["profile"]["rows"]], ["mlp", "resnet18"])
        for line in found["rows"]:
            self.check_line(line)
        steps = [call.args[0] for call in check.call_args_list if "loss_last" in call.args[0]["tern"]]
        self.assertEqual(len(steps), 2)
        for said in steps:
            self.check_losses(*list(said.values())[:2])

    def check_line(self, line):
        names = list(line["samples"])
        self.assertEqual(names[0], "tern")
        self.assertTrue(names[1].startswith("PyTorch 1."), names)
        for name in names:
            takes_part = not name.startswith("Open MPI") or "sum" in line["row"]
            self.assertEqual(len(line["samples"][name]), takes_part, (line["row"], name))
            self.assertTrue(all(sample > 0 for sample in line["samples"][name]))

    def check_losses(self, ours, theirs):
        for name in ("model", "ranks", "batch", "dtype", "steps"):
            self.assertEqual(ours[name], theirs[name])
        for name in ("loss_first", "loss_last"):
            self.assertAlmostEqual(ours[name], theirs[name], delta=1e-4)

    def test_mistakes(self):
        nowhere = {**os.environ, "TERN_BUILD": "/nowhere"}
        for args, env, code, text in ((["0"], None, 2, "rounds: expected 1 or more"), (["--fast"], None, 2, "--fast"),
                                      ([], nowhere, 1, "run.sh: /nowhere/tern is not there")):
            done = subprocess.run([os.path.join(PEERS, "run.sh"), *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stdout), (code, ""))
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
