#!/usr/bin/env python3
"""Finds files that refer to each other in a circle: A calls a function of B, B one of C, and C one of A. Prints the circles
of more than three files below a folder; exit status 1 if there is any.

    scripts/circles.py [src/comm]
"""
import pathlib
import re
import sys

MOST = 3
DEFINITION = re.compile(r"^(?!static|typedef|extern)[a-z][\w \*]*?\b(tern_\w+)(?:\([^;{}]*\)\n\{|(?:\[\w*\])? = )", re.M)


def code_of(path):
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', " ", path.read_text(), flags=re.S)


def references(folder):
    """Returns for each file the files that define what it uses."""
    code = {path: code_of(path) for path in sorted(folder.rglob("*.c"))}
    owner = {name: path for path, text in code.items() for name in DEFINITION.findall(text)}
    return {path: {owner[name] for name in re.findall(r"\btern_\w+", text) if name in owner} - {path} for path, text in code.items()}


def circles(graph):
    """Tarjan's strongly connected components of more than one file."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = stack.index(node)
            if len(stack) - place > 1:
                found.append(stack[place:])
            del stack[place:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "src/comm")
    graph = references(folder)
    large = [circle for circle in circles(graph) if len(circle) > MOST]
    for circle in large:
        print(f"{len(circle)} files in a circle:")
        for path in sorted(circle):
            print(f"    {path} uses {', '.join(sorted(str(other) for other in graph[path] if other in circle))}")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
