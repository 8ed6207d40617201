"""bench_parts: the JSON lines of each bench, alone and on two ranks, and the errors for wrong options."""
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

import skips

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../cli"))
import job  # noqa: E402


def refused(test, args, text):
    job.refused(test, "bench_parts", [job.PARTS, *args], text)


class Conv(unittest.TestCase):
    CASES = ("--case", "2,16,9,8:32,3,3", "--case", "1,3,7,7:5,1,1", "--case", "1,16,4,5,6:16,3,3,3:2:1")

    def test_every_algorithm_that_takes_a_case(self):
        """The direct algorithm supports all cases; algorithms that round more than f32 products are no worse than pairs of bf16."""
        lines = job.bench(1, job.PARTS, "conv", *self.CASES, "--rounds", "2")
        self.assertEqual([(line["case"], line["kernel"]) for line in lines if line["algorithm"] == "direct"],
                         [(case, kernel) for case in ("2,16,9,8:32,3,3", "1,3,7,7:5,1,1", "1,16,4,5,6:16,3,3,3:2:1:1")
                          for kernel in ("conv", "conv_data_grad", "conv_weight_grad")])
        for line in lines:
            self.assertTrue(line["median_ms"] > 0 and line["gflops"] > 0, line)
            self.assertTrue(0 < line["error"] < (1e-6 if line["algorithm"] == "direct" else 2e-5), line)

    def test_text(self):
        code, out, err = job.run(job.PARTS, "conv", *self.CASES[:2], "--rounds", "1", "--no-error")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^case +kernel +direct ms +GFLOPS .*\n2,16,9,8:32,3,3 +conv +[\d.]+ +\d+")

    def test_wrong_options(self):
        for shape in ("", "1", "1,2,3:4", "1,2,3,4:5", "1,2,3,4:5,3", "0,2,3,4:5,3,3", "1,2,3,4:5,9,9:1:0", "1,2,3,4:5,3,3:x",
                      "1,2,3,4:5,3,3:1:1:1:1"):
            refused(self, ["conv", "--case", shape], "expected a shape")
        refused(self, ["conv", "--rounds", "0"], "--rounds: expected a number")
        refused(self, ["conv", "--dtype", "f64"], "expected f32 or bf16")
        refused(self, ["conv", "more"], "unexpected")


class Matmul(unittest.TestCase):
    CASES = ("--case", "7,30,10:nt", "--case", "64,9,25:tn")

    def test_a_line_an_algorithm(self):
        lines = job.bench(1, job.PARTS, "matmul", *self.CASES, "--rounds", "2")
        self.assertEqual([(line["case"], line["algorithm"]) for line in lines],
                         [(case, name) for case in ("7,30,10:nt", "64,9,25:tn") for name in ("f32_matmul", "oneDNN")])
        for line, flops in zip(lines, (4200, 4200, 28800, 28800)):
            self.assertAlmostEqual(line["gflops"] * line["median_ms"] * 1e6 / flops, 1, places=6)
            self.assertGreater(line["peak_gflops"], 0)

    def test_text(self):
        code, out, err = job.run(job.PARTS, "matmul", *self.CASES[:2], "--rounds", "1")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^one core reaches [\d.]+ GFLOPS\nproduct +f32_matmul ms .*\n7,30,10:nt +[\d. ]+\n$")

    def test_mistakes(self):
        for text in ("", "1,2", "1,2,3", "1,2,3:n", "1,2,3:nx", "1,2,3:nnn", "0,2,3:nn", "1,2,65537:nn"):
            refused(self, ["matmul", "--case", text], "expected a product")
        refused(self, ["matmul", "--rounds", "0"], '--rounds: expected a number from 1 to 1000, got "0"')


