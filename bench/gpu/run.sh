#!/bin/sh
# A training step on one GPU in tern and in PyTorch in turn, round after round: ResNet-50, a 3-D U-Net, an MLP. PyTorch has channels last,
# autocast, fused SGD and a CUDA graph of the whole step; tern has TERN_GRAPHS=1, unless the environment says 0. Steps are timed by the device. Prints medians, their spread, the
# ratios of medians, and which goals are met.
#
#     bench/gpu/run.sh [--only NAME,..] [--compile] [--profile] [--json FILE] [rounds]
#
# --only     just these of resnet50, unet3d, mlp
# --compile  too: net and loss by torch.compile in its slowest mode, in the graph; it takes minutes to begin
# --profile  what each of tern's kernels takes beside a copy and a large product; and, by CUPTI, what a step asks of CUDA and how often it waits
# TORCH_PYTHON is the python3 that has PyTorch with CUDA (default: the one on the PATH), TERN_BUILD the build (default: build).
set -eu
exec "${TORCH_PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"
