#!/bin/sh
# Builds tern for 64-bit ARM on Debian or Ubuntu of another architecture and runs the unit tests under qemu:
# `arm.sh ROOT [CTEST'S OPTIONS]`. What that takes is installed into a Debian of its own in the folder ROOT, nothing on the
# machine itself. Needs root, debootstrap and Linux 6.7, with which a namespace says how foreign programs are started.
set -eu
root=$(realpath -m "${1:?"a folder for a Debian of 2 GB"}")
shift
source=$(realpath "$(dirname "$0")/..")

tools="crossbuild-essential-arm64 cmake ninja-build pkg-config protobuf-c-compiler qemu-user procps iproute2"
libraries="libdnnl-dev zlib1g-dev libsodium-dev libxxhash-dev libdeflate-dev libcjson-dev libprotobuf-c-dev libcairo2-dev
libjpeg-dev libpng-dev libtiff-dev libnifti-dev libhwloc-dev libcmocka-dev libopenblas0-pthread"
if ! [ -e "$root/usr/bin/qemu-aarch64" ]; then
    debootstrap --variant=minbase bookworm "$root"
    chroot "$root" dpkg --add-architecture arm64
    chroot "$root" apt-get update -qq
    # shellcheck disable=SC2046,SC2086
    DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y -qq --no-install-recommends $tools $(printf '%s:arm64 ' $libraries)
    mkdir "$root/tern"
fi

# qemu is no Linux: it has threads and memory of its own, MADV_WIPEONFORK does nothing, /proc/self/exe is qemu. In the
# namespace there is no other user. Sets of x86's instructions are no matter here, several hosts want gloo, a ResNet
# and gigabytes take longer there than ranks wait.
beyond='_AVX|_hosts|^(base/opts|checkpoint/(bombs|files|snapshot_folder)|kernels/conv_choice'
beyond="$beyond|parallel/sync_batch_norm|comm/(bootstrap|bootstrap_meet|control|family|group|meet|p2p_faults|p2p_memory|spawn))\$"

# What is an ELF file (\x7fELF) of 64 bits, for the machine 0xb7, is given to qemu.
name='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'

rule=":aarch64:M::$name:$mask:$root/usr/bin/qemu-aarch64:FP"
export root source beyond rule
# shellcheck disable=SC2016
exec unshare --user --map-root-user --mount sh -ec '
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --bind "$source" "$root/tern"
    mount -t binfmt_misc none "$root/proc/sys/fs/binfmt_misc"
    printf %s "$rule" >"$root/proc/sys/fs/binfmt_misc/register"
    exec chroot "$root" sh -ec "
        cd /tern
        cmake --toolchain cmake/aarch64.cmake -S . -B build-aarch64 -G Ninja
        ninja -C build-aarch64
        cd build-aarch64
        exec ctest -L unit -E \"\$beyond\" --output-on-failure \"\$@\"" "$@"' sh sh "$@"
