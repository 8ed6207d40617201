#!/bin/sh
# Installs missing packages of Debian or Ubuntu: `setup.sh` for building and the demo, `setup.sh test` also for the tests,
# `setup.sh bench` also for the programs that bench/ compares with. On other systems it prints the list and stops.
set -eu

build="gcc g++ libc6-dev make cmake pkg-config libdnnl-dev zlib1g-dev libsodium-dev libxxhash-dev libdeflate-dev libcjson-dev
libprotobuf-c-dev protobuf-c-compiler libcairo2-dev libjpeg-dev libpng-dev libtiff-dev libnifti-dev libhwloc-dev libgloo-dev"
demo="dataset-fashion-mnist fonts-dejavu-core marble-qt-data"
tests="gfortran libcmocka-dev python3 python3-numpy python3-torch python3-torchvision python3-pil python3-nibabel
libopenblas0-pthread procps iproute2 xz-utils valgrind clang-format slurm-wlm munge
openmpi-bin libopenmpi-dev mpich libmpich-dev"
bench="python3 python3-numpy python3-torch python3-torchvision python3-pil libopenblas0-pthread iproute2 openmpi-bin libopenmpi-dev mpich libmpich-dev"

wanted="$build $demo"
[ "${1:-}" = test ] && wanted="$wanted $tests"
[ "${1:-}" = bench ] && wanted="$wanted $bench"

if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup.sh: this is not Debian or Ubuntu: install the contents of these packages: $wanted" >&2
    exit 1
fi

missing=""
for package in $wanted; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "setup.sh: installing$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
