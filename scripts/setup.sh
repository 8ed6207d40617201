#!/bin/sh
# Installs missing packages: `setup.sh` for building and the demo, `setup.sh extras` also for MPI, Fortran and train_unet3d's brains,
# `setup.sh test` also for the tests, `setup.sh bench` also for the programs that bench/ compares with. `setup.sh torch` installs what
# tern's back end for PyTorch needs and builds that into a virtual environment on Debian's PyTorch. --dry-run only prints what would be
# installed. It knows the systems on which tern is tested, and refuses others before it downloads anything.
set -eu
# shellcheck source=scripts/phase.sh
. "$(dirname "$0")/phase.sh"

build="gcc g++ libc6-dev make cmake ninja-build pkg-config libdnnl-dev zlib1g-dev libsodium-dev libxxhash-dev libdeflate-dev libcjson-dev
libprotobuf-c-dev protobuf-c-compiler libcairo2-dev libjpeg-dev libpng-dev libtiff-dev libnifti-dev libhwloc-dev libgloo-dev
libpcre2-dev libutf8proc-dev"
demo="dataset-fashion-mnist fonts-dejavu-core marble-qt-data"
mpi="openmpi-bin libopenmpi-dev mpich libmpich-dev"
extras="gfortran mricron-data $mpi"
torch="python3-torch python3-torchvision"
headers="libtorch-dev pybind11-dev libgoogle-glog-dev libgflags-dev python3-dev"
tests="gfortran libcmocka-dev python3 python3-jinja2 python3-numpy $torch python3-pil python3-nibabel
libopenblas0-pthread procps iproute2 xz-utils valgrind clang-format slurm-wlm munge zsh fish man-db groff $mpi
$headers python3-setuptools python3-pip python3-wheel"
plugin="$torch $headers python3-venv python3-pip python3-setuptools python3-wheel"
bench="python3 python3-numpy $torch python3-pil libopenblas0-pthread iproute2 $mpi"

fail() {
    for line in "$@"; do echo "setup.sh: $line" >&2; done
    exit 1
}

# is_older A B: version A is below version B.
is_older() {
    [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# What apt would install, as "cmake 3.22.1-1ubuntu1, ..": from its local lists, without the network.
offered() {
    command -v apt-cache >/dev/null || return 0
    apt-cache policy cmake gcc libdnnl-dev libtiff-dev 2>/dev/null |
        awk '/^[a-z]/ { name = $1; sub(":", "", name) } /Candidate:/ && $2 != "(none)" { printf "%s%s %s", sep, name, $2; sep = ", " }'
}

refuse() {
    fail "$1" "tern is tested on Debian 12, Debian 13 and Ubuntu 24.04. It needs CMake 3.25, gcc 12, oneDNN 2.6 and libtiff 4.5 or newer;" \
        "this system offers: $(offered | grep . || echo 'unknown')." \
        "Where these are installed by hand, with the contents of the packages below, \`make\` builds tern." "$(echo "$wanted" | paste -sd' ')"
}

wanted="$build $demo" dry='' builds_plugin=''
for word; do
    case "$word" in
    extras) wanted="$wanted $extras" ;;
    test) wanted="$wanted $tests" ;;
    bench) wanted="$wanted $bench" ;;
    torch) wanted="$wanted $plugin" builds_plugin=1 ;;
    --dry-run) dry=1 ;;
    *) fail "usage: setup.sh [extras|test|bench|torch] [--dry-run], got \"$word\"" ;;
    esac
done

release=${TERN_OS_RELEASE:-/etc/os-release}
# shellcheck disable=SC1090
system=$([ -r "$release" ] && . "$release" && echo "${ID:-linux} ${VERSION_ID:-}" || echo unknown)
case "$system" in
"debian 12" | "debian 13") ;;
"ubuntu 24.04")
    [ -z "$builds_plugin" ] || fail "Ubuntu 24.04 has no PyTorch: docs/torch.md says how to use one from PyPI"
    case " $wanted " in *" $torch "*) echo "setup.sh: Ubuntu 24.04 has no PyTorch: what compares tern with it is skipped" ;; esac
    wanted=$(echo "$wanted" | sed "s/$torch//g; s/$headers//g")
    ;;
*) refuse "this system ($system) is not one of those that are tested" ;;
esac
command -v apt-get >/dev/null || refuse "there is no apt-get"

