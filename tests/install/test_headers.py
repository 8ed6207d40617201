"""The public headers: each compiles alone in C99 and C++17 and has C linkage. No function is only a macro or
inline, because other languages could not call it."""
import os
import re
import subprocess
import tempfile
import unittest

import headers
import skips

STRICT = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-I", headers.INCLUDE]
DIALECTS = {"C++98": ["g++", "-std=c++98", "-x", "c++"], "C99": ["gcc", "-std=c99", "-x", "c"], "C11": ["gcc", "-std=c11", "-x", "c"], "C++17": ["g++", "-std=c++17", "-x", "c++"]}


def compile_text(dialect, text, *more):
    """Returns the compiler's messages; "" if there are none."""
    command = [*DIALECTS[dialect], *STRICT, *more, "-fsyntax-only", "-"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, timeout=60)
    return done.stderr if done.returncode else ""


class Alone(unittest.TestCase):
    def test_each_compiles(self):
        for header in headers.headers():
            for dialect in DIALECTS:
                with self.subTest(header=header, dialect=dialect):
                    self.assertEqual(compile_text(dialect, headers.including([header] * 2)), "")

    def test_a_fault_is_seen(self):
        for dialect in DIALECTS:
            self.assertNotEqual(compile_text(dialect, "#include <tern.h>\nint a[tern_version(1)];\n"), "")

    def test_tern_h_includes_all(self):
        with open(os.path.join(headers.INCLUDE, "tern.h")) as file:
            included = set(re.findall(r"^#include <(.*)>$", file.read(), re.M))
        public = {name for name in headers.headers() if not name.startswith("tern/backend/")}
        self.assertEqual(included, public - {"tern.h"})


class Functions(unittest.TestCase):
    def test_named_and_declared_only(self):
        declared = headers.declarations()
        self.assertGreater(len(declared), 150)
        for name, (header, is_defined) in declared.items():
            with self.subTest(name=name, header=header):
                self.assertRegex(name, r"^tern_[a-z0-9]+(_[a-z0-9]+)*$")
                self.assertFalse(is_defined, "inline functions cannot be called from other languages")

    def test_each_links_from_cxx(self):
        """A C++ program takes the address of every function, so each is exported with C linkage."""
        addresses = "".join(f"    reinterpret_cast<void *>({name}),\n" for name in sorted(headers.declarations()))
        text = headers.including(headers.headers()) + f"void *all[] = {{\n{addresses}}};\nint main() {{ return !all[0]; }}\n"
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "all.cpp"), os.path.join(folder, "all")
            with open(source, "w") as file:
                file.write(text)
            headers.call("g++", "-std=c++17", *STRICT, *headers.sanitizer(), source, "-o", program, "-L", headers.BUILD, "-ltern")
            headers.call(program, env={**os.environ, "LD_LIBRARY_PATH": headers.BUILD})


class Macros(unittest.TestCase):
    def test_only_constants(self):
        """The macros are include guards, numbers, strings, and X lists from which enumerations are made."""
        for header in headers.headers():
            with open(os.path.join(headers.INCLUDE, header)) as file:
                text = file.read().replace("\\\n", "")
            for name, arguments, value in re.findall(r"^\s*#\s*define\s+(\w+)(\([^)]*\))?[ \t]*(.*)$", text, re.M):
                with self.subTest(header=header, macro=name):
                    self.assertRegex(name, r"^TERN_[A-Z0-9_]+$")
                    if name == "TERN__X":
                        self.assertIn(f"#undef {name}\n", text)
                    elif arguments:
                        self.assertEqual((arguments, name[-5:]), ("(X)", "_LIST"))
                    elif name != "TERN_API":
                        self.assertRegex(value, r'^(|\d+(\.\d+)?|\(-\d+\)|"\w+")( */\*.*)?$')


class Structs(unittest.TestCase):
    def test_those_that_programs_make_can_grow(self):
        """They have no size, so they end in members that are NULL until a later version uses them: so many are left of four."""
        for header, name, left in ("data.h", "tern_dataset", 3), ("data.h", "tern_batch", 4), ("function.h", "tern_function", 4), ("image.h", "tern_image", 4):
            with self.subTest(name=name):
                with open(os.path.join(headers.INCLUDE, "tern", header)) as file:
                    body = re.search(rf"struct {name} {{\n(.*?)^}}", file.read(), re.M | re.S).group(1)
                self.assertRegex(body.rstrip().splitlines()[-1], rf"^    void \*reserved\[{left}\]; +/\* NULL")


class Options(unittest.TestCase):
    def test_each_has_a_row_in_the_test_of_sizes(self):
        with open(os.path.join(headers.SOURCE, "tests", "base", "test_opts.c")) as file:
            rows = set(re.findall(r"^ +X\((\w+), \w+\)", file.read(), re.M))
        declared = {name[len("tern_"):-len("_defaults")] for name in headers.declarations() if name.endswith("_defaults")}
        self.assertEqual(rows, declared, "READERS in tests/base/test_opts.c")


if __name__ == "__main__":
    skips.main()
