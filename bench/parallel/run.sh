#!/bin/sh
# One training step in one process, by DataParallel and by DDP on the same cores, in turn, round after round; and one rank beside an
# independent copy of itself, which is what two ranks would take if they had nothing to say to each other. Prints Markdown: samples/s,
# memory of a replica, lines that change between examples/08, 09 and 10, and the ratios that are aimed at. About 3 minutes at 3 rounds.
#
#     bench/parallel/run.sh [--cores N] [--json FILE] [rounds]
#
# TERN_BUILD is the build (default: build). Ratios mean something on a machine that does nothing else.
set -eu
exec /usr/bin/python3 "$(dirname "$0")/measure.py" "$@"
