"""The output of the examples, alone, under tern run and with tern_spawn."""
import os
import re
import signal
import subprocess
import tempfile
import unittest

import skips
from folder import InFolder
from busy import without_slow_ranks

BUILD, SOURCE = os.environ["TERN_BUILD"], os.environ["TERN_SOURCE"]


def start(command, **options):
    """Runs a program to its end. Returns exit code, stdout, and stderr without warnings about a busy host."""
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120, **options)
    return done.returncode, done.stdout, without_slow_ranks(done.stderr)


def run(ranks, name, *args, **options):
    command = [os.path.join(BUILD, "examples", name), *args]
    if ranks > 1:
        command = [os.path.join(BUILD, "tern"), "run", "-n", str(ranks), *command]
    code, out, err = start(command, **options)
    assert (code, err) == (0, ""), (command, code, out, err)
    return out


def spawn(ranks, name, **options):
    """Runs a demo that starts its ranks itself."""
    bare = {variable: value for variable, value in os.environ.items() if variable not in ("RANK", "WORLD_SIZE")}
    code, out, err = start([os.path.join(BUILD, "examples", name), str(ranks)], env=bare, **options)
    assert (code, err) == (0, ""), (name, ranks, code, out, err)
    return out


def losses_of(out):
    """Returns [(step, loss)]; fails on any other line."""
    steps = re.findall(r"^step (\d+)  loss (\d+\.\d+)$", out, re.M)
    assert len(steps) == len(out.splitlines()), out
    return [(int(step), loss) for step, loss in steps]


