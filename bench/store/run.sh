#!/bin/sh
# Compares tern's TCP store with PyTorch's, in turn for some rounds: set-and-get pairs per second, for one client and for each of 64
# clients at the same time. Prints the medians over the rounds and their ratios as Markdown. PyTorch's client runs in Python, so tern's
# client is also used with PyTorch's server, to measure that server without Python.
#
#     bench/store/run.sh [rounds]
#
# TERN_BUILD is the build folder (default: build), PYTHON the python3 with PyTorch (default: /usr/bin/python3). Run it on an idle
# machine: otherwise the ratios mean little.
set -eu
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/measure.py" "$@"
