"""The newest PyTorch, safetensors, TensorBoard, transformers and peft, where scripts/peers.sh has installed them.

    peers.enter()      # call it first in a test: from here on the test runs under their Python
"""
import os
import sys

import forked
import skips

CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
PEERS = os.environ.get("TERN_PEERS") or os.path.join(CACHE, "tern-peers")


def enter():
    """Runs the calling script again under the peers' Python: in a fork of a server with that Python if the script runs in a fork now. Skips
    the script if there is none."""
    if os.path.realpath(sys.prefix) == os.path.realpath(PEERS):
        return
    python = os.path.join(PEERS, "bin/python")
    if not os.access(python, os.X_OK):
        skips.end(f"no {python}: run scripts/peers.sh")
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        skips.end("the peers' libraries do not run under AddressSanitizer")
    through = ["-I", "-S", os.path.abspath(forked.__file__)] if forked.is_fork else []
    os.execv(python, [python, *through, *sys.argv])
