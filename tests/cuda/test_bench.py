"""tern bench step and bench_parts optimizer on a device with memory of its own: timed by the device's clock, with the CPU's results."""
import json
import os
import sys
import unittest
from unittest import mock

import skips

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../cli"))
import job  # noqa: E402

os.environ.setdefault("TERN_PLUGIN_PATH", os.path.join(os.environ["TERN_BUILD"], "emulated"))

STEP = ["bench", "step", "--batch", "8", "--steps", "2", "--json"]


def bench(*options):
    code, out, err = job.tern(*STEP, *options, timeout=300)
    assert (code, err) == (0, ""), (code, out, err)
    return json.loads(out)


class Step(unittest.TestCase):
    def test_losses_are_the_cpus(self):
        here, away = bench("--device", "cpu"), bench("--device", "cuda:0")
        for name in ("loss_first", "loss_last"):
            self.assertAlmostEqual(away[name], here[name], places=4)
        self.assertTrue(0 < away["min_ms"] <= away["median_ms"])
        self.assertGreater(away["tensor_mb"], here["tensor_mb"])  # parameters, gradients and momentum are there too

    def test_kernels_take_no_longer_than_the_steps(self):
        profile = bench("--device", "cuda:0", "--profile")["profile"]
        calls = {row["kernel"]: row["calls"] for row in profile["rows"]}
        self.assertEqual((calls["matmul"], calls["linear_grad"], calls["sgd"]), (3, 3, 1))
        self.assertTrue(all(row["ms"] > 0 for row in profile["rows"]))
        # Event times have 24 bits, so times that are 0, as in the emulation, come out slightly positive or negative.
        self.assertGreaterEqual(profile["outside_ms"], -profile["step_ms"] * 2**-23)
        self.assertGreater(min(profile["machine_gflops"], profile["machine_copy_gbs"]), 0)

    def test_calls_are_told_beside_a_copy_of_their_size(self):
        """Operands that a batch norm reads twice count twice in one column and once in another."""
        rows = bench("--device", "cuda:0", "--model", "resnet18", "--size", "8", "--profile")["profile"]["rows"]
        for row in rows:
            self.assertAlmostEqual(row["copy_percent"] * row["copy_gbs"] / (100 * row["gbs"]), 1, places=6)
        self.assertGreater(len({row["copy_gbs"] for row in rows}), len(rows) // 2)
        twice = {row["kernel"]: row["copy_percent"] / row["once_percent"] for row in rows}
        self.assertTrue(1.3 < twice["batch_norm"] < 1.7, twice)
        self.assertTrue(1.3 < twice["batch_norm_grad"] < 1.8, twice)
        self.assertAlmostEqual(twice["sgd"], 1, places=6)

    def test_profile_says_what_it_compares_with(self):
        code, out, err = job.tern(*STEP[:-1], "--device", "cuda:0", "--profile", timeout=300)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("\n% copy: relative to a copy of as many bytes, timed call by call, launch included\nkernel ", out)


class Optimizer(unittest.TestCase):
    def test_copy_and_steps_are_the_devices(self):
        with mock.patch.dict(os.environ, TERN_DEVICE="cuda:0"):
            code, out, err = job.run(job.PARTS, "optimizer", "--elements", "70001", "--rounds", "3", "--json", timeout=300)
        self.assertEqual((code, err), (0, ""))
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([(line["optimizer"], line["device"]) for line in lines], [("sgd", "cuda:0"), ("adam", "cuda:0")])
        for line in lines:
            moved = 4 * 70001 * {"sgd": 5, "adam": 7}[line["optimizer"]]
            self.assertAlmostEqual(line["gbs"] * line["median_ms"] * 1e6 / moved, 1, places=6)
            self.assertGreater(line["copy_gbs"], 0)


if __name__ == "__main__":
    if not skips.has_part("emulation"):
        skips.end("this build has no emulation of CUDA")
    skips.main()
