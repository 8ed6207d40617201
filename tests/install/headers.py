"""Reads the declarations of the public headers with the compiler, and the flags that programs for this build
need."""
import os
import re
import subprocess
import tempfile

SOURCE, BUILD = os.environ["TERN_SOURCE"], os.environ["TERN_BUILD"]
INCLUDE = os.path.join(SOURCE, "include")


def call(*command, **options):
    """Runs a command and returns its stdout. If it fails, raises an error with its whole output."""
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                          **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def cached(name):
    """Returns a variable of the build's CMake cache; "" if it is empty."""
    with open(os.path.join(BUILD, "CMakeCache.txt")) as cache:
        return re.search(rf"^{name}:\w+=(.*)$", cache.read(), re.M).group(1)


def sanitizer():
    """Returns the flags that programs need for a sanitized library."""
    return [f"-fsanitize={cached('TERN_SANITIZE')}"] if cached("TERN_SANITIZE") else []


def headers():
    """Returns the headers as they are included: "tern.h", "tern/base.h", ..."""
    return sorted(os.path.relpath(os.path.join(folder, name), INCLUDE) for folder, _, names in os.walk(INCLUDE) for name in names)


def including(names):
    return "".join(f"#include <{name}>\n" for name in names)


def names():
    """Returns all names in the headers that begin with tern_ or TERN_: functions, types, constants,
    macros."""
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "all.c")
        with open(source, "w") as file:
            file.write(including(headers()))
        return {name for flag in ("-P", "-dM") for name in re.findall(r"\b(?:tern|TERN)_\w+", call("gcc", "-E", flag, "-I", INCLUDE, source))}


def declarations():
    """Returns the functions of the headers, {name: (header, whether it is defined there)}, from gcc's
    -aux-info."""
    with tempfile.TemporaryDirectory() as folder:
        source, seen = os.path.join(folder, "all.c"), os.path.join(folder, "seen")
        with open(source, "w") as file:
            file.write(including(headers()))
        call("gcc", "-fsyntax-only", "-I", INCLUDE, "-aux-info", seen, source)
        with open(seen) as file:
            found = re.findall(rf"^/\* {re.escape(INCLUDE)}/(\S+):\d+:\w([CF]) \*/ .*?\b(\w+) \(", file.read(), re.M)
    return {name: (header, kind == "F") for header, kind, name in found}
