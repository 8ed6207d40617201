"""docs/launchers.md: the variables and files that it names exist, and its errors and ports are those of tern
info."""
import os
import re
import subprocess
import unittest

import document
import skips

PAGE = document.read("docs/launchers.md")
TERN = os.path.join(os.environ["TERN_BUILD"], "tern")
OTHERS = ("SLURM_", "TORCHELASTIC_", "OMPI_", "PMI_", "MASTER_", "TERN_")


def info(settings):
    """Returns (launcher, error) in an environment without the variables of other launchers."""
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE") and not name.startswith(OTHERS)}
    env.update(setting.split("=", 1) for setting in settings.split())
    done = subprocess.run([TERN, "info"], env=env, text=True, capture_output=True, timeout=30)
    return re.findall(r"^launcher +(.*)$", done.stdout, re.M), done.stderr


def sources():
    for folder in ("src/base", "src/comm", "cli", "src/plugins"):
        for root, _, names in os.walk(os.path.join(document.SOURCE, folder)):
            for name in names:
                with open(os.path.join(root, name), errors="replace") as file:
                    yield file.read()


class Launchers(unittest.TestCase):
    def test_errors(self):
        rows = [[cell.strip().strip("`") for cell in row] for row in document.rows(PAGE)]
        rows = [row for row in rows if len(row) == 2 and re.match(r"[A-Z_]+=", row[0])]
        self.assertEqual(len(rows), 6)
        for environment, error in rows:
            with self.subTest(environment):
                self.assertEqual(info(environment), ([], f"tern: tern_group_open: {error}\n"))

    def test_ports_of_slurm(self):
        first, steps, count = map(int, re.search(r"(\d+) \+ \((\d+) × job \+ step\) mod (\d+)", PAGE).groups())
        step = "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_NODEID=0 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NUM_NODES=1"
        for job, number in ((1, 0), (77, 12), (123456, 3)):
            port = first + (steps * job + number) % count
            self.assertEqual(info(f"SLURM_JOB_ID={job} SLURM_STEP_ID={number} {step}"),
                             ([f"SLURM_PROCID, rank 1 of 2, at 127.0.0.1 port {port}"], ""))

    def test_what_it_names_exists(self):
        text = "".join(sources())
        variables = {name for name in re.findall(r"\b[A-Z]+_[A-Z_]+\b", " ".join(document.code(PAGE)))}
        self.assertGreater(len(variables), 15)
        for name in variables:
            with self.subTest(name):
                self.assertIn(name, text)
        for path in re.findall(r"`(tests/[^`]+)`", PAGE):
            with self.subTest(path):
                self.assertTrue(os.path.exists(os.path.join(document.SOURCE, path)))


if __name__ == "__main__":
    skips.main()
