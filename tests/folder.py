"""A temporary folder for each test."""
import tempfile
import unittest


class InFolder(unittest.TestCase):
    """Its tests have a folder of their own, which is removed after them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
