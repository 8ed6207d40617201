#!/bin/sh
# Fuzzes every target (or those named) for SECONDS each, under AddressSanitizer and UndefinedBehaviorSanitizer, on one core:
#     ./fuzz/run.sh SECONDS [torch legacy ..]
# Needs clang with its sanitizers (Debian 12: clang libclang-rt-14-dev). New inputs go to build-fuzz/found/<noun>, inputs that make
# a target fail to build-fuzz/crash-<noun>-*. An input that takes over 5 seconds or more than 512 MiB is a failure too.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:?usage: fuzz/run.sh SECONDS [NOUN..]}
shift
[ $# -gt 0 ] || set -- $(ls fuzz/*.c | sed 's/.*\///; s/\.c$//; /^load$/d; /^replay$/d')
cmake --preset fuzz >/dev/null
for noun in "$@"; do targets="${targets:-} fuzz_$noun"; done
# shellcheck disable=SC2086
cmake --build build-fuzz --target $targets
for noun in "$@"; do
    mkdir -p "build-fuzz/found/$noun"
    echo "fuzz: $noun, $seconds s"
    nice build-fuzz/fuzz/fuzz_"$noun" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=512 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="build-fuzz/crash-$noun-" "build-fuzz/found/$noun" "fuzz/corpus/$noun" 2>"build-fuzz/$noun.log" ||
        { tail -40 "build-fuzz/$noun.log" >&2; exit 1; }
    grep -E '^stat::(number_of_executed_units|new_units_added|slowest_unit_time_sec|peak_rss_mb)' "build-fuzz/$noun.log"
done
