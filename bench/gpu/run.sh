#!/bin/sh
# Compares a training step on one GPU in tern and in PyTorch, in turn for some rounds: ResNet-50, a 3-D U-Net, an MLP. PyTorch uses channels
# last, autocast and fused SGD, and runs with a CUDA graph of the whole step, with graph and torch.compile, and without a graph; the goals refer
# to the fastest of these. tern uses TERN_GRAPHS=1 unless the environment sets 0. Both convolve f32 in TF32 and multiply f32 matrices in f32, as
# PyTorch does by default, and run the same number of warm-up steps, in which an idle GPU reaches its clock rate. CUDA events time the steps.
# Prints medians, their spread, the ratios of medians, and which goals are met. After a failure, or if the work was not the same, it continues
# and exits with 1 at the end. A process may take 3 minutes.
#
#     bench/gpu/run.sh [--only NAME,..] [--ways WAY,..] [--profile] [--json FILE] [rounds]
#
# --only      any of resnet50, unet3d, mlp and kernels; kernels compares SGD, Adam, cross entropy and Dice on data larger than a cache with copies
# --ways      how PyTorch runs its steps: any of graph, compile, eager and autotune, the slowest mode of torch.compile, which takes many minutes
#             to start (default: the first three)
# --profile   compares each of tern's kernels with a copy of as many bytes; counts the CUDA calls and the waits of a step with CUPTI
# --json      writes all measurements, the machine and the date after each round
# TORCH_PYTHON is the python3 that has PyTorch with CUDA (default: the one on the PATH); without it, only tern is measured. TERN_BUILD is the
# build folder (default: build).
set -eu
exec "${TORCH_PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"
