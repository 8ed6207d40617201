"""TERN_TRACE as a user sets it: a strict JSON parser reads the file that the ranks of tern run write together."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from xml.etree import ElementTree

import skips

BUILD = os.environ["TERN_BUILD"]


def run(ranks, trace):
    """Runs ten steps of the example. Returns exit code, stdout, stderr."""
    command = [os.path.join(BUILD, "tern"), "run", "-n", str(ranks), os.path.join(BUILD, "examples", "03_own_module")]
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60, env={**os.environ, "TERN_TRACE": trace, "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout, done.stderr


class Timeline(unittest.TestCase):
    def test_all_ranks_are_in_one_file(self):
        for ranks in range(1, 5):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "a trace.json")
                code, _, err = run(ranks, path)
                self.assertEqual((code, err), (0, ""))
                with open(path) as file:
                    events = json.load(file)
                names = {e["pid"] - 1: e["args"]["name"] for e in events if e["name"] == "process_name"}
                self.assertEqual(sorted(names), list(range(ranks)))
                for rank, name in names.items():
                    self.assertRegex(name, rf"^rank {rank} \(.+, pid \d+\)$")
                count = Counter((e["pid"] - 1, e["name"]) for e in events)
                for rank in range(ranks):
                    for name in "forward", "backward", "bucket ready", "optimizer step":
                        self.assertEqual(count[rank, name], 10, name)
                self.check_picture(path, ranks)
                for event in events:
                    self.assertIn(event["ph"], "XiM")
                    self.assertGreaterEqual(event.get("dur", 0), 0)

    def check_picture(self, path, ranks):
        """scripts/timeline.py draws a step: each rank has its parts and its single bucket."""
        script = os.path.join(os.environ["TERN_SOURCE"], "scripts", "timeline.py")
        svg = ElementTree.fromstring(subprocess.run([sys.executable, script, path, "5"], check=True, capture_output=True).stdout)
        colours = Counter(shape.get("fill") for shape in svg.iter() if shape.get("fill"))
        for part in "#4e79a7", "#f28e2b", "#e15759", "#59a14f", "#333333":
            self.assertEqual(colours[part], ranks, part)

    def test_a_file_that_cannot_be_written_is_a_warning(self):
        code, out, err = run(2, "/no/such/folder/trace.json")
        self.assertEqual(code, 0)
        self.assertEqual(out, run(2, "")[1])
        self.assertEqual(err.count("no timeline"), 1, err)
        self.assertIn('cannot open /no/such/folder/trace.json: No such file or directory', err)


if __name__ == "__main__":
    skips.main()
