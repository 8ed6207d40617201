#!/bin/sh
# Runs tests and benchmarks on one GPU within a time limit, the most informative parts first. Stops a part that takes more than its share, and
# skips the rest when the time is over. Writes log.txt, the measurements as PART.json, and summary.txt with the result of each part into OUT.
#
#     scripts/gpu.sh [--seconds N] [--rounds N] [--ways WAY,..] OUT [PART..]
#
# --seconds  time limit for everything (default: 3600)
# --rounds   rounds of steps, tern and PyTorch in turn (default: 1)
# --ways     how PyTorch runs its steps: any of graph, eager, compile, autotune (default: graph,eager; the part compile adds torch.compile)
#
# Parts, in this order (default: all):
#   driver      behaviour of NVIDIA's driver and runtime that the plug-in relies on but that is not documented
#   tests       the tests with label gpu, which also run on the emulation. Failed tests run again with TERN_CUDA_WITHOUT (docs/gpu.md), first
#               with all of its words and, if that cures any, with each word alone. If later parts are named, 40 % of the time is left for them
#   mlp, resnet50, unet3d  bench/gpu/run.sh: steps compared with PyTorch, kernels compared with copies, and the CUDA calls of a step
#   kernels     kernels whose calls in these steps all fit into a cache
#   sanitizers  memcheck and racecheck of compute-sanitizer on the kernel tests
#   compile     steps of resnet50 and unet3d compared with torch.compile, which takes minutes to start
# TERN_BUILD is the build folder (default: build), TORCH_PYTHON the python3 that has PyTorch. Exits with 1 unless every part passes.
set -eu
cd "$(dirname "$0")/.."
seconds=3600 rounds=1 ways=graph,eager build=${TERN_BUILD:-build}
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
all="driver tests mlp resnet50 unet3d kernels sanitizers compile"
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

left() { echo $((end - $(date +%s))); }
is_asked() { case $parts in *" $1 "*) ;; *) return 1 ;; esac }
say() { echo "$*" >> "$out/summary.txt"; }

# part NAME SHARE COMMAND..: runs COMMAND for at most SHARE seconds, and at most until the end. Returns its status.
part() {
    name=$1 share=$2 began=$(date +%s) status=0
    shift 2
    is_asked "$name" || return 0
    [ "$share" -lt "$(left)" ] || share=$(left)
    [ "$share" -gt 0 ] || { say "$name: not started, the time is over" && return 0; }
    echo "---- $name"
    timeout -k 10 "$share" "$@" || status=$?
    case $status in 0) how="passed" ;; 124 | 137) how="cut off" ;; *) how="failed ($status)" ;; esac
    say "$name: $how after $(($(date +%s) - began)) s"
    return $status
}

ctest="env OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive ctest --test-dir $build"
bench() { part "$1" "$2" bench/gpu/run.sh --only "$1" --ways "$ways" --profile --json "$out/$1.json" "$rounds" || :; }

# A bare machine reads PyTorch and CUDA's libraries from a cold disk: this reads them while the first part runs.
warm_up() {
    timeout 300 "${TORCH_PYTHON:-python3}" -c 'import torch' &
    for folder in $(echo "${LD_LIBRARY_PATH-}" | tr : ' '); do cat "$folder"/libcudnn*.so* "$folder"/libcublasLt.so* || :; done > /dev/null
    cat "$build/tern_cuda.so" > /dev/null
}

# ctest writes the names of the tests that failed, and nothing if none did.
failures=$build/Testing/Temporary/LastTestsFailed.log
failed() { sed 's/^[0-9]*://' "$failures" 2> /dev/null || :; }

# cured_without WORDS TEST..: runs the tests again without these parts of the plug-in and prints those that pass then.
cured_without() {
    words=$1 cured=
    shift
    again=$((tests_end - $(date +%s)))
    [ $again -gt 0 ] || return 0
    rm -f "$failures"
    TERN_CUDA_WITHOUT=$words timeout -k 10 $again $ctest -R "^($(echo "$*" | tr ' ' '|'))\$" -j 8 >&2 && status=0 || status=$?
    case $status in 124 | 137) say "tests: without $words: cut off" && return 0 ;; esac
    still=" $(failed | tr '\n' ' ') "
    for name in "$@"; do
        case $still in *" $name "*) ;; *) cured="$cured $name" ;; esac
    done
    say "tests: without $words: cured${cured:- nothing}"
    echo "$cured"
}

# Says in summary.txt which part of the plug-in is to blame for tests that fail.
triage() {
    suspects=$(failed)
    [ -n "$suspects" ] || return 0
    say "tests: failed:" $suspects
    curable=$(cured_without overlap,clusters,small_products,graphs,export $suspects)
    [ -n "$curable" ] || return 0
    for word in overlap clusters small_products graphs export; do cured_without $word $curable > /dev/null; done
}

run_tests() {
    share=$(left) excluded='^$'
    for later in mlp resnet50 unet3d kernels sanitizers compile; do
        ! is_asked $later || share=$(($(left) * 6 / 10))
    done
    [ $share -lt 600 ] || share=600
    tests_end=$(($(date +%s) + share))
    ! is_asked driver || excluded='^gpu/driver$'
    rm -f "$failures"
    part tests $share $ctest --output-on-failure -L gpu -LE sanitizer -E "$excluded" -j 8 || triage
}

{
    warm_up > /dev/null 2>&1 &
    part driver 60 "$build/tests/driver" || :
    ! is_asked tests || run_tests
    bench mlp 240
    bench resnet50 600
    bench unet3d 600
    bench kernels 300
    part sanitizers 600 $ctest --output-on-failure -L sanitizer -j 4 || :
    part compile 600 bench/gpu/run.sh --only resnet50,unet3d --ways compile --json "$out/compile.json" "$rounds" || :
    echo "---- summary" && cat "$out/summary.txt"
} 2>&1 | tee "$out/log.txt"
! grep -qv ': passed after' "$out/summary.txt"
