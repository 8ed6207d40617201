"""torchrun of Debian's PyTorch starts tern programs."""
import unittest

import skips
import torchrun


class Debian(torchrun.Torchrun, unittest.TestCase):
    pass


if __name__ == "__main__":
    skips.main()
