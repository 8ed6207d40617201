#!/bin/sh
# Compares all_reduce over gloo in tern (one rank per host, or two hosts with several ranks; window and plain memory) and in PyTorch. They run
# in turn for some rounds. Prints medians over the rounds in microseconds. A round takes a minute.
#
#     bench/collectives/hosts.sh [--ranks 2,4] [--sizes 4,1K,64K,1M,25M] [--seconds 0.5] [rounds]
#
# TORCH_PYTHON=/path/to/python3 adds another PyTorch to Debian's; TERN_BUILD is the build folder (default: build).
set -eu
export OMP_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/hosts.py" "$@"
