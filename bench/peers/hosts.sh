#!/bin/sh
# Compares a training step of two ranks on two hosts in tern and in PyTorch DistributedDataParallel over gloo, in turn for some rounds. The hosts
# are two network namespaces with a link of limited rate. Prints the same table as run.sh. Needs root; a round takes 2 minutes.
#
#     bench/peers/hosts.sh [--model mlp|resnet18|unet3d] [--rates 10gbit,1gbit] [--peers WORD,..] [rounds]
#
# --rates    rates of the link as for tc; "any": no limit; "one": both ranks on one host, without the link
# TORCH_PYTHON and TERN_BUILD: as in run.sh.
set -eu
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/hosts.py" "$@"
