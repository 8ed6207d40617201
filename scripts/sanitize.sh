#!/bin/sh
# Builds the tests of the folders where threads, processes and hostile files meet with sanitizers, and runs them: first with AddressSanitizer
# and UndefinedBehaviorSanitizer, then with ThreadSanitizer, without OpenMP, whose library it cannot see into. Exits with 1 if a test fails.
#
#     scripts/sanitize.sh [address|thread]     # default: both
set -eu
cd "$(dirname "$0")/.."
./scripts/setup.sh test
folders="autograd checkpoint comm data gguf text"
# Not run: what repeats another test in another setting, what mostly waits, and with ThreadSanitizer the long ones that have no threads.
again='_(hosts[23]|debug|bound|delayed)$'
waits='^comm/(control_network|leaving|lossy|many_elements|reopen)$'
no_threads='^checkpoint/(bombs|safetensors_hostile)$'

# build_tests SANITIZERS OPENMP: into the folder build-, with the name of the first one.
build_tests() {
    build=build-${1%%,*}
    CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}" cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Debug -DTERN_WERROR=ON -DTERN_SANITIZE="$1" -DTERN_OPENMP="$2" -DTERN_CUDA=OFF >/dev/null || return
    targets=$(for folder in $folders; do ls tests/$folder/test_*.c; done | sed 's|^tests/\([a-z]*\)/test_\(.*\)\.c$|test_\1_\2|')
    # shellcheck disable=SC2086
    nice cmake --build "$build" -j "$(nproc)" --target $targets tern_gloo tern_nifti tern_png tern_regex tern_unicode
}

# run_tests SANITIZER EXCEPT: returns false if one failed.
run_tests() {
    ctest --test-dir "build-$1" --output-on-failure -j $((2 * $(nproc))) -R "^($(echo "$folders" | tr ' ' '|'))/" -E "$2"
}

failed=0 which=${1:-both}
[ "$which" = thread ] || build_tests address,undefined ON
# While the first tests run, and leave cores idle, the second ones are built.
if [ "$which" != address ]; then
    mkdir -p build-thread
    build_tests thread OFF >build-thread/build.log 2>&1 &
fi
[ "$which" = thread ] || run_tests address "$again|$waits" || failed=1
if [ "$which" != address ]; then
    wait $! || { cat build-thread/build.log && exit 1; }
    run_tests thread "$again|$waits|$no_threads" || failed=1
fi
exit $failed
