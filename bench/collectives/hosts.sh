#!/bin/sh
# all_reduce over gloo in tern (a host for every rank; two hosts of several; through windows and from ordinary memory) and in PyTorch, in
# turn, round after round: medians over the rounds, in microseconds. A minute a round.
#
#     bench/collectives/hosts.sh [--ranks 2,4] [--sizes 4,1K,64K,1M,25M] [--seconds 0.5] [rounds]
#
# TORCH_PYTHON=/path/to/python3 adds another PyTorch than Debian's; TERN_BUILD is the build (default: build).
set -eu
export OMP_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/hosts.py" "$@"
