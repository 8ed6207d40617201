"""tern bench: one JSON object a line, alone and on two ranks, and what it refuses."""
import json
import os
import re
import resource
import tempfile
import time
import unittest
from unittest import mock

import job


def bench(ranks, *args):
    """What rank 0 printed, line by line; any other output fails."""
    command = ["bench", *args, "--json"]
    if ranks > 1:
        command = ["run", "-n", str(ranks), job.TERN, *command]
    code, out, err = job.tern(*command)
    assert (code, err) == (0, ""), (code, out, err)
    return [json.loads(line) for line in out.splitlines()]


def refused(test, args, text):
    code, out, err = job.tern("bench", *args)
    test.assertEqual((code, out), (2, ""))
    test.assertTrue(err.startswith("tern bench"), err)
    test.assertIn(text, err)


class Step(unittest.TestCase):
    def test_mlp_alone_and_on_two_ranks(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                (line,) = bench(ranks, "step", "--batch", "16", "--steps", "5")
                want = {"model": "mlp", "ranks": ranks, "batch": 16, "dtype": "f32", "steps": 5}
                self.assertEqual({name: line.get(name) for name in want}, want)
                self.assertTrue(0 < line["min_ms"] <= line["median_ms"] < 10e3)
                self.assertAlmostEqual(line["samples_per_s"] * line["median_ms"] / (16e3 * ranks), 1, places=6)
                # 784-1024-1024-10: 1.9 million parameters, their gradients and their momentum
                self.assertTrue(20 < line["peak_rss_mb"] < 2000)
                self.assertTrue(20 < line["pss_mb"] <= line["peak_rss_mb"])
                self.assertTrue(0 < line["loss_last"] < line["loss_first"] < 4)

    def test_dtypes(self):
        """The same training to rounding, in half the tensors; what goes over has a dtype of its own."""
        (f32,), (bf16,) = (bench(2, "step", "--batch", "256", "--steps", "2", *options) for options in ((), ("--dtype", "bf16", "--reduce", "bf16")))
        self.assertEqual([(line["dtype"], line["reduce"]) for line in (f32, bf16)], [("f32", "f32"), ("bf16", "bf16")])
        for name in ("loss_first", "loss_last"):
            self.assertNotEqual(f32[name], bf16[name])
            self.assertAlmostEqual(f32[name] / bf16[name], 1, places=1)
        parameters = 1024 * 784 + 1024 * 1024 + 10 * 1024 + 1024 + 1024 + 10
        self.assertAlmostEqual(f32["reduced_mb"] * 2**20 / (4 * parameters), 1, places=2)
        self.assertAlmostEqual(bf16["reduced_mb"] * 2**20 / (2 * parameters), 1, places=2)
        self.assertTrue(0 < bf16["tensor_mb"] and 0 < f32["tensor_mb"])

    def test_opt_levels(self):
        """O0 is the plain step bit for bit, O1 the same training to rounding."""
        (plain,), (o0,), (o1,) = (bench(2, "step", "--batch", "64", "--steps", "2", *options)
                                  for options in ((), ("--opt-level", "O0"), ("--opt-level", "O1")))
        self.assertEqual([line.get("opt_level") for line in (plain, o0, o1)], [None, "O0", "O1"])
        for name in ("loss_first", "loss_last"):
            self.assertEqual(plain[name], o0[name])
            self.assertNotEqual(plain[name], o1[name])
            self.assertAlmostEqual(plain[name] / o1[name], 1, places=1)

    def test_a_sharded_optimizer_has_half_the_state_and_the_same_bits(self):
        (plain,), (shard,) = (bench(2, "step", "--batch", "8", "--steps", "2", *options) for options in ((), ("--shard",)))
        self.assertEqual(plain["loss_last"], shard["loss_last"])
        self.assertAlmostEqual(shard["state_mb"] / plain["state_mb"], 0.5, places=2)

    def test_data_parallel_is_the_same_training(self):
        """Of one rank, whose replicas share its rows."""
        (one,), (split,) = (bench(1, "step", "--batch", "8", "--steps", "3", *options) for options in ((), ("--data-parallel",)))
        self.assertEqual((one["replicas"], split["replicas"]), (1, len(os.sched_getaffinity(0))))
        for name in ("loss_first", "loss_last"):
            self.assertAlmostEqual(one[name], split[name], places=5)

    def test_losses_repeat(self):
        first, again = (bench(2, "step", "--batch", "8", "--steps", "2")[0] for _ in range(2))
        for name in ("loss_first", "loss_last"):
            self.assertEqual(first[name], again[name])

    def test_text(self):
        code, out, err = job.tern("bench", "step", "--batch", "8", "--steps", "1")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^mlp, f32, 1 rank, batch 8 x 1: median [\d.]+ ms, .* loss [\d.]+ -> [\d.]+\n1 rank \(start with .*\)\n$")

    def test_profile_counts_what_a_step_costs(self):
        (line,) = bench(2, "step", "--batch", "16", "--steps", "3", "--profile")
        profile = line["profile"]
        rows = {row["kernel"]: row for row in profile["rows"]}
        self.assertEqual(len(rows), len(profile["rows"]))
        layers = [1024 * 784, 1024 * 1024, 10 * 1024]
        products = layers + layers + layers[1:]  # outputs, gradients of weights, of what the layers got
        row = rows["matmul"]
        self.assertEqual(row["calls"], len(products))
        self.assertAlmostEqual(row["gflops"] * row["ms"] * 1e6 / (2 * 16 * sum(products)), 1, places=6)
        self.assertAlmostEqual(row["peak_percent"] * profile["machine_gflops"] / (100 * row["gflops"]), 1, places=6)
        parameters = sum(layers) + 1024 + 1024 + 10
        self.assertEqual(rows["sgd"]["gflops"], 0)
        for row in rows.values():
            self.assertAlmostEqual(row["gbs"] * row["ms"] * 1e6 / (row["bytes_a_call"] * row["calls"]), 1, places=6)
            self.assertAlmostEqual(row["copy_percent"] * profile["machine_copy_gbs"] / (100 * row["gbs"]), 1, places=6)
        sgd = rows["sgd"]["bytes_a_call"] * rows["sgd"]["calls"] / (4 * parameters)  # g, p and momentum, read and written
        self.assertTrue(5 <= sgd < 5.01, sgd)  # each parameter begins on a cache line

    def test_profile_adds_up(self):
        (line,) = bench(1, "step", "--batch", "16", "--steps", "3", "--profile=shapes")
        profile = line["profile"]
        times = [row["ms"] for row in profile["rows"]]
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertAlmostEqual((sum(times) + profile["outside_ms"]) / profile["step_ms"], 1, places=6)
        self.assertGreater(profile["outside_ms"], 0)
        calls = {row["shapes"]: row["calls"] for row in profile["rows"] if row["kernel"] == "matmul"}
        outputs = {"16x784 784x1024 > 16x1024": 1, "16x1024 1024x10 > 16x10": 1}
        gradients = {"1024x16 16x784 > 1024x784": 1, "1024x16 16x1024 > 1024x1024": 1, "10x16 16x1024 > 10x1024": 1,
                     "16x10 10x1024 > 16x1024": 1}
        self.assertEqual(calls, {**outputs, **gradients, "16x1024 1024x1024 > 16x1024": 2})  # one of each

    def test_profile_as_text(self):
        code, out, err = job.tern("bench", "step", "--batch", "8", "--steps", "1", "--profile=shapes")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"(?m)^rank 0, a mean step of 1; its threads reach [\d.]+ GFLOPS and copy [\d.]+ GB/s out of cache$")
        self.assertRegex(out, r"(?m)^matmul +1\.0( +[\d.]+){7}  1024x8 8x784 > 1024x784$")
        self.assertRegex(out, r"(?m)^nll_loss +1\.0( +[\d.]+){2} +- +-( +[\d.]+){3}  8x10 8 > \(\)$")
        self.assertRegex(out, r"\noutside of kernels( +[\d.]+){2}\n$")

    def test_profile_says_when_memory_runs_out(self):
        def within(megabytes, *options):
            limits = (megabytes << 20, megabytes << 20)
            return job.tern("bench", "step", "--batch", "8", "--steps", "1", *options, env={**os.environ, "OMP_NUM_THREADS": "1"},
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limits))

        enough = next((size for size in range(64, 2048, 32) if within(size)[0] == 0), None)
        if not enough:
            self.skipTest("a sanitizer's address space has no such limit")
        code, out, err = within(enough + 32, "--profile")  # the copy takes 128 MB at least
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, r"^tern: tern bench: out of memory: \d+ bytes\n$")

    def test_first_step_is_counted_from_the_launcher(self):
        (alone,) = bench(1, "step", "--batch", "8", "--steps", "1")
        self.assertIsNone(alone["first_step_ms"])
        started = time.monotonic()
        (line,) = bench(2, "step", "--batch", "8", "--steps", "1")
        self.assertTrue(line["median_ms"] < line["first_step_ms"] < (time.monotonic() - started) * 1e3)

    def test_first_step_is_counted_from_where_the_caller_says(self):
        minute_ago = {**os.environ, "TERN_STARTED_NS": str(time.monotonic_ns() - 60 * 10**9)}
        code, out, err = job.tern("run", "-n", "2", job.TERN, "bench", "step", "--batch", "8", "--steps", "1", env=minute_ago)
        self.assertEqual((code, err), (0, ""))
        self.assertTrue(60e3 < float(re.search(r"first step after ([\d.]+) ms", out).group(1)) < 70e3)
        code, out, err = job.tern("bench", "step", "--steps", "1", env={**os.environ, "TERN_STARTED_NS": "now"})
        self.assertEqual((code, out, err), (1, "", 'tern: tern__env_int: TERN_STARTED_NS="now" is not an integer\n'))

    def test_mistakes(self):
        for args, text in ((["--model", "vgg"], '--model: expected mlp or resnet18, got "vgg"'),
                           (["--dtype", "f64"], '--dtype: expected f32 or bf16 or f16, got "f64"'), (["--reduce", "i32"], '--reduce: expected f32 or bf16 or f16, got "i32"'),
                           (["--batch", "0"], '--batch: expected a number from 1 to 1048576, got "0"'),
                           (["--profile=lines"], '--profile: expected shapes, got "lines"'),
                           (["--steps", "2x"], '--steps: expected a number from 1 to 1048576, got "2x"'),
                           (["--step=2", "now"], 'unexpected "now"'),
                           (["--opt-level", "O4"], '--opt-level: expected O0 or O1 or O2 or O3, got "O4"'),
                           (["--opt-level", "O1", "--dtype", "bf16"], "--opt-level goes neither with --dtype"),
                           (["--opt-level", "O1", "--data-parallel"], "--opt-level goes neither with --dtype"),
                           (["--profile", "--data-parallel"], "--profile sees the kernels of one device"), (["--batches"], "'--batches'")):
            with self.subTest(args=args):
                refused(self, ["step", *args], text)