# Programs that somebody else has put before the system's in the PATH.
cmake=$(cmake --version 2>/dev/null | awk 'NR == 1 { print $3 }')
if [ -n "$cmake" ] && is_older "$cmake" 3.25; then refuse "$(command -v cmake) is CMake $cmake, which is too old"; fi
gcc=$("${CC:-cc}" -dumpfullversion 2>/dev/null || :)
if [ -n "$gcc" ] && is_older "$gcc" 12; then refuse "${CC:-cc} is gcc $gcc, which is too old"; fi

# Debian's PyTorch is seen through the virtual environment; pip writes only into that.
build_plugin() {
    [ -n "$builds_plugin" ] || return 0
    top=$(cd "$(dirname "$0")/.." && pwd)
    venv=${TERN_TORCH_VENV:-$top/build/venv}
    if ! pkg-config --exists tern; then
        export TERN_BUILD="${TERN_BUILD:-$top/build}"
        [ -e "$TERN_BUILD/libtern.so" ] || fail "tern is not built: make, and then this again"
    fi
    [ -x "$venv/bin/python" ] || /usr/bin/python3 -m venv --system-site-packages "$venv"
    phase "torch_tern" "about 2 min" "$venv/bin/python" -m pip install --no-build-isolation --no-deps --no-index "$top/python"
    echo "setup.sh: $venv/bin/python has the back end \"tern\": import torch_tern, and init_process_group(\"tern\")"
}

missing=""
for package in $(echo "$wanted" | tr -s ' ' '\n' | awk '!seen[$0]++'); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
done
if [ -z "$missing" ]; then
    [ -z "$dry" ] || echo "setup.sh: nothing is missing"
    [ -n "$dry" ] || build_plugin
    exit 0
fi

# shellcheck disable=SC2086
sizes() {
    apt-get install --assume-no --no-install-recommends -o Debug::NoLocking=1 $missing 2>/dev/null |
        sed -n 's/^Need to get \(.*\) of archives\.$/download \1/p; s/^After this operation, \(.*\) of additional.*/disk \1/p; s/^ *\(Download size\|Space needed\): *\([^/]*[^ /]\).*/\1 \2/p' | paste -sd, | sed 's/,\([^ ]*\) /, \1 /'
}
if [ -n "$dry" ]; then
    echo "setup.sh: would install$missing"
    size=$(sizes)
    echo "setup.sh: ${size:-the sizes are known after apt-get update}"
    exit 0
fi

sudo=""
if [ "$(id -u)" != 0 ]; then
    sudo=sudo
    command -v sudo >/dev/null || fail "packages are missing and there is no sudo: run this as root" "apt-get install --no-install-recommends$missing"
    if ! sudo -n true 2>/dev/null; then
        [ -t 0 ] || fail "packages are missing, and sudo wants a password but there is no terminal: run this as root" \
            "apt-get install --no-install-recommends$missing"
        echo "setup.sh: sudo installs$missing"
        sudo -v || fail "sudo refused: run this as root" "apt-get install --no-install-recommends$missing"
    fi
fi
proxy=${http_proxy:-${HTTP_PROXY:-}}
[ -z "$proxy" ] || echo "setup.sh: downloads go through the proxy $(echo "$proxy" | sed 's|//[^@/]*@|//|')"

# sudo keeps no proxy, so apt-get gets it from here. On a fresh Ubuntu another one may hold the lock for minutes.
apt() {
    $sudo env DEBIAN_FRONTEND=noninteractive ${proxy:+"http_proxy=$proxy" "https_proxy=${https_proxy:-${HTTPS_PROXY:-$proxy}}"} \
        apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@"
}

echo "setup.sh: installing$missing"
reached=yes
phase "package lists" "about 10 s" apt update -o APT::Update::Error-Mode=any || reached=no # old lists may do
size=$(sizes)
# shellcheck disable=SC2086
phase "packages" "${size:+$size, }about 2 min" apt install -y --no-install-recommends $missing || {
    ! grep -qE "Failed to fetch|Could not|Unable to connect|Temporary failure" "$phase_log" || reached=no
    [ $reached = yes ] || fail "the package servers cannot be reached${proxy:+ through the proxy $proxy}: is there a network?" \
        "Behind a proxy, set http_proxy"
    exit 1
}
build_plugin
