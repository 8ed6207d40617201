#!/bin/sh
# Installs the packages that the tests need, builds, and runs every test.
set -eu
cd "$(dirname "$0")/.."
. ./scripts/phase.sh
./scripts/setup.sh test
cuda=OFF
if command -v nvcc >/dev/null; then cuda=ON; fi
# A build folder keeps the generator that it has.
phase "configuring" "a few seconds" env CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}" cmake -S . -B build -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_TESTING=ON -DTERN_STATIC=ON -DTERN_WERROR=ON -DTERN_CUDA=$cuda -DTERN_CUDA_ARCHITECTURES=90
phase "building" "about 3 min on 2 cores" cmake --build build -j "$(nproc)"
echo "testing: about 20 min on 2 cores"
# Each test says how much of this it takes (tests/processors.cmake).
phase_shown ctest --test-dir build --output-on-failure -j $((3 * $(nproc)))
