#!/bin/sh
# Builds with oneDNN 3 in build-onednn3/ and runs the tests that use it. `onednn3.sh PREFIX` uses the one in PREFIX; `onednn3.sh`
# installs the newest on PyPI for gcc's OpenMP into ~/.cache/tern-onednn3 (3.2; later wheels are for SYCL).
set -eu
cd "$(dirname "$0")/.."
prefix=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/tern-onednn3}
if [ $# = 0 ] && [ ! -d "$prefix" ]; then
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    python3 -m pip download --quiet --no-deps --dest "$wheels" onednn-cpu-gomp onednn-devel-cpu-gomp
    for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$wheels/all"; done
    mkdir -p "$prefix.part"
    for data in "$wheels"/all/*.data/data; do cp -r "$data/." "$prefix.part"; done
    mv "$prefix.part" "$prefix"
fi
cmake -S . -B build-onednn3 -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build build-onednn3 -j "$(nproc)"
ctest --test-dir build-onednn3 --output-on-failure \
    -R '^(kernels|ops|nn|models|amp)/|^torch/(conv|conv2d|linear|matmul|resnet|deeplabv3|unet3d|models|autocast|ddp)$'