class Optimizer(unittest.TestCase):
    def test_a_line_an_optimizer_and_thread_count(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                lines = job.bench(ranks, job.PARTS, "optimizer", "--elements", "70001", "--rounds", "3")
                threads = sorted({line["threads"] for line in lines})
                self.assertEqual(threads[0], 1)
                self.assertLessEqual(len(threads), 2)
                self.assertEqual([(line["threads"], line["optimizer"]) for line in lines],
                                 [(t, name) for t in threads for name in ("sgd", "adam")])
                for line in lines:
                    self.assertEqual((line["ranks"], line["elements"]), (ranks, 70001))
                    moved = 4 * 70001 * {"sgd": 5, "adam": 7}[line["optimizer"]]
                    self.assertAlmostEqual(line["gbs"] * line["median_ms"] * 1e6 / moved, 1, places=6)
                    self.assertGreater(line["copy_gbs"], 0)

    def test_text(self):
        code, out, err = job.run(job.PARTS, "optimizer", "--elements", "100", "--rounds", "1")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^optimizers over 100 f32, 1 rank\n *optimizer .*\n(sgd|adam) +1 +[\d. ]+ %\n")

    def test_mistakes(self):
        for args, text in ((["--elements", "0"], '--elements: expected a number from 1 to 1073741824, got "0"'),
                           (["--rounds", "1001"], '--rounds: expected a number from 1 to 1000, got "1001"'),
                           (["--rounds", "many"], 'got "many"'), (["now"], 'unexpected "now"'), (["--fast"], "'--fast'")):
            with self.subTest(args=args):
                refused(self, ["optimizer", *args], text)


class Board(unittest.TestCase):
    CALLS = ["scalar", "scalar, csv, jsonl", "histogram", "image"]

    def test_a_line_a_call(self):
        """It also removes its files."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"TMPDIR": folder}):
            lines = job.bench(1, job.PARTS, "board", "--rounds", "3")
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual([line["call"] for line in lines], self.CALLS)
        for line in lines:
            self.assertTrue(0 < line["median_us"] < 10e6)

    def test_text(self):
        code, out, err = job.run(job.PARTS, "board", "--rounds", "1")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual([re.split("  +", line)[0] for line in out.splitlines()], ["call", *self.CALLS])

    def test_mistakes(self):
        for args, text in ((["--rounds", "0"], '--rounds: expected a number from 1 to 1000, got "0"'), (["now"], 'unexpected "now"')):
            with self.subTest(args=args):
                refused(self, ["board", *args], text)
        with mock.patch.dict(os.environ, {"TMPDIR": "/nowhere"}):
            code, out, err = job.run(job.PARTS, "board")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("cannot make /nowhere/tern-board-", err)


class Generate(unittest.TestCase):
    def test_figures(self):
        for model, read in (("gpt2", 4 * (50257 * 768 + 12 * 768 * 768 + 15 * 768)), ("llama", 4 * (32000 * 768 + (2 + 2 / 3 + 8) * 768 * 768 + 3 * 768))):
            line, = job.bench(1, job.PARTS, "generate", "--model", model, "--layers", "1", "--tokens", "2", "--rounds", "1")
            self.assertEqual((line["model"], line["dtype"]), (model, "f32"))
            self.assertEqual(line["bytes"], read)
            for name in ("token_ms", "read_ms", "greedy_ms", "top_p_ms"):
                self.assertTrue(0 < line[name] < 1e5, name)

    def test_mistakes(self):
        for args, text in ((["--dtype", "f8"], "expected f32 or bf16 or f16"), (["--tokens", "0"], "expected a number from 1 to 512"), (["now"], 'unexpected "now"')):
            refused(self, ["generate", *args], text)


class Bench(unittest.TestCase):
    def test_which(self):
        refused(self, [], "expected a bench\n")
        refused(self, ["step"], 'expected a bench, got "step"')
        for name in ("conv", "optimizer", "board", "generate", "matmul"):
            code, out, err = job.run(job.PARTS, name, "--help")
            self.assertEqual((code, err), (0, ""))
            self.assertTrue(out.startswith(f"usage: bench_parts {name} "))

    def test_a_bench_without_its_output_has_failed(self):
        with open("/dev/full", "w") as full:
            code, _, err = job.run(job.PARTS, "optimizer", "--elements", "100", "--rounds", "1", stdout=full)
        self.assertEqual((code, err), (1, "bench_parts: cannot write: No space left on device\n"))

    def test_words_do_nothing_to_a_terminal(self):
        evil, shown = "p\x1b]0;title\x07\x9b31m\u202e\n\udcffä", r"p\x1b]0;title\a\u009b31m\u202e\n\xffä"
        refused(self, ["conv", "--case", evil], shown)
        self.assertEqual(set(re.findall(r"[\x00-\x1f\x7f-\x9f\u202e\udcff]", job.run(job.PARTS, "conv", "--case", evil)[2])), {"\n"})


if __name__ == "__main__":
    skips.main()
