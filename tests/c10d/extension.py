"""torch_tern as the tests of this folder use it: built out of the source tree, into the build folder.

    extension.enter()    # call it first in a test: from here on `import torch_tern` finds what c10d/build has built

TERN_TEST_TORCH says for which PyTorch: "debian", or "newest", that of scripts/peers.sh.
"""
import importlib.util
import os
import shutil
import sys
import sysconfig

import peers
import skips

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(os.environ.get("TERN_SOURCE") or os.path.join(HERE, "../.."), "python")
BUILD = os.environ.get("TERN_BUILD") or os.path.join(HERE, "../../build")
TORCH = os.environ.get("TERN_TEST_TORCH", "debian")
FOLDER = os.path.abspath(os.path.join(BUILD, "c10d", TORCH))
LIBRARY = os.path.join(FOLDER, "lib")


def missing():
    """What this machine lacks to build the extension, or None."""
    torch = importlib.util.find_spec("torch")
    if not torch or not torch.origin:  # the folder tests/torch looks like a package
        return f"{sys.executable} has no PyTorch"
    folders = [os.path.join(torch.submodule_search_locations[0], "include"), "/usr/include"]
    folders += [os.path.join(folder, "torch/csrc/api/include") for folder in folders]
    for header, package in (("torch/extension.h", "libtorch-dev"), ("pybind11/pybind11.h", "pybind11-dev")):
        if not any(os.path.exists(os.path.join(folder, header)) for folder in folders):
            return f"no headers of PyTorch for C++: {header} ({package})"
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return "no headers of PyTorch for C++: Python.h (python3-dev)"
    if not shutil.which("g++"):
        return "no headers of PyTorch for C++: nor g++"
    return None


def enter():
    """Skips the script if the extension cannot be built here. Fails if it was not built."""
    if TORCH == "newest":
        peers.enter()
    why = missing()
    if why:
        skips.end(why)
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # another torch_tern may be installed
    os.environ["PYTHONPATH"] = os.pathsep.join([LIBRARY, HERE, *filter(None, [os.environ.get("PYTHONPATH")])])  # of spawned ranks
    sys.path.insert(0, LIBRARY)
