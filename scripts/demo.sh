#!/bin/sh
# Installs missing packages, builds, and trains a small ResNet on Fashion-MNIST on 2 ranks.
set -eu
cd "$(dirname "$0")/.."
. ./scripts/phase.sh
./scripts/setup.sh
# A build folder keeps the generator that it has.
phase "configuring" "a few seconds" env CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}" cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF
phase "building" "about 2 min on 2 cores" cmake --build build -j "$(nproc)"
echo "training: about 1 min on 2 cores"
./build/tern run -n 2 build/examples/02_fashion "$@"
cat <<'END'

Next:
  README.md, "The step" and "A model of your own"; docs/from-pytorch.md shows PyTorch programs beside the same in C
  export PATH=$PWD/build:$PATH                          # tern is then a command
  tern run -n 2 build/examples/train_classifier         # a program to copy and change
  make extras                                           # what mpirun and Fortran need
END
