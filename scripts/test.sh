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
# Tests of one process that do not depend on time run in parallel, with threads that do not spin; the others run one by one.
failed=0
skips=$PWD/build/Testing/all_skips.txt
mkdir -p build/Testing
rm -f "$skips"
export TERN_TEST_ALL_SKIPS="$skips"
OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive ctest --test-dir build --output-on-failure -L single -j "$(nproc)" || failed=1
ctest --test-dir build --output-on-failure -LE single || failed=1
unset TERN_TEST_ALL_SKIPS
echo
echo "All tests:"
python3 tests/skips.py "$skips" || failed=1
exit $failed
