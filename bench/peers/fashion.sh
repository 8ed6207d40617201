#!/bin/sh
# The demo's net for one epoch on 2 ranks x 1 thread, in tern and in PyTorch DDP over gloo, in turn, three pairs; prints every
# epoch's images/s and the ratio of the medians (above 1: tern is faster).
#
#     bench/peers/fashion.sh [pairs]      TORCH_PYTHON=/path/to/python3 for another PyTorch than Debian's
set -eu
cd "$(dirname "$0")/../.."
pairs=${1:-3}
python=${TORCH_PYTHON:-/usr/bin/python3}
out=$(mktemp)
trap 'rm -f "$out" "$out".meet*' EXIT
export OMP_NUM_THREADS=1

rate() { sed -n 's/.*  \([0-9]*\) images\/s .*/\1/p' | head -n 1; }

for pair in $(seq "$pairs"); do
    tern=$(./build/tern run -n 2 build/examples/02_fashion 1 | rate)
    torch=$(./build/tern run -n 2 "$python" bench/peers/fashion.py --epochs 1 --meet "$out.meet$pair" | rate)
    echo "pair $pair  tern $tern images/s  PyTorch $torch images/s"
    echo "$tern $torch" >>"$out"
done

median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
spread() { sort -n | awk 'NR == 1 { low = $1 } { high = $1 } END { printf "%d to %d", low, high }'; }
ours=$(cut -d' ' -f1 "$out" | median)
theirs=$(cut -d' ' -f2 "$out" | median)
echo "tern     median $ours images/s ($(cut -d' ' -f1 "$out" | spread))"
echo "PyTorch  median $theirs images/s ($(cut -d' ' -f2 "$out" | spread))"
awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "ratio of medians %.2f\n", a / b }'
