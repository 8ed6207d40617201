"""tern new: the folder that it writes is built against an installed tern, trains on two ranks, and resumes."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import skips
from headers import BUILD, call, sanitizer


class New(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.top)
        prefix = os.path.join(cls.top, "prefix")
        call("cmake", "--install", BUILD, "--prefix", prefix)
        cls.tern = os.path.join(prefix, "bin", "tern")
        cls.env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "TERN_PLUGIN_PATH")}
        cls.env["OMP_NUM_THREADS"] = "1"
        cls.said = call(cls.tern, "new", "my-irises", cwd=cls.top)
        cls.folder = os.path.join(cls.top, "my-irises")
        flags = "-Wall -Wextra -Wshadow -Wvla -Werror " + " ".join(sanitizer())
        call("cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_FLAGS={flags}", cwd=cls.folder)
        call("cmake", "--build", "build", cwd=cls.folder)

    def train(self, *words, ranks=2):
        """Returns the losses of a run's epochs and its output."""
        out = call(self.tern, "run", "-n", str(ranks), "build/my-irises", *words, cwd=self.folder, env=self.env)
        return re.findall(r"^epoch \d+  loss (\S+)", out, re.M), out

    def setUp(self):
        shutil.rmtree(os.path.join(self.folder, "run"), ignore_errors=True)

    def test_files(self):
        self.assertEqual(sorted(os.listdir(self.folder)), ["CMakeLists.txt", "README.md", "build", "data.c", "data.csv", "data.h", "main.c"])
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if os.path.isfile(path):
                with open(path) as file:
                    self.assertNotIn("@", file.read().replace("my-irises@", "@"), name)
        self.assertIn("cd my-irises", self.said)

    def test_it_learns_and_resumes(self):
        losses, out = self.train()
        self.assertEqual(len(losses), 40)
        self.assertLess(float(losses[-1]), 0.15)
        self.assertGreaterEqual(float(re.findall(r"accuracy (\S+) %", out)[-1]), 90)
        self.assertIn("best.pth", os.listdir(os.path.join(self.folder, "run")))
        shutil.rmtree(os.path.join(self.folder, "run"))
        first, _ = self.train("15")
        rest, out = self.train()
        self.assertIn("goes on after epoch 15", out)
        self.assertEqual(first + rest, losses)

    def test_lines_that_do_not_fit(self):
        path = os.path.join(self.folder, "data.csv")
        with open(path) as file:
            kept = file.read()
        self.addCleanup(lambda: open(path, "w").write(kept))
        for line in ("1,2,x", "1,2,3,4,", "1,2,three,4,x", "1,nan,3,4,x", "1,1e40,3,4,x", "1,2,3,4,5,6", "1,2,3,4," + "x" * 40):
            with self.subTest(line=line), open(path, "w") as file:
                file.write(kept + line + "\n")
                file.flush()
                done = subprocess.run(["build/my-irises"], cwd=self.folder, env=self.env, text=True, capture_output=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr),
                                 (1, f'tern: data_open: data.csv:151: expected 4 finite numbers and a class, got "{line}"\n'))

    def test_files_that_do_not_fit(self):
        """Other separators, and a column that names no classes."""
        path = os.path.join(self.folder, "data.csv")
        with open(path) as file:
            kept = file.read()
        self.addCleanup(lambda: open(path, "w").write(kept))
        commas = "expected numbers and a class with commas between them, got "
        few = "expected 10 rows or more of 2 classes or more, got "
        for text, error in (("length;width;species\n1;2;a\n", f':1: {commas}"length;width;species"'), ("1\t2\ta\n" * 20, f':1: {commas}"1\\t2\\ta"'),
                            ("1,2,a\n" * 20, f": {few}20 of 1"), ("1,2,a\n1,2,b\n", f": {few}2 of 2"), ("a,b,c\n", f": {few}0 of 0"), ("", f": {few}0 of 0")):
            with self.subTest(text=text), open(path, "w") as file:
                file.write(text)
                file.flush()
                done = subprocess.run(["build/my-irises"], cwd=self.folder, env=self.env, text=True, capture_output=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (1, f"tern: data_open: data.csv{error}\n"))

    def test_an_old_run(self):
        """One that has its epochs says how to go on; one of other data, what to remove."""
        self.train("3")
        self.assertIn("nothing is left to do; to go on: build/my-irises 6\n", self.train("3")[1])
        path = os.path.join(self.folder, "data.csv")
        with open(path) as file:
            kept = file.read()
        self.addCleanup(lambda: open(path, "w").write(kept))
        with open(path, "w") as file:
            file.write(kept.replace("virginica", "setosa"))
        done = subprocess.run(["build/my-irises", "6"], cwd=self.folder, env=self.env, text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("after a change of the net or of the data, remove the folder run/\n", done.stderr)

    def test_lines_that_mean_nothing(self):
        """A first line of names, empty lines, blanks at the end, a byte order mark; the order of the classes is not that of the rows."""
        losses, said = self.train("3")
        self.assertIn("120 + 30 rows of 4 numbers, classes: setosa, versicolor, virginica\n", said)
        path = os.path.join(self.folder, "data.csv")
        with open(path) as file:
            kept = file.read()
        self.addCleanup(lambda: open(path, "w").write(kept))
        for text in ("length,width,length,width,species\n\n" + kept.replace("\n", " \r\n", 70) + "\n", "\ufeff" + kept):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            shutil.rmtree(os.path.join(self.folder, "run"))
            self.assertEqual(self.train("3")[0], losses)

    def test_wrong_epochs(self):
        for words in (["ten"], ["0"], ["-1"], ["3", "4"]):
            with self.subTest(words=words):
                done = subprocess.run(["build/my-irises", *words], cwd=self.folder, env=self.env, text=True, capture_output=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (2, "usage: build/my-irises [EPOCHS]\n"))

    def test_interrupted(self):
        """Ctrl-C saves: the run goes on after the epoch in which it came."""
        job = subprocess.Popen(["build/my-irises", "1000000"], cwd=self.folder, env=self.env, text=True, stdout=subprocess.PIPE)
        while not next(job.stdout).startswith("epoch 7 "):
            pass
        job.send_signal(signal.SIGINT)
        rest = job.communicate(timeout=60)[0]
        self.assertEqual(job.returncode, 0)
        self.assertTrue(rest.endswith("saved; the same command goes on\n"), rest)
        epochs = 7 + len(re.findall("^epoch", rest, re.M))
        self.assertIn(f"goes on after epoch {epochs}\n", self.train(str(epochs + 1), ranks=1)[1])

    def test_names_and_folders_that_are_refused(self):
        for words, code, text in ((["my-irises"], 1, "cannot make the folder my-irises: File exists"), (["9x"], 2, 'got "9x"'),
                                  (["../x"], 2, 'got "../x"'), ([], 2, "got 0 names"), (["a", "b"], 2, "got 2 names"), (["all"], 2, 'got "all"')):
            with self.subTest(words=words):
                done = subprocess.run([self.tern, "new", *words], cwd=self.top, text=True, capture_output=True, timeout=60)
                self.assertEqual(done.returncode, code)
                self.assertRegex(done.stderr, "^tern new: .*" + re.escape(text))


if __name__ == "__main__":
    skips.main()
