#!/bin/sh
# Measures every collective with every available back end, by size and number of ranks (`tern bench collectives`): medians and their ratio to
# the bound. Writes docs/collectives.json and the tables in docs/collectives.md. Takes about 20 minutes.
#
#     bench/collectives/run.sh [--ranks 2,4,8] [--sizes 4,1K,64K,1M,25M,256M] [--seconds 0.3] [--json FILE] [--page FILE]
#
# TERN_BUILD is the build folder (default: build). Run it on an idle machine: otherwise the ratios mean little.
set -eu
export OMP_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/run.py" "$@"
