#!/bin/sh
# Runs tests and benchmarks on one GPU within a time limit, the most informative parts first. Stops a part that takes more than its share, and
# skips the rest when the time is over. Writes log.txt, the measurements as PART.json, and summary.txt with the result of each part into OUT.
#
#     scripts/gpu.sh [--seconds N] [--rounds N] [--ways WAY,..] OUT [PART..]
#
# --seconds  time limit for everything (default: 3600)
# --rounds   rounds of steps, tern and PyTorch in turn (default: 1)
# --ways     how PyTorch runs its steps: any of graph, compile, eager, autotune; torch.compile starts slowly (default: the first three)
#
# Parts, in this order (default: all):
#   driver      behaviour of NVIDIA's driver and runtime that the plug-in relies on but that is not documented
#   tests       the tests with label gpu, which also run on the emulation
#   mlp, resnet50, unet3d  bench/gpu/run.sh: steps compared with PyTorch, kernels compared with copies, and the CUDA calls of a step
#   kernels     kernels whose calls in these steps all fit into a cache
#   sanitizers  memcheck and racecheck of compute-sanitizer on the kernel tests
# TERN_BUILD is the build folder (default: build). Exits with 1 unless every part passes.
set -eu
cd "$(dirname "$0")/.."
seconds=3600 rounds=1 ways=graph,compile,eager build=${TERN_BUILD:-build}
while [ "${1#--}" != "${1-}" ]; do
    case $1 in
    --seconds | --rounds | --ways) eval "${1#--}=\$2" ;;
    *)
        echo "gpu.sh: unknown option $1" >&2
        exit 2
        ;;
    esac
    shift 2
done
out=$(realpath -m "${1:?OUT is missing}")
shift
all="driver tests mlp resnet50 unet3d kernels sanitizers"
parts=" ${*:-$all} "
for name in $parts; do
    case " $all " in
    *" $name "*) ;;
    *)
        echo "gpu.sh: unknown part $name" >&2
        exit 2
        ;;
    esac
done
end=$(($(date +%s) + seconds))
mkdir -p "$out"
: > "$out/summary.txt"

# part NAME SHARE COMMAND..: runs COMMAND for at most SHARE seconds, and at most until the end.
part() {
    name=$1 share=$2 began=$(date +%s) status=0
    shift 2
    case $parts in *" $name "*) ;; *) return 0 ;; esac
    [ $share -lt $((end - began)) ] || share=$((end - began))
    [ $share -gt 0 ] || { echo "$name: not started, the time is over" >> "$out/summary.txt" && return 0; }
    echo "---- $name"
    timeout -k 10 $share "$@" || status=$?
    case $status in 0) how="passed" ;; 124 | 137) how="cut off" ;; *) how="failed ($status)" ;; esac
    echo "$name: $how after $(($(date +%s) - began)) s" >> "$out/summary.txt"
}

run_ctest() { part "$1" "$2" env OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive ctest --test-dir "$build" --output-on-failure -L "$3" -LE "$4" -j "$5"; }
run_bench() { part "$1" "$2" bench/gpu/run.sh --only "$1" --ways "$ways" --profile --json "$out/$1.json" "$rounds"; }

{
    part driver 60 "$build/tests/driver"
    run_ctest tests 600 gpu sanitizer 8
    run_bench mlp 240
    run_bench resnet50 600
    run_bench unet3d 600
    run_bench kernels 300
    run_ctest sanitizers 600 sanitizer '^$' 4
    echo "---- summary" && cat "$out/summary.txt"
} 2>&1 | tee "$out/log.txt"
! grep -qv ': passed after' "$out/summary.txt"
