#!/bin/sh
# Compares the ways to train on the same cores, in turn for some rounds: one process, DataParallel, DDP, DDP with mixed precision, DDP with
# a sharded optimizer, one rank beside independent copies of itself (the time that ranks would take without communication), and PyTorch's
# single process and DDP. Prints as Markdown: seconds per epoch, memory per replica, lines that differ between examples/08, 09 and 10, and
# the ratios with their aims. 3 rounds take about 5 minutes.
#
#     bench/modes/run.sh [--cores N] [--json FILE] [--chart FILE] [rounds]
#     bench/modes/run.sh --json docs/modes.json --chart docs/modes.png      for docs/parallel.md
#
# TERN_BUILD is the build folder (default: build). Run it on an idle machine: otherwise the ratios mean little.
set -eu
exec /usr/bin/python3 "$(dirname "$0")/measure.py" "$@"
