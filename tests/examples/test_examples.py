"""The examples print what they promise, alone and under tern run -n 2."""
import os
import re
import subprocess
import unittest

BUILD = os.environ["TERN_BUILD"]


def run(ranks, name, *args):
    command = [os.path.join(BUILD, "examples", name), *args]
    if ranks > 1:
        command = [os.path.join(BUILD, "tern"), "run", "-n", str(ranks), *command]
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


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


class OwnModule(unittest.TestCase):
    def test_ten_losses_that_fall(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                out = run(ranks, "03_own_module")
                steps = re.findall(r"^step (\d+)  loss (\d+\.\d{6})$", out, re.M)
                self.assertEqual(len(steps), len(out.splitlines()))
                self.assertEqual([int(step) for step, _ in steps], list(range(10)))
                losses = [float(loss) for _, loss in steps]
                self.assertEqual(losses, sorted(losses, reverse=True))
                self.assertEqual(len(set(losses)), 10)


if __name__ == "__main__":
    unittest.main()
