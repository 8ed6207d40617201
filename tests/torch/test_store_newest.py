"""The tests of test_store.py with the newest PyTorch, with both of its servers."""
import peers
import skips

peers.enter()

from stores import Gloo, Same, Together  # noqa: F401, E402

if __name__ == "__main__":
    skips.main()
