"""Stores with PyTorch 1.13: its clients on tern's server, tern's on its server, files that both use, and gloo ranks
that meet at tern's."""

import skips
from stores import Gloo, Same, Together  # noqa: F401

if __name__ == "__main__":
    skips.main()
