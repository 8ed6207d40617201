#!/bin/sh
# The ways to train, on the same cores, in turn, round after round: one process, DataParallel, DDP, DDP with mixed precision, with a
# sharded optimizer, one rank beside independent copies of itself (what ranks would take if they had nothing to say to each other),
# and PyTorch's single process and DDP. Prints Markdown: seconds an epoch, memory of a replica, lines that change between
# examples/08, 09 and 10, and the ratios that are aimed at. About 5 minutes at 3 rounds.
#
#     bench/modes/run.sh [--cores N] [--json FILE] [--chart FILE] [rounds]
#     bench/modes/run.sh --json docs/modes.json --chart docs/modes.png      what docs/parallel.md shows
#
# TERN_BUILD is the build (default: build). Ratios mean something on a machine that does nothing else.
set -eu
exec /usr/bin/python3 "$(dirname "$0")/measure.py" "$@"
