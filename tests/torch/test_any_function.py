"""A model trained by a function that its forward does not call: tern_ddp averages its gradients, torch's
DistributedDataParallel does not."""
import os
import subprocess
import tempfile
import unittest

import forked
import skips

HERE = os.path.dirname(os.path.abspath(__file__))


class AnyFunction(unittest.TestCase):
    def test_second_function(self):
        for ranks in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
                command += [os.path.join(HERE, "any_function_rank.py"), os.path.join(folder, "meeting")]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("equal"), ranks)


if __name__ == "__main__":
    skips.main()
