"""Implements run.sh: writes a table per model of its layers by algorithm, and the demo's curves by algorithm."""
import argparse
import csv
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
DOCS = os.path.join(ROOT, "docs")
BUILD = os.path.abspath(os.environ.get("TERN_BUILD", os.path.join(ROOT, "build")))
sys.path.append(os.path.join(ROOT, "bench"))
import chart  # noqa: E402

TERN = os.path.join(BUILD, "tern")
PARTS = os.path.join(BUILD, "bench_parts")
DEMO = os.path.join(BUILD, "examples", "02_fashion")
EPOCHS = 3

MODELS = {
    "ResNet-18, 32 images of 32x32": [],
    "3-D U-Net of width 16, 1 volume of 32x64x64": [
        "1,1,32,64,64:16,3,3,3", "1,16,32,64,64:16,3,3,3", "1,32,16,32,32:32,3,3,3", "1,64,8,16,16:64,3,3,3",
        "1,128,4,8,8:128,3,3,3", "1,32,32,64,64:16,3,3,3",
    ],
    "ResNet-50 and DeepLabV3, 4 images of 257x257": [
        "4,3,257,257:64,7,7:2:3", "4,64,65,65:64,3,3", "4,64,65,65:256,1,1", "4,128,33,33:128,3,3", "4,512,33,33:128,1,1",
        "4,256,33,33:256,3,3:1:2:2", "4,512,33,33:512,3,3:1:4:4", "4,2048,33,33:256,3,3:1:12:12", "4,2048,33,33:256,3,3:1:24:24",
    ],
}

# The first of these that the processor has decides which algorithms are available; the page has tables for each.
UNITS = ["amx_bf16", "avx512f", "avx2", "asimd"]

# The environment that makes the demo use one algorithm for all cases that it supports.
WAYS = {
    "direct": {"TERN_EXACT_CONV": "1"},
    "winograd": {"TERN_EXACT_CONV": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "the fastest": {"TERN_EXACT_CONV": "0"},
}


def output(argv, **environment):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


# ---- layers ----

def unit():
    (features,) = re.findall(r"^features +(.*)$", output([TERN, "info"]), re.M)
    return next((name for name in UNITS if name in features.split()), "other")


def measure(cases, rounds):
    """Measures errors only for ResNet-18's layers: the reference kernel takes minutes for the larger ones."""
    options = [word for case in cases for word in ("--case", case)] + ["--no-error"] * bool(cases)
    return [json.loads(line) for line in output([PARTS, "conv", "--json", "--rounds", str(rounds), *options]).splitlines()]


def table(lines):
    """Returns a table with a row per case and direction, and GFLOPS and error of each algorithm."""
    algorithms = list(dict.fromkeys(line["algorithm"] for line in lines))
    found = {(line["case"], line["kernel"], line["algorithm"]): line for line in lines}
    text = ["| input : weight [: stride : padding : dilation] | kernel | " + " | ".join(f"{name}, GFLOPS | error" for name in algorithms) + " |",
            "| --- | --- |" + " ---: | ---: |" * len(algorithms)]
    for case, kernel in dict.fromkeys((line["case"], line["kernel"]) for line in lines):
        row = [found.get((case, kernel, name)) for name in algorithms]
        cells = [f"{cell['gflops']:.0f} | " + (f"{cell['error']:.1e}" if cell["error"] else "") if cell else " | " for cell in row]
        text.append(f"| {case} | {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(text)


# ---- curves ----

def train(environment):
    """Runs the demo. Returns its losses by step and, for each epoch, [loss, train %, test %]."""
    with tempfile.TemporaryDirectory() as folder:
        text = output(["sh", "-c", f'cd "{folder}" && exec "{TERN}" run -n 2 "{DEMO}" {EPOCHS}'], **environment)
        (path,) = glob.glob(os.path.join(folder, "runs", "*", "scalars.csv"))
        with open(path) as file:
            steps = [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file) if row["tag"] == "loss/step"]
    epochs = re.findall(r"^epoch \d+ +loss ([\d.]+) +train ([\d.]+) % +test ([\d.]+) %", text, re.M)
    return {"steps": steps, "epochs": [list(map(float, epoch)) for epoch in epochs]}


def epochs_table(curves):
    text = ["| | " + " | ".join(f"epoch {i + 1}: loss | train | test" for i in range(EPOCHS)) + " |", "| --- |" + " ---: |" * 3 * EPOCHS]
    for name, curve in curves.items():
        text.append(f"| {name} | " + " | ".join(f"{loss:.4f} | {train:.2f} % | {test:.2f} %" for loss, train, test in curve["epochs"]) + " |")
    return "\n".join(text)


# ---- the page ----

def put_into_page(path, name, text):
    with open(path) as file:
        page = file.read()
    begin, end = f"<!-- {name}: bench/conv/run.sh -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*" + re.escape(end), re.S)
    assert pattern.search(page), f"{path} has no place for the {name}"
    with open(path, "w") as file:
        file.write(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-curves", action="store_true")
    parser.add_argument("--json", default=os.path.join(DOCS, "conv.json"))
    parser.add_argument("--page", default=os.path.join(DOCS, "conv.md"))
    parser.add_argument("--chart", default=os.path.join(DOCS, "conv.png"))
    args = parser.parse_args()
    found = {"layers": {}, "curves": {}}
    if os.path.exists(args.json):
        with open(args.json) as file:
            found = json.load(file)
    layers = found["layers"][unit()] = {name: measure(cases, args.rounds) for name, cases in MODELS.items()}
    put_into_page(args.page, f"layers, {unit()}", "\n\n".join(f"{name}:\n\n{table(lines)}" for name, lines in layers.items()))
    if not args.no_curves:
        curves = found["curves"] = {name: train(environment) for name, environment in WAYS.items()}
        put_into_page(args.page, "epochs", epochs_table(curves))
        chart.save_curves(BUILD, args.chart, "loss of the demo, mean over 50 steps", "step", "loss",
                          [(name, curve["steps"]) for name, curve in curves.items()])
    with open(args.json, "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
