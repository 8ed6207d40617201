#!/bin/sh
# Packs a build for another machine with the same kind of processor that has a GPU but not the packages: the command, the libraries, the tests
# that need a GPU, and all shared libraries that they need except those of the C and C++ compilers, CUDA, cuDNN and NCCL. The plug-ins that read
# and draw images are not packed: `tern info` prints "no: .." for them there, which is not an error.
#
#     cmake -S . -B build -DTERN_CUDA=ON -DTERN_CUDA_ARCHITECTURES=90 && cmake --build build && scripts/pack.sh build build/tern-gpu.tar.xz
#
# On the other machine, in a checkout of the same commit (tar needs xz, Python does not):
#
#     { tar xf build/tern-gpu.tar.xz || python3 -m tarfile -e build/tern-gpu.tar.xz .; } && . build/packed.sh
#
# and then run scripts/gpu.sh (docs/gpu.md, "Tests and figures on a GPU") in the same shell.
# packed.sh finds CUDA's libraries among PyTorch's packages, as PyTorch does, and in /usr/local/cuda; the tests use the Python on the PATH. Tests
# contain the path where they were built: packed.sh makes a link from that path to the checkout unless it exists. It warns if tests/ or bench/ of
# the checkout are not those of the build.
set -eu
build=$(cd "$1" && pwd)
out=$(realpath -m "$2")
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
to=$work/$(basename "$build")
mkdir -p "$to/lib"

cd "$build"
cp -P --parents tern bench_parts libtern.so* tern_cuda.so tern_nccl.so tern_gloo.so tests/libtern_internal.so CTestCustom.cmake "$to"
find . -name CTestTestfile.cmake -exec cp --parents {} "$to" \;
for name in $(ctest -N -L gpu | sed -n 's/.*: gpu\/\([a-z_]*\).*/\1/p'); do
    for program in "tests/test_cuda_$name" "tests/$name"; do
        [ ! -x "$program" ] || cp --parents "$program" "$to"
    done
done
find "$to" -type f \( -perm -u+x -o -name '*.so*' \) -exec strip --strip-debug {} + 2>/dev/null || :

# The compilers' libraries are on every machine, perhaps in newer versions.
find "$to" -type f \( -perm -u+x -o -name '*.so*' \) -exec ldd {} + 2>/dev/null |
    sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -Ev '/(libc|libm|libmvec|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libtern|libcuda|libcudart|libcudnn|libcublas|libcublasLt|libnccl)\.so' |
    while read -r library; do cp -L "$library" "$to/lib"; done

# A hash of the files that have to be those of the build, whether git has them or not.
hash="find tests bench -name __pycache__ -prune -o -type f -print | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16"
commit=$(git -C "$source" rev-parse HEAD 2> /dev/null || echo unknown)
files=$(cd "$source" && eval "$hash")

cat > "$to/packed.sh" <<EOF
# To be sourced in the checkout: . $(basename "$build")/packed.sh
here=\$PWD/$(basename "$build")
cuda=\$(python3 -c 'import glob, site; print(":".join(p for s in site.getsitepackages() for p in glob.glob(s + "/nvidia/*/lib")))' 2>/dev/null)
export LD_LIBRARY_PATH="\$here/lib\${cuda:+:\$cuda}:/usr/local/cuda/lib64\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" TORCH_PYTHON="\${TORCH_PYTHON:-python3}"
for path in "$source=\$PWD" "$build=\$here"; do # a build folder inside the source folder needs no link of its own
    [ -e "\${path%%=*}" ] || { mkdir -p "\$(dirname "\${path%%=*}")" && ln -s "\${path#*=}" "\${path%%=*}"; }
done
[ "\$($hash)" = $files ] ||
    echo "packed.sh: tests/ or bench/ are not those of this build: its commit is $commit; check that out, or pack again" >&2
EOF
tar -C "$work" -cJf "$out" "$(basename "$build")"
ls -l "$out"
