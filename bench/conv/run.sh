#!/bin/sh
# Convolutions by each algorithm: speed and error against f64 for the layers of the models (`tern bench conv`), and the demo trained for
# 3 epochs by each of them (examples/02_fashion). Writes docs/conv.json, in docs/conv.md the tables of
# this machine's instruction set, and docs/conv.png. About 8 minutes.
#
#     bench/conv/run.sh [--rounds K] [--no-curves] [--json FILE] [--page FILE] [--chart FILE]
#
# TERN_BUILD is the build (default: build). Times mean something on a machine that does nothing else.
set -eu
export OMP_NUM_THREADS=1 TERN_CONV_CACHE=off
exec /usr/bin/python3 "$(dirname "$0")/run.py" "$@"