class AllReduce(unittest.TestCase):
    def test_a_line_a_size(self):
        for ranks in (1, 2):
            for memory in ("window", "plain"):
                with self.subTest(ranks=ranks, memory=memory):
                    lines = bench(ranks, "all_reduce", "--sizes", "4,64K", "--memory", memory)
                    self.assertEqual([line["bytes"] for line in lines], [4, 65536])
                    for line in lines:
                        self.check(line, ranks, memory)

    def check(self, line, ranks, memory):
        want = {"op": "all_reduce", "backend": "native" if ranks > 1 else "self", "ranks": ranks, "memory": memory}
        self.assertEqual({name: line.get(name) for name in want}, want)
        self.assertGreater(line["median_us"], 0)
        self.assertAlmostEqual(line["algbw_gbs"] * line["median_us"] * 1e3 / line["bytes"], 1, places=6)
        self.assertAlmostEqual(line["busbw_gbs"], line["algbw_gbs"] * 2 * (ranks - 1) / ranks, places=6)
        if line["bytes"] < 65536:
            self.assertIsNone(line["bound_ratio"])
        else:
            self.assertGreater(line["bound_ratio"], 0)

    def test_mistakes(self):
        for args, text in ((["--sizes", "3"], 'in steps of 4, as in 4,64K,25M, got "3"'), (["--sizes", "4,"], 'got ""'),
                           (["--sizes", "4Q"], 'got "4Q"'), (["--sizes", "-4"], 'got "-4"'),
                           (["--sizes", ",".join(["4"] * 33)], "at most 32"),
                           (["--memory", "disk"], 'expected window or plain, got "disk"'),
                           (["--size"], "requires an argument"), (["--fast"], "'--fast'")):
            with self.subTest(args=args):
                refused(self, ["all_reduce", *args], text)


