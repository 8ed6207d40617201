"""bench/collectives: every way runs, and the page shows what was measured and what was not."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import skips

FOLDER = os.path.join(os.environ["TERN_SOURCE"], "bench", "collectives")
sys.path.insert(0, FOLDER)
import run  # noqa: E402


def line(op, size, us, ratio=None, way="native, windows", ranks=2):
    return {"op": op, "bytes": size, "median_us": us, "bound_ratio": ratio, "way": way, "ranks": ranks}


class Tables(unittest.TestCase):
    def test_a_row_an_op(self):
        lines = [line("reduce", 4, 1.234), line("reduce", 1 << 20, 1234567, 1.26), line("gather", 6, 12.3), line("barrier", 0, 0.5),
                 line("gather", 6, 99, way="gloo"), line("gather", 9, 98, ranks=3)]
        self.assertEqual(run.table(lines, 2, "native, windows", [4, 1 << 20]).splitlines(), [
            "| 2 ranks, native, windows | 4 B | 1 MB |", "| --- | ---: | ---: |", "| reduce | 1.2 | 1235 ms (1.3) |", "| gather | 12 |  |",
            "| barrier | 0.5 |  |"])

    def test_what_was_not_measured_is_said(self):
        text = run.report([line("reduce", 4, 1)], [(2, "gloo", "why")], [4])
        self.assertEqual(text.splitlines()[-1], "Not measured: gloo on 2 ranks: why.")

    def test_sizes(self):
        self.assertEqual(run.parse_sizes("4,1K,25M"), [4, 1024, 25 << 20])
        self.assertEqual([run.bytes_text(size) for size in (4, 1024, 1536, 25 << 20)], ["4 B", "1 KB", "1.5 KB", "25 MB"])


class Ways(unittest.TestCase):
    """The real jobs on little work. A missing back end has a reason."""

    def test_a_run(self):
        with tempfile.TemporaryDirectory() as folder:
            page, found = os.path.join(folder, "page.md"), os.path.join(folder, "found.json")
            with open(page, "w") as file:
                file.write(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
            subprocess.run([os.path.join(FOLDER, "run.sh"), "--ranks", "2", "--sizes", "4,96K", "--seconds", "0", "--json", found,
                            "--page", page], check=True, stdout=subprocess.DEVNULL, timeout=300)
            with open(page) as file:
                text = file.read()
            with open(found) as file:
                said = json.load(file)
        self.assertTrue(text.startswith(f"before\n{run.BEGIN}\n\n| 2 ranks, native, windows | 4 B | 96 KB |\n"))
        self.assertTrue(text.endswith(f"{run.END}\nafter\n"))
        self.assertNotIn("old", text)
        absent = {way: why for _, way, why in said["absent"]}
        for way, backend, memory, _, _ in run.WAYS:
            with self.subTest(way=way):
                lines = [line for line in said["lines"] if line["way"] == way]
                if way in absent:
                    self.assertRegex(absent[way], "is missing|back end|plug-in")
                    self.assertFalse(backend == "native" or lines)
                else:
                    self.assertEqual({line["memory"] for line in lines}, {memory})
                    self.assertEqual(len(lines), 19)  # nine ops in two sizes, and the barrier


if __name__ == "__main__":
    skips.main()
