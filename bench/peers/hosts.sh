#!/bin/sh
# A training step of two ranks that are on two hosts, in tern and in PyTorch DistributedDataParallel over gloo, in turn, round after round: two
# network namespaces and a link between them of so many bits a second each way. Prints what run.sh prints. Needs root; 2 minutes a round.
#
#     bench/peers/hosts.sh [--model mlp|resnet18|unet3d] [--rates 10gbit,1gbit] [--peers WORD,..] [rounds]
#
# --rates    tc's; "any" is as fast as the link goes, "one" has both ranks on one host, without the link
# TORCH_PYTHON, TERN_BUILD: as for run.sh.
set -eu
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/hosts.py" "$@"
