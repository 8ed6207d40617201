#!/bin/sh
# Cross-compiles tern for 64-bit ARM on Debian or Ubuntu and runs the unit tests under qemu:
# `arm.sh ROOT [CTEST OPTIONS]`. Installs the tools into a separate Debian in the folder ROOT, and nothing on the machine
# itself. Needs root, debootstrap and Linux 6.7, which has binfmt_misc in user namespaces.
set -eu
root=$(realpath -m "${1:?"expected a folder for a Debian of 2 GB"}")
shift
source=$(realpath "$(dirname "$0")/..")

tools="crossbuild-essential-arm64 cmake ninja-build pkg-config protobuf-c-compiler qemu-user procps iproute2"
libraries="libdnnl-dev zlib1g-dev libsodium-dev libxxhash-dev libdeflate-dev libcjson-dev libprotobuf-c-dev libcairo2-dev
libjpeg-dev libpng-dev libtiff-dev libnifti-dev libhwloc-dev libpcre2-dev libutf8proc-dev libcmocka-dev libopenblas0-pthread"
if ! [ -e "$root/usr/bin/qemu-aarch64" ]; then
    debootstrap --variant=minbase bookworm "$root"
    chroot "$root" dpkg --add-architecture arm64
    chroot "$root" apt-get update -qq
    # shellcheck disable=SC2046,SC2086
    DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y -qq --no-install-recommends $tools $(printf '%s:arm64 ' $libraries)
    mkdir "$root/tern"
fi

# Tests that cannot pass here. qemu differs from Linux: it has its own threads and memory, ignores MADV_WIPEONFORK, and is
# /proc/self/exe. The namespace has no second user. Tests of x86 instruction sets do not apply, those of several hosts need
# gloo, and a ResNet or gigabytes of data take longer under qemu than ranks wait.
beyond='_AVX|_hosts|^(base/opts|checkpoint/(bombs|files|snapshot_folder)|kernels/conv_choice'
beyond="$beyond|parallel/sync_batch_norm|comm/(bootstrap|bootstrap_meet|control|family|group|meet|p2p_faults|p2p_memory|spawn))\$"

# Runs 64-bit ELF files (\x7fELF) for the machine 0xb7 with qemu.
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
