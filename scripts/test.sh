#!/bin/sh
# Installs the packages that the tests need, builds, and runs every test.
set -eu
cd "$(dirname "$0")/.."
./scripts/setup.sh test
cuda=OFF
if command -v nvcc >/dev/null; then cuda=ON; fi
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON -DTERN_WERROR=ON \
    -DTERN_CUDA=$cuda -DTERN_CUDA_ARCHITECTURES=90 >/dev/null
cmake --build build -j "$(nproc)"
# Each test says how much of this it takes (tests/processors.cmake).
ctest --test-dir build --output-on-failure -j $((2 * $(nproc)))