class Mlp(unittest.TestCase):
    def test_learns_and_ranks_agree(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                out = run(ranks, "01_mlp")
                epoch, accuracy = re.search(r"^epoch (\d+)  loss 0\.\d+  test accuracy (\S+) %$", out, re.M).groups()
                self.assertEqual(epoch, "1")
                self.assertTrue(80 < float(accuracy) < 90)
                self.assertRegex(out, rf"(?m)^weights identical on {ranks} ranks?: [0-9a-f]{{16}}$")


class Arguments(unittest.TestCase):
    def test_epochs_must_be_a_number(self):
        for name in ("01_mlp", "02_fashion"):
            done = subprocess.run([os.path.join(BUILD, "examples", name), "x"], text=True, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn('expected a number of epochs from 1 to 10000, got "x"', done.stderr)

    def test_what_is_wrong_is_named(self):
        for words, text in ((("14_resume", "runs", "0"), 'expected a number of epochs from 1 to 10000, got "0"'),
                            (("15_mixed_precision", "O4"), 'expected O0, O1, O2 or O3, bf16 or f16, a number of epochs, or a folder with a /, got "O4"')):
            path = os.path.join(BUILD, "examples", words[0])
            self.assertEqual(start([path, *words[1:]]), (2, "", f"{path}: {text}\n"))

    def test_ranks_must_be_a_number(self):
        for wrong in ("x", "2x", "0", "4097"):
            done = subprocess.run([os.path.join(BUILD, "examples", "05_basic"), wrong], text=True, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f'expected a number of ranks from 1 to 4096, got "{wrong}"', done.stderr)


class Help(unittest.TestCase):
    """--help of every example, alone and on ranks, and words that look like options: nothing is trained or written."""

    NAMES = ["01_mlp", "02_fashion", "03_own_module", "05_basic", "06_checkpoint", "07_model_parallel", "08_single", "09_data_parallel", "10_ddp",
             "11_any_function", "12_tied_weights", "13_sync_batch_norm", "14_resume", "15_mixed_precision", "blue_marble"]

    def test_every_example_has_it(self):
        for name in self.NAMES + ["04_mlp"]:
            path = os.path.join(BUILD, "examples", name)
            if name == "04_mlp" and not os.path.exists(path):
                continue  # no Fortran
            with self.subTest(name=name), tempfile.TemporaryDirectory() as folder:
                for option in ("--help", "-h"):
                    code, out, err = start([path, option], cwd=folder)
                    self.assertEqual((code, err), (0, ""))
                    self.assertRegex(out, rf"^usage: .*{name}\b.*\n\n\w")
                if name != "04_mlp":
                    self.assertEqual(start([os.path.join(BUILD, "tern"), "run", "-n", "2", path, "--help"], cwd=folder), (0, out, ""))
                    code, out, err = start([path, "--fast"], cwd=folder)
                    self.assertEqual((code, out, err), (2, "", f'{path}: unexpected "--fast"; --help says what may follow\n'))
                self.assertEqual(os.listdir(folder), [])

    def test_words_too_many(self):
        for name, words in (("03_own_module", ["7"]), ("01_mlp", ["1", "2"]), ("14_resume", ["runs", "1", "x"]), ("08_single", ["x"])):
            path = os.path.join(BUILD, "examples", name)
            self.assertEqual(start([path, *words]), (2, "", f'{path}: unexpected "{words[-1]}"; --help says what may follow\n'))


class Oversubscribed(unittest.TestCase):
    """Where ranks x threads are more than the cores that they may use, the table of a bench says so."""

    def said(self, ranks, threads, cores, *options):
        cpus = sorted(os.sched_getaffinity(0))[:cores]
        command = [os.path.join(BUILD, "tern"), "run", "-n", str(ranks), *options, os.path.join(BUILD, "tern"), "bench", "step", "--batch", "4", "--steps", "1"]
        code, out, err = start(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        self.assertEqual((code, err), (0, ""))
        return re.findall("(?m)^oversubscribed: (.*)$", out)

    def test_step(self):
        self.assertEqual(self.said(1, 1, 1), [])
        self.assertEqual(self.said(2, 1, 1), ["2 ranks x 1 thread take turns on 1 core"])
        self.assertEqual(self.said(1, 3, 1), ["1 rank x 3 threads take turns on 1 core"])
        if len(os.sched_getaffinity(0)) >= 2:
            self.assertEqual(self.said(2, 1, 2), [])
            self.assertEqual(self.said(2, 1, 2, "--bind", "core"), [])
            self.assertEqual(self.said(3, 1, 2), ["3 ranks x 1 thread take turns on 2 cores"])
            self.assertEqual(self.said(2, 2, 2), ["2 ranks x 2 threads take turns on 2 cores"])


class OwnModule(unittest.TestCase):
    def test_ten_losses_that_fall(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                out = run(ranks, "03_own_module")
                steps = losses_of(out)
                self.assertEqual([step for step, _ in steps], list(range(10)))
                losses = [float(loss) for _, loss in steps]
                self.assertEqual(losses, sorted(losses, reverse=True))
                self.assertEqual(len(set(losses)), 10)


class Demos(InFolder):
    """The output is the same with tern run and with tern_spawn."""

    def both(self, ranks, name):
        out = spawn(ranks, name, cwd=self.folder)
        command = [os.path.join(BUILD, "tern"), "run", "-n", str(ranks), os.path.join(BUILD, "examples", name)]
        self.assertEqual(start(command, cwd=self.folder), (0, out, ""))
        return out

    def test_basic(self):
        for ranks in (1, 2, 3, 4):
            losses = losses_of(self.both(ranks, "05_basic"))
            self.assertEqual([step for step, _ in losses], list(range(10)))
            self.assertEqual(len(set(losses)), 10)

    def test_checkpoint(self):
        """The steps after loading equal those after saving, and those of a run without a checkpoint."""
        for ranks in (1, 2, 3, 4):
            losses = losses_of(self.both(ranks, "06_checkpoint"))
            self.assertEqual(losses[:10], losses_of(spawn(ranks, "05_basic")))
            self.assertEqual(losses[10:], losses[5:10])
            self.assertEqual(os.listdir(self.folder), [])

    def test_checkpoint_that_cannot_be_written(self):
        """Every rank reports the error, and none waits."""
        os.mkdir(os.path.join(self.folder, "checkpoint.new"))
        code, _, err = start([os.path.join(BUILD, "examples", "06_checkpoint"), "3"], cwd=self.folder)
        self.assertEqual(code, 1)
        self.assertIn('cannot write the file "checkpoint"', err)
        self.assertRegex(err, r"tern: tern_spawn: rank \d \(pid \d+\) exited with code 1")

    def test_model_parallel(self):
        """Two devices compute the same losses as one."""
        for ranks in (1, 2, 3, 4):
            where, _, losses = self.both(ranks, "07_model_parallel").partition("\n")
            self.assertRegex(where, r"^net1 on cpu:0, net2 on cpu:[01]$")
            self.assertEqual(losses, spawn(ranks, "05_basic"))

    def test_any_function(self):
        """The losses fall, and are the same for any number of ranks."""
        line = r"^([1-4]) [a-z ]+  loss (\d\.\d{5}) -> (\d\.\d{5})$"
        alone = re.findall(line, self.both(1, "11_any_function"), re.M)
        self.assertEqual([way for way, _, _ in alone], ["1", "2", "3", "4"])
        for _, first, last in alone:
            self.assertLess(float(last), 0.8 * float(first))
        for ranks in (2, 3, 4):
            for (way, *want), (same_way, *got) in zip(alone, re.findall(line, self.both(ranks, "11_any_function"), re.M), strict=True):
                self.assertEqual(way, same_way)
                for one, other in zip(want, got):
                    self.assertAlmostEqual(float(one), float(other), delta=2.1e-5)

    def test_more_ranks_than_samples(self):
        code, out, err = start([os.path.join(BUILD, "examples", "11_any_function"), "13"])
        self.assertEqual((code, out), (1, ""))
        self.assertIn("13 ranks: expected at most 12, one for each sample", err)

    def test_tied_weights(self):
        for ranks in (1, 2, 3, 4):
            counts, _, losses = self.both(ranks, "12_tied_weights").partition("\n")
            self.assertEqual(counts, "4 parameters under 5 names")
            losses = losses_of(losses)
            self.assertEqual([step for step, _ in losses], [9, 19, 29, 39, 49])
            self.assertLess(float(losses[-1][1]), 0.65 * float(losses[0][1]))


class SyncBatchNorm(unittest.TestCase):
    def test_table_and_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            out = run(2, "13_sync_batch_norm", "1", "150", cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
            self.assertIn("mean of 1 seed\n", out)
            rows = re.findall(r"^ +(\d+) +(\d+\.\d\d) +(\d+\.\d\d)$", out, re.M)
            self.assertEqual([int(step) for step, _, _ in rows], list(range(10, 151, 10)))
            for plain, synchronised in ((float(a), float(b)) for _, a, b in rows[-3:]):
                self.assertGreater(min(plain, synchronised), 20)
            self.assertNotEqual(*rows[-1][1:])
            with open(os.path.join(folder, "sync_batch_norm.png"), "rb") as picture:
                self.assertEqual(picture.read(8), b"\x89PNG\r\n\x1a\n")

    def test_arguments(self):
        code, _, err = start([os.path.join(BUILD, "examples", "13_sync_batch_norm"), "0"])
        self.assertEqual(code, 2)
        self.assertIn("expected [seeds, 1 to 32] [steps, 15 or more]", err)


def lines_changed(first, second):
    """Returns the `diff` of two examples and how many lines of the second are new or changed."""
    sources = [os.path.join("examples", name + ".c") for name in (first, second)]
    code, out, err = start(["diff", *sources], cwd=SOURCE)
    assert (code, err) == (1, ""), err
    return out, len(re.findall(r"^> ", out, re.M))


class SameTraining(unittest.TestCase):
    """08_single, 09_data_parallel, 10_ddp: the same training, and the lines that make it parallel."""

    def test_few_lines_change(self):
        self.assertLessEqual(lines_changed("08_single", "09_data_parallel")[1], 6)
        self.assertLessEqual(lines_changed("08_single", "10_ddp")[1], 12)

    def test_the_page_shows_the_lines(self):
        with open(os.path.join(SOURCE, "docs", "parallel.md")) as page:
            text = page.read()
        for other in ("09_data_parallel", "10_ddp"):
            self.assertIn("```diff\n" + lines_changed("08_single", other)[0] + "```\n", text, f"docs/parallel.md: diff of {other}")

    def test_same_losses(self):
        """The losses are means over the same 60 samples and differ only by rounding, until a ReLU whose input is zero but for rounding is on in one and off in the other."""
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        alone = losses_of(run(1, "08_single", env=one_thread))
        self.assertEqual([step for step, _ in alone], list(range(0, 1000, 100)))
        self.assertLess(float(alone[-1][1]), 0.5)
        others = [run(1, "09_data_parallel", env=one_thread), *(run(ranks, "10_ddp", env=one_thread) for ranks in (1, 2, 3, 4))]
        for other in map(losses_of, others):
            for (step, want), (same_step, got) in zip(alone, other, strict=True):
                self.assertEqual(step, same_step)
                self.assertAlmostEqual(float(want), float(got), delta=2e-4 if int(step) <= 100 else 2e-2)


class Resume(InFolder):
    """14_resume: after SIGTERM or kill -9 and a restart, the final weights equal those of an uninterrupted run."""

    def setUp(self):
        super().setUp()
        self.env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def command(self, ranks, name):
        program = [os.path.join(BUILD, "examples", "14_resume"), os.path.join(self.folder, name), "2"]
        return ([os.path.join(BUILD, "tern"), "run", "-n", str(ranks)] if ranks > 1 else []) + program

    def end(self, ranks, name):
        code, out, err = start(self.command(ranks, name), env=self.env)
        self.assertEqual((code, err), (0, ""))
        return out, re.search(r"^weights identical on \d ranks?: ([0-9a-f]{16})$", out, re.M).group(1)

    def interrupt(self, ranks, name, number, line):
        """Sends the signal when this line is printed. Returns the output after it and the exit code."""
        with subprocess.Popen(self.command(ranks, name), text=True, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            while not run.stdout.readline().startswith(line):
                self.assertIsNone(run.poll())
            run.send_signal(number)
            out, _ = run.communicate(timeout=60)
        return out, run.returncode

    def test_it_goes_on(self):
        _, whole = self.end(2, "whole")
        out, code = self.interrupt(2, "broken", signal.SIGTERM, "step 300 ")
        self.assertEqual(code, 0)
        stopped = int(re.search(r"^stop requested: saved at step (\d+)$", out, re.M).group(1))
        self.assertTrue(300 <= stopped < 2000)
        out, code = self.interrupt(2, "broken", signal.SIGKILL, "step 1300 ")
        self.assertEqual(code, -signal.SIGKILL)
        out, broken = self.end(2, "broken")
        self.assertGreaterEqual(int(re.match(r"resuming at step (\d+)\n", out).group(1)), 1200)
        self.assertEqual(broken, whole)


if __name__ == "__main__":
    skips.main()
