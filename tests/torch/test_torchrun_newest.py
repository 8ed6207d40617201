"""torchrun of the newest PyTorch starts tern programs."""
import unittest

import peers
import skips

peers.enter()

import torchrun  # noqa: E402


class Newest(torchrun.Torchrun, unittest.TestCase):
    pass


if __name__ == "__main__":
    skips.main()
