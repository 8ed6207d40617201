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

# sanitized SANITIZERS OPENMP EXCEPT: builds and runs the tests. Returns false if one failed.
sanitized() {
    build=build-$(echo "$1" | cut -d, -f1)
    CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}" cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Debug -DTERN_WERROR=ON -DTERN_SANITIZE="$1" -DTERN_OPENMP="$2" -DTERN_CUDA=OFF >/dev/null || return
    targets=$(for folder in $folders; do ls tests/$folder/test_*.c; done | sed 's|^tests/\([a-z]*\)/test_\(.*\)\.c$|test_\1_\2|')
    # shellcheck disable=SC2086
    cmake --build "$build" -j "$(nproc)" --target $targets tern_gloo tern_nifti tern_png tern_regex || return
    ctest --test-dir "$build" --output-on-failure -j $((2 * $(nproc))) -R "^($(echo "$folders" | tr ' ' '|'))/" -E "$3"
}

failed=0
case ${1:-both} in address | both) sanitized address,undefined ON "$again|$waits" || failed=1 ;; esac
case ${1:-both} in thread | both) sanitized thread OFF "$again|$waits|$no_threads" || failed=1 ;; esac
exit $failed
