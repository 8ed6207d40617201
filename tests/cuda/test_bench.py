"""tern bench step on a device with memory of its own: it is timed by its own clock, and learns what the CPU learns."""
import json
import os
import sys
import unittest

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
        # Events' times have 24 bits, so of what is 0, as in the emulation, there is a rest of either sign.
        self.assertGreaterEqual(profile["outside_ms"], -profile["step_ms"] * 2**-23)
        self.assertGreater(min(profile["machine_gflops"], profile["machine_copy_gbs"]), 0)


if __name__ == "__main__":
    if not os.path.exists(os.path.join(os.environ["TERN_PLUGIN_PATH"], "tern_cuda.so")):
        print("skipped: no emulated CUDA was built")
        sys.exit(0)
    unittest.main()
