#!/bin/sh
# The same work in tern, in PyTorch DistributedDataParallel over gloo (its usual layout, channels last, torch.compile), in Open MPI and in
# MPICH, in turn, round after round: training steps, start, memory, all_reduce. Prints medians, their spread, the ratios of medians, the best
# peer's first, and which goals are met. About 8 minutes at 3 rounds.
#
#     bench/peers/run.sh [--only NAME,..] [--peers WORD,..] [--bf16] [--large] [--demo] [--profile] [--json FILE] [rounds]
#
# --only     just these of mlp, start, resnet18, unet3d, unet3d-160, resnet50, deeplabv3, all_reduce, demo; resnet18-bf16 is that in bf16
# --peers    just those in whose names one of these is: `--only resnet18 --peers 1.13 1` takes half a minute
# --bf16     the steps in bf16 too, in an autocast region
# --large    a 3-D U-Net of 32x160x160, ResNet-50 and DeepLabV3 of 257x257 too: 10 minutes more a round
# --demo     the demo's 4 epochs too (examples/02_fashion, fashion.py): 5 minutes more a round for each PyTorch
# --profile  what each kernel of tern's steps takes, beside the core's measured peak and copy bandwidth
# TORCH_PYTHON=/path/to/python3 adds another PyTorch than Debian's, and torch.compile, which wants a C++ compiler; TERN_BUILD is the build
# (default: build). ./scripts/setup.sh bench installs the peers. Every rank has one thread. Ratios mean something on a machine that does
# nothing else; on another one processor time tells more than a step's.
set -eu
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/run.py" "$@"
