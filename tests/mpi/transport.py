"""The MPI plug-ins' transport under mpirun, and meetings over it. The tests are in storm.c."""
import os
import tempfile
import unittest

import mpirun


class Transport(unittest.TestCase):
    def run_ranks(self, what, ranks):
        with tempfile.TemporaryDirectory() as folder:
            done = mpirun.run(ranks, mpirun.program("mpi_storm"), what, folder, TERN_PLUGIN_PATH=mpirun.BUILD)
            self.assertEqual(sorted(os.listdir(folder)), [str(rank) for rank in range(ranks)], done.stdout + done.stderr)
        return done

    def check(self, what, ranks):
        done = self.run_ranks(what, ranks)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")

    def check_failed(self, what, ranks):
        """Checks a test that passes but leaves the job unable to end normally: a rank that exits with 0
        aborts it."""
        self.assertNotEqual(self.run_ranks(what, ranks).returncode, 0)

    def test_storm(self):
        for ranks in 1, 2, 3, 4:
            self.check("storm", ranks)

    def test_largest(self):
        self.check("largest", 2)

    def test_other_sizes(self):
        self.check("sizes", 2)

    def test_places(self):
        self.check("places", 2)

    def test_given_up(self):
        self.check_failed("given_up", 2)

    def test_meeting(self):
        self.check("meeting", 3)
        self.check("meeting", 5)

    def test_meeting_fails(self):
        self.check_failed("meeting_fails", 3)

    def test_late(self):
        self.check_failed("late", 2)


if __name__ == "__main__":
    mpirun.main()
