"""A block has 48 KB of shared memory: the kernel's own, which its code declares, and what a launch asks for. The emulation knows only
the latter, so this reads the plug-in's machine code."""
import os
import re
import shutil
import subprocess
import sys

import skips

PLUGIN = os.path.join(os.environ["TERN_BUILD"], "tern_cuda.so")
ROWS = os.path.join(os.environ["TERN_SOURCE"], "src/cuda/kernels/rows.h")
RESERVED = 1024  # what the compiler counts, too, from compute capability 9.0 on: a block has it beside the 48 KB


def room():
    """Returns {part of a mangled name: the bytes that launches leave to such a kernel}; launches of all others ask for nothing."""
    with open(ROWS, encoding="utf-8") as file:
        sums = int(re.search(r"#define TERN__ROW_SUMS +(\d+)", file.read())[1])
    return {"(forward|gradient)_rowsI": sums, "run_tilesI": 0, "add_positionsI.*sums_in_slots": 0, "make_productsI": 0}


def kernels(text):
    """Yields (architecture, mangled name, bytes of its own) from cuobjdump's output."""
    for part in re.split(r"\narch = sm_", text)[1:]:
        arch = int(re.match(r"\d+", part)[0])
        for name, own in re.findall(r"Function (\w+):\s+REG:.* SHARED:(\d+) ", part):
            yield arch, name, max(int(own) - RESERVED * (arch >= 90), 0)


def main():
    if not shutil.which(sys.argv[1]):
        skips.end("no cuobjdump beside nvcc or on the PATH")
    output = subprocess.run([sys.argv[1], "--dump-resource-usage", PLUGIN], check=True, capture_output=True, text=True).stdout
    for part, most in room().items():
        found = [kernel for kernel in kernels(output) if re.search(part, kernel[1])]
        assert found, f"no kernel is called {part}"
        for arch, name, own in found:
            assert own <= most, f"{name} for sm_{arch} has {own} bytes of its own, but its launches leave it only {most}"


main()
