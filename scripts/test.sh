#!/bin/sh
# Installs the packages that the tests need, builds, and runs every test.
set -eu
cd "$(dirname "$0")/.."
. ./scripts/phase.sh
./scripts/setup.sh test
cuda=OFF
if command -v nvcc >/dev/null; then cuda=ON; fi
phase "configuring" "a few seconds" cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON -DTERN_WERROR=ON \
    -DTERN_CUDA=$cuda -DTERN_CUDA_ARCHITECTURES=90
phase "building" "about 5 min on 2 cores" cmake --build build -j "$(nproc)"
echo "testing: about 20 min on 2 cores"
# Tests of one process that do not depend on time run in parallel, with threads that do not spin; the others run one by one.
failed=0
phase_shown env OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive ctest --test-dir build --output-on-failure -L single -j "$(nproc)" || failed=1
phase_shown ctest --test-dir build --output-on-failure -LE single || failed=1
exit $failed
