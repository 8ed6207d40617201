#!/bin/sh
# Compares tern with PyTorch DistributedDataParallel over gloo (default layout, channels last, torch.compile), Open MPI and MPICH at the same
# work, in turn for some rounds: training steps, start-up, memory, all_reduce. Prints medians, their spread, the ratios of medians with the best
# peer first, and which goals are met. 3 rounds take about 8 minutes.
#
#     bench/peers/run.sh [--only NAME,..] [--peers WORD,..] [--bf16] [--large] [--demo] [--profile] [--json FILE] [rounds]
#
# --only     any of mlp, start, fashion, resnet18, unet3d, unet3d-160, resnet50, deeplabv3, vit, gpt2, llama, llmc, all_reduce, demo; resnet18-bf16 is resnet18
#            in bf16; llmc is GPT-2 beside llm.c, on two threads: LLMC is the folder of its train_gpt2.c
# --peers    only peers whose names contain any of these words: `--only resnet18 --peers 1.13 1` takes half a minute
# --bf16     also the steps in bf16, in an autocast region
# --large    also a 3-D U-Net on 32x160x160, ResNet-50 and DeepLabV3 on 257x257: 10 more minutes per round
# --demo     also the demo's 4 epochs (examples/02_fashion, fashion.py): 5 more minutes per round for each PyTorch
# --profile  profiles the kernels of tern's steps, compared with the core's measured peak and copy bandwidth
# Peers are Debian's PyTorch and the newest, which scripts/peers.sh installs and which also runs compiled (that needs a C++ compiler);
# TORCH_PYTHON=/path/to/python3 is another instead of the newest. TERN_BUILD is the build folder (default: build). ./scripts/setup.sh bench
# installs the other peers. Every rank has one thread. Run it on an idle machine: on a busy one, compare
# CPU times instead of step times.
set -eu
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec /usr/bin/python3 "$(dirname "$0")/run.py" "$@"
