"""bench/torch: real ranks measure in turn, and their results are put together."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

import forked
import skips

sys.path[:0] = [os.path.join(os.environ["TERN_SOURCE"], "bench", folder) for folder in ("torch", "peers")]
import measure  # noqa: E402


def backends(folder, *names):
    return [measure.Backend(name, folder, "", None) for name in names]


class Together(unittest.TestCase):
    def test_times_are_the_slowest_ranks_and_cpu_times_are_added(self):
        found = measure.together([{"median_ms": 3, "cpu_ms": 2, "loss_first": 1.0}, {"median_ms": 4, "cpu_ms": 5, "loss_first": 2.0}])
        self.assertEqual(found, {"median_ms": 4, "cpu_ms": 7, "loss_first": 1.5})

    def test_ordinary_tensors_stand_for_memory_that_a_back_end_lacks(self):
        self.assertEqual(measure.with_own({"plain 4": 1, "plain 8": 2, "own 8": 3}), {"plain 4": 1, "own 4": 1, "plain 8": 2, "own 8": 3})
        self.assertEqual(measure.with_own({"median_ms": 1}), {"median_ms": 1})


IN_FORKS = mock.patch.object(measure.World, "interpreter", forked.interpreter())


@IN_FORKS
class Worlds(unittest.TestCase):
    """Real ranks over gloo, which every PyTorch has: forks of one process that has imported it."""

    def measured(self, rows, *names):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(measure.GROUPS, {"few": rows}), contextlib.redirect_stdout(io.StringIO()):
            peers = backends(folder, *names)
            lines, others, complaints = measure.measured("few", peers, 2)
            self.assertTrue(all(peer.worlds == {} for peer in peers))
        self.assertEqual((len(others), complaints), (2, []))
        return lines

    def test_all_reduce(self):
        lines = self.measured(measure.all_reduce_rows(2, 4, 64 << 10), "gloo", "nothing")
        self.assertEqual([line["row"] for line in lines], ["all_reduce 4 B, 2 ranks, ordinary tensors", "all_reduce 4 B, 2 ranks, the back end's memory",
                                                           "all_reduce 64 KB, 2 ranks, ordinary tensors", "all_reduce 64 KB, 2 ranks, the back end's memory"])
        for line in lines:
            self.assertEqual((len(line["samples"]["gloo"]), line["samples"]["nothing"]), (2, []))
            self.assertTrue(all(us > 0 for us in line["samples"]["gloo"]))

    def test_steps(self):
        names = ["gloo", "nothing"] if measure.torch_facts()["has_floor"] else ["gloo"]
        for line in self.measured(measure.step_rows("MLP", "ddp", "mlp", "--steps", "1"), *names):
            self.assertTrue(all(ms > 0 for name in names for ms in line["samples"][name]))

    def test_a_rank_that_ends_ends_the_bench(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(SystemExit, "a rank has ended\n(.|\n)*no model mpl"):
            measure.World("gloo", 2, ("ddp", "mpl"), folder, "", None)

    def test_cpu_time_is_that_of_live_ranks(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(measure.World, "interpreter", [sys.executable]):
            (peer,) = backends(folder, "gloo")
            self.addCleanup(peer.close)
            peer.world(2, "ddp", "mlp", "--steps", "1")
            self.assertGreater(peer.cpu_seconds(), 0.5)  # PyTorch's import alone


@IN_FORKS
class Command(unittest.TestCase):
    def run_main(self, *words):
        with mock.patch.object(sys, "argv", ["run.sh", *words]), contextlib.redirect_stdout(io.StringIO()) as out:
            measure.main()
        return out.getvalue()

    def test_unknown_groups_are_refused_before_anything_is_built(self):
        with mock.patch.object(measure, "extension", side_effect=AssertionError), self.assertRaisesRegex(SystemExit, "--only: expected some of small,.*got 'mpl'"):
            self.run_main("--only", "mlp,mpl")

    def test_table_and_json(self):
        with tempfile.NamedTemporaryFile("r") as file, mock.patch.object(measure, "extension", return_value=""), \
                mock.patch.object(measure, "find_backends", lambda facts, folder, hosts: (backends(folder, "gloo"), ["no mpi"])), \
                mock.patch.dict(measure.GROUPS, {"small": measure.all_reduce_rows(2, 4)}):
            out = self.run_main("--only", "small", "--json", file.name, "1")
            found = json.load(file)
        self.assertRegex(out, r"(?m)^all_reduce 4 B, 2 ranks, ordinary tensors \[us\] +gloo")
        self.assertEqual((len(found["rows"]), len(found["others_percent"]), found["other_work"]), (2, 1, []))


if __name__ == "__main__":
    skips.main()
