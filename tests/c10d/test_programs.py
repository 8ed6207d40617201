"""The PyTorch programs of docs/from-pytorch.md print what the page says when "gloo" is "tern"."""
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import extension

extension.enter()
import forked
import skips
from docs import document

PAGE = document.read("docs/from-pytorch.md")
WORD = 'init_process_group("gloo"'
WITHOUT = os.path.join(extension.HERE, "../docs/without_tensorboard.py")

LEAVES = """import torch, torch_tern, torch.distributed as dist
dist.init_process_group("tern")
for i in range(2000):  # the last ones are in flight when Python ends, and nobody waits for them
    tensor = torch.ones(2000)
    tensor.tag = i  # its last reference is of Python's
    work = dist.all_reduce(tensor, async_op=True)
    if i < 1800:
        work.wait()
"""

RAISES = """import torch, torch_tern, torch.distributed as dist
dist.init_process_group("tern")
if dist.get_rank() == 1:
    dist.destroy_process_group()
    raise ValueError("no such file")
dist.all_reduce(torch.ones(5))
"""


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.programs = {name: text for name, text in document.programs(PAGE).items() if WORD in text}
        for name, text in cls.programs.items():
            with open(os.path.join(cls.folder, name), "w") as file:
                file.write("import torch_tern\n" + text.replace(WORD, WORD.replace("gloo", "tern")))
        cls.env = {**os.environ, "OMP_NUM_THREADS": "1", "USE_LIBUV": "0", "PATH": os.pathsep.join([extension.BUILD, os.environ["PATH"]])}

    def test_one_word_is_changed(self):
        """They run in forks, but for the one that starts processes."""
        commands = [pair for session in document.sessions(PAGE) for pair in session]
        checked = set()
        for command, expected in commands:
            name = next((name for name in self.programs if name in command.split()), None)
            if not name:
                continue
            if not importlib.util.find_spec("tensorboard"):
                command = command.replace("python3 record.py", f"python3 {WITHOUT} record.py")
            with self.subTest(command=command):
                interpreter = [sys.executable] if name == "spawn.py" else forked.interpreter()
                done = subprocess.run(command.replace("python3", shlex.join(interpreter)), shell=True, cwd=self.folder, env=self.env, text=True,
                                      capture_output=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertTrue(document.same(done.stdout, expected), f"\n{done.stdout}instead of\n{expected}")
            checked.add(name)
        self.assertGreater(len(checked), 5)

    def test_ends_with_works_in_flight(self):
        """A thread of the back end must not ask for Python's lock once Python has ended. (Without the end of the threads one run in three failed.)"""
        with open(os.path.join(self.folder, "leaves.py"), "w") as file:
            file.write(LEAVES)
        for _ in range(2):
            done = self.run_three("leaves.py", [sys.executable])
            self.assertNotIn("terminate", done.stderr)
            self.assertEqual(done.returncode, 0, done.stderr)

    def run_three(self, name, interpreter):
        return subprocess.run(["tern", "run", "-n", "3", *interpreter, name], cwd=self.folder, env=self.env, text=True, capture_output=True, timeout=120)

    def test_the_rank_that_raises_is_the_cause(self):
        """The others raise, too, and may end first."""
        with open(os.path.join(self.folder, "raises.py"), "w") as file:
            file.write(RAISES)
        done = self.run_three("raises.py", forked.interpreter())
        self.assertRegex(done.stderr, r"(?s)Root cause.*\n  rank      : 1 .*\n  \| (?:\[rank1\]: )?ValueError: no such file\n.*What followed:\n"
                         r"  rank [02] \(pid \d+\) exited with code 1, [^\n]* (earlier|later)\n")
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    skips.main()
