"""What the public headers declare, as the compiler sees it; and the flags that this build's programs need."""
import os
import re
import subprocess
import tempfile

SOURCE, BUILD = os.environ["TERN_SOURCE"], os.environ["TERN_BUILD"]
INCLUDE = os.path.join(SOURCE, "include")


def call(*command, **options):
    """Runs a command to its end; its stdout. Fails with all that it said."""
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                          **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def cached(name):
    """A variable of the build's CMake cache; "" if it is empty."""
    with open(os.path.join(BUILD, "CMakeCache.txt")) as cache:
        return re.search(rf"^{name}:\w+=(.*)$", cache.read(), re.M).group(1)


def sanitizer():
    """A sanitized library wants programs that are sanitized too."""
    return [f"-fsanitize={cached('TERN_SANITIZE')}"] if cached("TERN_SANITIZE") else []


def headers():
    """As they are included: "tern.h", "tern/base.h", ..."""
    return sorted(os.path.relpath(os.path.join(folder, name), INCLUDE) for folder, _, names in os.walk(INCLUDE) for name in names)


def including(names):
    return "".join(f"#include <{name}>\n" for name in names)


def names():
    """Everything in the headers that begins with tern_ or TERN_: functions, types, fields' types, constants, macros."""
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "all.c")
        with open(source, "w") as file:
            file.write(including(headers()))
        return {name for flag in ("-P", "-dM") for name in re.findall(r"\b(?:tern|TERN)_\w+", call("gcc", "-E", flag, "-I", INCLUDE, source))}


def declarations():
    """Every function in the headers: {name: (header, is it defined there)}. gcc writes them with -aux-info."""
    with tempfile.TemporaryDirectory() as folder:
        source, seen = os.path.join(folder, "all.c"), os.path.join(folder, "seen")
        with open(source, "w") as file:
            file.write(including(headers()))
        call("gcc", "-fsyntax-only", "-I", INCLUDE, "-aux-info", seen, source)
        with open(seen) as file:
            found = re.findall(rf"^/\* {re.escape(INCLUDE)}/(\S+):\d+:\w([CF]) \*/ .*?\b(\w+) \(", file.read(), re.M)
    return {name: (header, kind == "F") for header, kind, name in found}
