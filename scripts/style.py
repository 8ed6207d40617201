#!/usr/bin/env python3
"""Prints how the code is cut into files and functions: for src/, cli/ and each folder of src/, or for the folders that are
named. Figures for people, not a check: about 15 functions a .c file, at most 45 % of the static functions referenced once, and
3 % with a name that stands in three files or more, since a backtrace shows only the name. Needs universal-ctags.

    scripts/style.py [FOLDER ..]
"""
import collections
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

SUFFIXES = ".c", ".h", ".cc", ".cu", ".def"
SOURCES = ".c", ".cc", ".cu"
IN_FILES = 3
WORST = 20
NO_CODE = re.compile(r"\s*(//.*|/?\*.*)?")  # blank lines and comments
NO_WORDS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)

Function = collections.namedtuple("Function", "name path lines static")


def functions_below(folders):
    command = ["ctags", "-R", "-f", "-", "--languages=C,C++,CUDA", "--langmap=C:+.c", "--kinds-C=f", "--kinds-C++=f", "--kinds-CUDA=f",
               "--fields=nef", "--excmd=number"]
    text = subprocess.run(command + [str(folder) for folder in folders], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in text.splitlines():
        name, path, _, *fields = line.split("\t")
        values = dict(field.split(":", 1) for field in fields if ":" in field)
        if "end" in values and not name.startswith("__"):  # __launch_bounds__ is no function
            yield Function(name, pathlib.Path(path), int(values["end"]) - int(values["line"]) + 1, "file" in values)


def words_of(path):
    return collections.Counter(re.findall(r"\w+", NO_WORDS.sub(" ", path.read_text(errors="replace"))))


def percent(part, whole):
    return f"{100 * part / whole:.1f}" if whole else "-"


def row_of(folder, functions, once, shared):
    files = [path for path in folder.rglob("*") if path.suffix in SUFFIXES]
    sources = sum(path.suffix in SOURCES for path in files)
    code = sum(not NO_CODE.fullmatch(line) for path in files for line in path.read_text(errors="replace").splitlines())
    own = [function for function in functions if folder in function.path.parents and function.path.suffix in SOURCES]
    lengths = sorted(function.lines for function in own)
    statics = [function for function in own if function.static]
    places = [lengths[min(len(lengths) * part // 100, len(lengths) - 1)] if lengths else 0 for part in (90, 99)]
    return [str(folder), code, len(files), f"{len(own) / max(sources, 1):.1f}", f"{statistics.median(lengths or [0]):.0f}", *places,
            percent(sum(function in once for function in statics), len(statics)),
            percent(sum(function.name in shared for function in statics), len(statics))]


def main():
    if not shutil.which("ctags"):
        sys.exit("style.py needs ctags: install the package universal-ctags")
    named = [pathlib.Path(folder) for folder in sys.argv[1:]]
    top = [pathlib.Path("src"), pathlib.Path("cli")]
    functions = list(functions_below(top))
    statics = [function for function in functions if function.static and function.path.suffix in SOURCES]
    words = {path: words_of(path) for path in {function.path for function in statics}}
    # Besides the definition and, if there is one, the declaration before it.
    once = {function for function in statics if words[function.path][function.name] == 2}
    where = collections.defaultdict(set)
    for function in statics:
        where[function.name].add(function.path)
    shared = {name for name, paths in where.items() if len(paths) >= IN_FILES}

    head = ["folder", "code lines", "files", "functions/file", "median", "p90", "p99", "once %", f"in {IN_FILES}+ files %"]
    folders = named or top + sorted(path for path in top[0].iterdir() if path.is_dir())
    rows = [head] + [row_of(folder, functions, once, shared) for folder in folders]
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(head))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) if not column else str(cell).rjust(width)
                        for column, (cell, width) in enumerate(zip(row, widths))).rstrip())

    inside = {name: sum(any(folder in path.parents for folder in folders) for path in where[name]) for name in shared}
    worst = sorted((name for name in shared if inside[name]), key=lambda name: (-len(where[name]), name))[:WORST]
    print(f"\nnames of static functions in {IN_FILES} or more files: " +
          (", ".join(f"{name} {len(where[name])}" for name in worst) or "none"))


if __name__ == "__main__":
    main()
