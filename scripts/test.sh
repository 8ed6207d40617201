#!/bin/sh
# Sets up what the tests need, builds, and runs every test.
set -eu
cd "$(dirname "$0")/.."
./scripts/setup.sh test
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON >/dev/null
cmake --build build -j "$(nproc)"
ctest --test-dir build --output-on-failure