class Optimizer(unittest.TestCase):
    def test_a_line_an_optimizer_and_thread_count(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                lines = bench(ranks, "optimizer", "--elements", "70001", "--rounds", "3")
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
        code, out, err = job.tern("bench", "optimizer", "--elements", "100", "--rounds", "1")
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
        """And nothing is left of the files."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"TMPDIR": folder}):
            lines = bench(1, "board", "--rounds", "3")
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual([line["call"] for line in lines], self.CALLS)
        for line in lines:
            self.assertTrue(0 < line["median_us"] < 10e6)

    def test_text(self):
        code, out, err = job.tern("bench", "board", "--rounds", "1")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual([re.split("  +", line)[0] for line in out.splitlines()], ["call", *self.CALLS])

    def test_mistakes(self):
        for args, text in ((["--rounds", "0"], '--rounds: expected a number from 1 to 1000, got "0"'), (["now"], 'unexpected "now"')):
            with self.subTest(args=args):
                refused(self, ["board", *args], text)
        with mock.patch.dict(os.environ, {"TMPDIR": "/nowhere"}):
            code, out, err = job.tern("bench", "board")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("cannot make /nowhere/tern-board-", err)


class Bench(unittest.TestCase):
    def test_which(self):
        refused(self, [], "expected a bench\n")
        refused(self, ["fly"], 'expected a bench, got "fly"')
        for name in ("step", "all_reduce", "optimizer", "board"):
            code, out, err = job.tern("bench", name, "--help")
            self.assertEqual((code, err), (0, ""))
            self.assertTrue(out.startswith(f"usage: tern bench {name} "))


if __name__ == "__main__":
    unittest.main()
