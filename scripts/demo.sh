#!/bin/sh
# Installs missing packages, builds, and trains a small ResNet on Fashion-MNIST on 2 ranks.
set -eu
cd "$(dirname "$0")/.."
./scripts/setup.sh
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF >/dev/null
cmake --build build -j "$(nproc)" >/dev/null
exec ./build/tern run -n 2 build/examples/02_fashion "$@"
