"""libtern.so exports what the headers declare and nothing else, in version node TERN_0, and allocates memory
in one file only."""
import glob
import os
import re
import tempfile
import unittest

import headers
import skips
from docs import document

LIBRARY = os.path.join(headers.BUILD, "libtern.so")
OBJECTS = os.path.join(headers.BUILD, "CMakeFiles", "tern_objects.dir", "src")

ALLOCATORS = {"malloc", "calloc", "realloc", "reallocarray", "aligned_alloc", "posix_memalign", "memalign", "valloc", "free", "strdup",
              "strndup", "asprintf", "vasprintf", "getline", "getdelim", "open_memstream", "scandir", "realpath"}


def dynamic(tag):
    """Returns the values of one kind of entry, such as SONAME, in the dynamic section."""
    return re.findall(rf"\({tag}\).*\[(.*)\]$", headers.call("readelf", "--dynamic", "--wide", LIBRARY), re.M)


def exported():
    """Returns {(type, name, version node)} of the exported symbols."""
    lines = headers.call("nm", "--dynamic", "--defined-only", "--with-symbol-versions", LIBRARY).splitlines()
    symbols = {(kind, *name.split("@@")) for _, kind, name in map(str.split, lines)}
    return {symbol for symbol in symbols if symbol[:2] != ("A", "TERN_0")}  # the node itself


class Exports(unittest.TestCase):
    def test_what_the_headers_declare(self):
        declared = {("T", name, "TERN_0") for name in headers.declarations()}
        self.assertEqual(sorted(exported() - declared), [], "exported, but in no header")
        self.assertEqual(sorted(declared - exported()), [], "declared, but not exported")


class Dynamic(unittest.TestCase):
    def test_soname(self):
        version = headers.cached("CMAKE_PROJECT_VERSION")
        self.assertEqual(dynamic("SONAME"), [f"libtern.so.{version.split('.')[0]}"])
        self.assertEqual(os.path.basename(os.path.realpath(LIBRARY)), f"libtern.so.{version}")

    def test_plug_ins_libraries_are_not_needed(self):
        needed = dynamic("NEEDED")
        self.assertIn("libc.so.6", needed)
        for name in needed:
            self.assertNotRegex(name, "cairo|lapack|blas|mpi|cuda|stdc")


class Size(unittest.TestCase):
    def test_docs_edge_has_the_size(self):
        """The library as it is installed is as small as the page says, and at most 6 MB."""
        if headers.sanitizer() or headers.cached("CMAKE_BUILD_TYPE") != "Release" or os.uname().machine != "x86_64":
            self.skipTest("the size is that of a release for x86-64")
        if not headers.call("cc", "-dumpversion").startswith("12"):
            self.skipTest("the size is that of gcc 12's code")
        said = float(re.search(r"^\| `libtern\.so`, stripped \| ([0-9.]+) MB \| [0-9.]+ MB \|$", document.read("docs/edge.md"), re.M).group(1))
        with tempfile.NamedTemporaryFile() as stripped:
            headers.call("strip", "-o", stripped.name, LIBRARY)
            size = os.path.getsize(stripped.name)
        self.assertAlmostEqual(size / 1e6, said, delta=0.1)
        self.assertLessEqual(size, 6_000_000)


class Memory(unittest.TestCase):
    def test_one_file_calls_the_allocator(self):
        """This makes every allocation go through the hooks of tern_allocator_set."""
        objects = sorted(glob.glob(os.path.join(OBJECTS, "**", "*.o"), recursive=True))
        self.assertGreater(len(objects), 50)
        callers, seen = {}, set()
        for line in headers.call("nm", "--undefined-only", "--print-file-name", "--format=posix", *objects).splitlines():
            path, name = re.fullmatch(r"(.*): (\S+) [UwvV] *", line).groups()
            seen.add(path)
            if name in ALLOCATORS:
                callers.setdefault(os.path.relpath(path, OBJECTS), set()).add(name)
        self.assertGreater(len(seen), len(objects) / 2)
        self.assertEqual(callers, {"base/alloc.c.o": {"aligned_alloc", "free"}})


if __name__ == "__main__":
    skips.main()
