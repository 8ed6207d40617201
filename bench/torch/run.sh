#!/bin/sh
# Compares torch.distributed's back ends gloo and tern (python/) at the same work, in turn for some rounds: all_reduce of ordinary tensors and of
# the back end's own memory, and training steps with DDP and FSDP2. Prints medians, their spread, and the ratios of medians. A back end that
# does nothing is the floor for small tensors and for DDP's steps: what Python and PyTorch take. 10 rounds take some minutes.
#
#     bench/torch/run.sh [--only NAME,..] [--hosts RATE] [--json FILE] [rounds]
#
# --only   any of small, all_reduce, all_reduce8, mlp, resnet18, transformer, fsdp
# --hosts  the two ranks are on two hosts: network namespaces with a link of this rate, as for tc; "any": no limit. Needs root
# PYTHON is the python3 with PyTorch (default: that of scripts/peers.sh, or Debian's); the extension is built for it in the build folder if it is
# not there. TERN_BUILD is the build folder (default: build). Every rank has one thread. Run it on an idle machine: on a busy one, compare ratios
# only, and CPU times instead of step times.
set -eu
peers=${TERN_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/tern-peers}/bin/python
[ -x "$peers" ] || peers=/usr/bin/python3
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "${PYTHON:-$peers}" "$(dirname "$0")/measure.py" "$@"
