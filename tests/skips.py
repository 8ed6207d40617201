"""Tests that cannot run here record why, and ctest shows the reasons after its summary.

    skips.main()            # in place of unittest.main(): records unittest's own skips
    skips.end("no GPU")     # a script that can run none of its tests
    skips.has_part("gloo")  # whether this build has it; if it has, the test must not skip

tests/CMakeLists.txt sets TERN_TEST_NAME, the test's name in ctest; TERN_TEST_SKIPS, the file of all skips; and
TERN_TEST_PARTS, the parts that this build has. skips.h and skip.sh are the same for C and for sh.

`skips.py FILE` prints the skips in FILE. On CI (the variable CI is set) every package of `scripts/setup.sh test` is there, so it fails if one was skipped for another reason
than those of ALLOWED.
"""
import faulthandler
import os
import re
import signal
import sys
import unittest

SKIPPED = 77  # the exit status that ctest shows as "Skipped"

# What a machine may lack, or a sanitizer or an old PyTorch cannot do. A part or a package that is missing is not among them.
ALLOWED = [
    r"this CPU has no (AVX-512|tile unit|other algorithm|Winograd)",
    r"oneDNN's kernels for blocks of 16 channels need AVX-512",
    r"PyTorch sums products of bf16 in bf16 on this CPU",
    r"one core, or not all of them are ours",
    r"needs root",
    r"no (network |mount )?namespaces?\b",
    r"no control group can be made here",
    r"ptrace is not allowed here",
    r"this machine has no /dev/full",
    r"this machine's own name resolves to nothing",
    r"ranks of several hosts",
    r"(needs|not on) the emulation",
    r"needs (two|\d+) GPUs",
    r"nvidia-smi lists no GPU",
    r"a driver is here",
    r"this cuDNN takes no description of a device",
    r"what oneDNN tells of its kernels is the CPU's",
    r".*run scripts/peers\.sh",
    r"no cuobjdump",
    r"(marble-qt|mricron)-data is installed",
    r"PyTorch 1\.13 has no barrier",
    r"(\w+ of )?this PyTorch\b",
    r"MPICH's UCX sees that the hosts are one machine",
    r"its daemons do not look for hosts that are cut off",
    r"since 4\.2 an exit handler of MPICH's",
    r"this build has no OpenMP",
    r".*(sanitizer|AddressSanitizer|ThreadSanitizer)",
]


def record(function, reason):
    reason = " ".join(str(reason).split())
    print(f"skipped: {function}: {reason}", flush=True)
    path, name = os.environ.get("TERN_TEST_SKIPS"), os.environ.get("TERN_TEST_NAME")
    if path and name:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{name}: {function}: {reason}\n")


def end(reason):
    record("all", reason)
    sys.exit(SKIPPED)


def has_part(part):
    """Without ctest this build is expected to have all parts."""
    return part in os.environ.get("TERN_TEST_PARTS", part).split()


def main():
    """Exits with SKIPPED if every test was skipped. A failure shows whole what was printed, and a signal like SIGSEGV the test and its line."""
    faulthandler.enable()
    unittest.TestCase.maxDiff = None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control starts its background jobs with it ignored
    result = unittest.main(exit=False).result
    for test, reason in result.skipped:
        record(test.id().replace("__main__.", ""), reason)
    skipped = [test for test, _ in result.skipped if isinstance(test, unittest.TestCase) and not isinstance(test, unittest.case._SubTest)]
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if result.skipped and len(skipped) == result.testsRun else 0)


def table(path):
    """Prints the skips of a file. Returns 1 if CI does not allow one of them."""
    lines = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            lines = sorted(set(file))
    print(f"\n{len(lines) or 'none'} skipped{':' if lines else ''}")
    print("".join(f"  {line}" for line in lines), end="")
    refused = [line for line in lines if not any(re.match(allowed, line.split(": ", 2)[2]) for allowed in ALLOWED)]
    if not refused or not os.environ.get("CI"):
        return 0
    print("CI must not skip these: scripts/setup.sh installs what they need (ALLOWED in tests/skips.py):")
    print("".join(f"  {line}" for line in refused), end="", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(table(sys.argv[1]))
