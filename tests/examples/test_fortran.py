"""The Fortran example: its module matches the headers, it learns, and its results are the same on any number of ranks."""
import os
import re
import subprocess
import tempfile
import unittest

import skips
from busy import without_slow_ranks

BUILD, SOURCE = os.environ["TERN_BUILD"], os.environ["TERN_SOURCE"]
PROGRAM, INCLUDE = os.path.join(BUILD, "examples", "04_mlp"), os.path.join(SOURCE, "include")


def call(*command, text=None):
    done = subprocess.run(command, input=text, text=True, capture_output=True, timeout=120)
    assert (done.returncode, without_slow_ranks(done.stderr)) == (0, ""), f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def bare(kind):
    """Reduces a C type to what Fortran can express: a pointer to a handle is a c_ptr, an enumeration an int, and nothing is unsigned."""
    kind = re.sub(r"\bconst\b|\s", "", kind)
    if kind.endswith("*") or "(*" in kind:
        return "pointer"
    return re.sub(r"^tern_(dtype|reduction)$", "int", re.sub(r"^u?int64_t$|^size_t$", "long", kind))


def declared():
    """Returns the headers' functions: {name: [result, argument, ...]}."""
    with tempfile.TemporaryDirectory() as folder:
        seen = os.path.join(folder, "seen")
        call("gcc", "-fsyntax-only", "-I", INCLUDE, "-aux-info", seen, "-x", "c", "-", text="#include <tern.h>\n")
        with open(seen) as file:
            found = re.findall(r"^/\* \S+ \*/ extern (.*?)(tern_\w+) \((.*)\);", file.read(), re.M)
    return {name: [bare(kind) for kind in [result, *arguments.split(", ")]] for result, name, arguments in found}


def prototypes():
    """Returns the module as C prototypes, by gfortran."""
    with tempfile.TemporaryDirectory() as folder:
        return call("gfortran", "-fc-prototypes", "-fsyntax-only", "-J", folder, os.path.join(SOURCE, "examples", "fortran", "tern.f90"))


class Module(unittest.TestCase):
    def test_functions_are_the_headers(self):
        header = declared()
        found = re.findall(r"^(.*?)(tern_\w+) \((.*)\);$", prototypes(), re.M)
        self.assertGreater(len(found), 20)
        for result, name, arguments in found:
            kinds = [re.sub(r"\w+$", "", argument) for argument in arguments.split(", ")] if arguments else ["void"]
            with self.subTest(name=name):
                self.assertEqual([bare(kind) for kind in [result, *kinds]], header[name])

    def test_types_are_the_headers(self):
        structs = re.findall(r"^typedef struct (\w+) \{\n(.*?)^\} \1;$", prototypes(), re.M | re.S)
        self.assertEqual([name for name, _ in structs], ["tern_error", "tern_sgd_opts"])
        lines = ["#include <stddef.h>", "#include <tern.h>"]
        for name, fields in structs:
            lines += [f"struct fortran_{name} {{\n{fields}}};", f'_Static_assert(sizeof({name}) == sizeof(struct fortran_{name}), "size");']
            for field in re.findall(r"(\w+)(?:\[\d+\])?;", fields):
                lines.append(f'_Static_assert(offsetof({name}, {field}) == offsetof(struct fortran_{name}, {field}), "{field}");')
        call("gcc", "-fsyntax-only", "-I", INCLUDE, "-x", "c", "-", text="\n".join(lines) + "\n")

    def test_constants_are_the_headers(self):
        with open(os.path.join(SOURCE, "examples", "fortran", "tern.f90")) as file:
            constants = re.findall(r"enumerator :: (\w+) = (\d+)", file.read())
        self.assertEqual(len(constants), 3)
        lines = ["#include <tern.h>"] + [f'_Static_assert({name} == {value}, "{name}");' for name, value in constants]
        call("gcc", "-fsyntax-only", "-I", INCLUDE, "-x", "c", "-", text="\n".join(lines) + "\n")


class Program(unittest.TestCase):
    def test_learns_the_same_on_any_number_of_ranks(self):
        alone = call(PROGRAM)
        losses = [float(loss) for loss in re.findall(r"^step \d00  loss (\S+)$", alone, re.M)]
        self.assertEqual((len(losses), losses), (5, sorted(losses, reverse=True)))
        self.assertLess(losses[-1], 1e-3)
        pairs = re.findall(r"true +(\S+)  learned +(\S+)$", alone, re.M)
        self.assertEqual(len(pairs), 4)
        for true, learned in pairs:
            self.assertAlmostEqual(float(true), float(learned), delta=0.1)
        shared = call(os.path.join(BUILD, "tern"), "run", "-n", "2", PROGRAM)
        numbers = [[float(number) for number in re.findall(r"-?\d+\.\d+", out)] for out in (alone, shared)]
        self.assertEqual(len(numbers[0]), len(numbers[1]))
        for one, other in zip(*numbers):  # may differ in the last digit, since gradients are summed in another order
            self.assertAlmostEqual(one, other, delta=2e-6 if abs(one) < 0.01 else 0.0101)


if __name__ == "__main__":
    if not skips.has_part("fortran"):
        skips.end("this build has no Fortran compiler")
    skips.main()
