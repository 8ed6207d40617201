"""Implements run.sh: runs a job for each number of ranks and back end and writes their lines as JSON and as tables."""
import argparse
import json
import os
import re
import shutil
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(HERE, "..", "..", "docs")
BUILD = os.path.abspath(os.environ.get("TERN_BUILD", os.path.join(HERE, "..", "..", "build")))
TERN = os.path.join(BUILD, "tern")
BEGIN, END = "<!-- table: bench/collectives/run.sh -->", "<!-- end of table -->"

# The name of a job, its back end, its memory, whether it simulates two hosts (each half of the ranks gets its own TERN_HOST_ID), and
# whether MPI starts it.
WAYS = [
    ("native, windows", "native", "window", False, False),
    ("native, ordinary memory", "native", "plain", False, False),
    ("gloo", "gloo", "plain", False, False),
    ("mpi", "mpi", "plain", False, True),
    ("native+gloo, two hosts, windows", "native+gloo", "window", True, False),
    ("native+mpi, two hosts, windows", "native+mpi", "window", True, True),
]


def command(ranks, backend, memory, two_hosts, by_mpi, options):
    bench = [TERN, "bench", "collectives", "--json", "--backend", backend, "--memory", memory, *options]
    if two_hosts:
        half = 'TERN_HOST_ID=half-$((${RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}} * 2 / %d)) exec "$0" "$@"' % ranks
        bench = ["sh", "-c", half, *bench]
    if not by_mpi:
        return [TERN, "run", "-n", str(ranks), *bench]
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *bench]


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.startswith("tern: ")]
    return (lines or text.strip().splitlines() or ["no output"])[-1]


def measure(ranks, way, options):
    """Returns the job's lines and None, or no lines and the reason."""
    name, backend, memory, two_hosts, by_mpi = way
    if by_mpi and not shutil.which("mpirun"):
        return [], "mpirun is missing"
    done = subprocess.run(command(ranks, backend, memory, two_hosts, by_mpi, options), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=1800)
    if done.returncode:
        return [], last_line(done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [{**line, "way": name} for line in lines], None


def bytes_text(count):
    for shift, unit in ((20, "MB"), (10, "KB")):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.3g} {unit}"
    return f"{count} B"


def us_text(us):
    return f"{us:.1f}" if us < 10 else f"{us:.0f}" if us < 10000 else f"{us / 1000:.0f} ms"


def cell(line):
    if not line:
        return ""
    ratio = f" ({line['bound_ratio']:.1f})" if line["bound_ratio"] else ""
    return us_text(line["median_us"]) + ratio


def rounded(line, sizes):
    """Returns the requested size: the measured size may be some bytes larger, to be split into equal parts."""
    return min(sizes, key=lambda size: abs(size - line["bytes"])) if line["bytes"] else 0


def table(lines, ranks, way, sizes):
    """Returns the table of a job, with a row per op and a column per size."""
    mine = [line for line in lines if (line["ranks"], line["way"]) == (ranks, way)]
    found = {(line["op"], rounded(line, sizes)): line for line in mine}
    ops = list(dict.fromkeys(line["op"] for line in mine))
    text = [f"| {ranks} ranks, {way} | " + " | ".join(map(bytes_text, sizes)) + " |", "| --- |" + " ---: |" * len(sizes)]
    for op in ops:
        cells = [cell(found.get((op, 0)))] if (op, 0) in found else [cell(found.get((op, size))) for size in sizes]
        text.append(f"| {op} | " + " | ".join(cells + [""] * (len(sizes) - len(cells))) + " |")
    return "\n".join(text)


def report(lines, absent, sizes):
    jobs = list(dict.fromkeys((line["ranks"], line["way"]) for line in lines))
    parts = [table(lines, ranks, way, sizes) for ranks, way in jobs]
    parts += [f"Not measured: {way} on {ranks} ranks: {why}." for ranks, way, why in absent]
    return "\n\n".join(parts)


def put_into_page(path, text):
    with open(path) as file:
        page = file.read()
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.S)
    assert pattern.search(page), f"{path} has no place for the table"
    with open(path, "w") as file:
        file.write(pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page))


def parse_sizes(text):
    return [int(size[:-1]) << {"K": 10, "M": 20, "G": 30}[size[-1]] if size[-1] in "KMG" else int(size) for size in text.split(",")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="4,1K,64K,1M,25M,256M")
    parser.add_argument("--seconds", default="0.3", help="time per size")
    parser.add_argument("--json", default=os.path.join(DOCS, "collectives.json"))
    parser.add_argument("--page", default=os.path.join(DOCS, "collectives.md"))
    args = parser.parse_args()
    lines, absent = [], []
    for ranks in map(int, args.ranks.split(",")):
        for way in WAYS:
            found, why = measure(ranks, way, ["--sizes", args.sizes, "--seconds", args.seconds])
            lines += found
            absent += [(ranks, way[0], why)] if why else []
            print(f"{ranks} ranks, {way[0]}: {why or f'{len(found)} lines'}", flush=True)
    with open(args.json, "w") as file:
        rows = ",\n".join(json.dumps(line) for line in lines)
        file.write(f'{{"cores": {len(os.sched_getaffinity(0))}, "absent": {json.dumps(absent)}, "lines": [\n{rows}\n]}}\n')
    put_into_page(args.page, report(lines, absent, parse_sizes(args.sizes)))


if __name__ == "__main__":
    main()
