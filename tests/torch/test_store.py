"""Stores beside PyTorch 1.13's: its clients on our server, ours on its, files that both use, and gloo ranks that meet at ours."""
import unittest

from stores import Gloo, Same, Together  # noqa: F401

if __name__ == "__main__":
    unittest.main()
