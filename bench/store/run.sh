#!/bin/sh
# tern's TCP store beside PyTorch's, in turn, round after round: pairs of a set and a get a second, of one client and of each of 64 at
# once. Prints Markdown, the medians over the rounds and their ratios. PyTorch's client is asked from Python; so that its server is
# also seen without Python, tern's client asks it too.
#
#     bench/store/run.sh [rounds]
#
# TERN_BUILD is the build (default: build), PYTHON whose PyTorch (default: /usr/bin/python3). Ratios mean something on a machine that
# does nothing else.
set -eu
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/measure.py" "$@"
