#!/bin/sh
# A training step on one GPU in tern and in PyTorch in turn, round after round: ResNet-50, a 3-D U-Net, an MLP. PyTorch has channels last,
# autocast, fused SGD, and a CUDA graph of the whole step, without torch.compile and with it, and no graph; the fastest of them is what the
# goals are about. tern has TERN_GRAPHS=1, unless the environment says 0. Both convolve f32 in TF32 and multiply matrices of f32 in f32, as
# PyTorch does by itself, and make equally many steps before those that count, in which an idle GPU comes to its clock. Steps are timed by the
# device. Prints medians, their spread, the ratios of medians, and which goals are met; exits with 1 where something failed or was not the same
# work, and goes on meanwhile. A process may take 3 minutes.
#
#     bench/gpu/run.sh [--only NAME,..] [--ways WAY,..] [--profile] [--json FILE] [rounds]
#
# --only      just these of resnet50, unet3d, mlp; kernels are SGD, Adam, cross entropy and Dice with more than a cache holds, beside copies
# --ways      in which PyTorch makes them, of graph, compile, eager and autotune, torch.compile's slowest mode, in which it takes many minutes
#             to begin (default: the first three)
# --profile   what each of tern's kernels takes beside a copy of as many bytes; and, by CUPTI, what a step asks of CUDA and how often it waits
# --json      everything, what machine it was and when, written after each round
# TORCH_PYTHON is the python3 that has PyTorch with CUDA (default: the one on the PATH); without it tern is measured alone. TERN_BUILD is the
# build (default: build).
set -eu
exec "${TORCH_PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"
