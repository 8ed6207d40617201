#!/bin/sh
# The same work in tern, in PyTorch DistributedDataParallel over gloo and in Open MPI, in turn, round after round: training steps,
# start, memory, all_reduce. Prints medians, their spread and the ratio of medians. About 4 minutes at 3 rounds.
#
#     bench/peers/run.sh [--profile] [--demo] [--bf16] [--json FILE] [rounds]
#
# --profile  what each kernel of tern's steps takes, beside the core's measured peak and copy bandwidth
# --demo     an epoch of the demo's net too (examples/02_fashion, fashion.py): a minute more a round
# --bf16     the steps in bf16 too, in an autocast region
# TORCH_PYTHON=/path/to/python3 adds a column for another PyTorch than Debian's; TERN_BUILD is the build (default: build).
# ./scripts/setup.sh bench installs the peers. Every rank has one thread. Ratios mean something on a machine that does nothing else.
set -eu
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/run.py" "$@"
