#!/bin/sh
# Compares the convolution algorithms: speed and error against f64 for the layers of the models (`bench_parts conv`), and 3 epochs of the
# demo (examples/02_fashion) with each. Writes docs/conv.json, the tables for this machine's instruction set in docs/conv.md, and
# docs/conv.png. Takes about 8 minutes.
#
#     bench/conv/run.sh [--rounds K] [--no-curves] [--json FILE] [--page FILE] [--chart FILE]
#
# TERN_BUILD is the build folder (default: build). Run it on an idle machine: otherwise the times mean little.
set -eu
export OMP_NUM_THREADS=1 TERN_CONV_CACHE=off
exec /usr/bin/python3 "$(dirname "$0")/run.py" "$@"
