"""A ddp with parameters on an emulated GPU, with ranks on one host and on several, between which MPI sends
the gradients."""
import os
import re
import unittest

import mpirun
import skips

EMULATED = os.path.join(mpirun.BUILD, "emulated")
LINE = re.compile(r"rank (\d) on (\S+), (\S+): loss (\S+), hash (\w+)")


class Device(unittest.TestCase):
    def train(self, device, backend, *around):
        """Returns the losses by rank, and checks that the ranks' parameters are equal."""
        done = mpirun.run(3, *around, mpirun.program("mpi_train"), TERN_DEVICE=device, TERN_PLUGIN_PATH=EMULATED)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        ranks = sorted(LINE.findall(done.stdout))
        self.assertEqual([int(rank) for rank, *_ in ranks], [0, 1, 2], done.stdout)
        self.assertEqual({line[1:3] for line in ranks}, {(device, backend)})
        self.assertEqual(len({line[-1] for line in ranks}), 1, done.stdout)
        return [float(loss) for *_, loss, _ in ranks]

    def hold(self, backend, *around):
        for one, other in zip(self.train("cpu", backend, *around), self.train("cuda:0", backend, *around)):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_one_host(self):
        self.hold("native")

    def test_hosts_of_one_and_of_two(self):
        for ranks in 1, 2:
            self.hold("native+mpi", *mpirun.hosts_of(ranks))


if __name__ == "__main__":
    missing = None if skips.has_part("emulation") else "this build has no emulation of CUDA"
    mpirun.main(missing)
