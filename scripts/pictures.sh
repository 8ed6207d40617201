#!/bin/sh
# Makes the pictures of docs/ anew with the programs of the build, all of them or those that are named.
#
#     scripts/pictures.sh [train_classifier|train_language_model|train_segmentation|unet3d_grains|unet3d_brain|unet3d_macaque|
#                          sync_batch_norm|modes] ..
#
# TERN_BUILD is the build folder (default: build). The conv benchmark's picture comes from bench/conv, timeline.svg from scripts/timeline.py.
# `make extras` installs the brains, `apt install bible-kjv` the text.
set -eu
cd "$(dirname "$0")/.."
top=$PWD
build=$(cd "${TERN_BUILD:-build}" && pwd)
PATH=$build:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# picture NAME PROGRAM [FLAG ..]: trains on two ranks and takes the run's page, in 256 colours that come near to all.
picture() {
    name=$1 program=$2
    shift 2
    (cd "$work" && tern run -n 2 "$build/examples/$program" --log-dir "$name" "$@")
    /usr/bin/python3 -c 'import sys; from PIL import Image; Image.open(sys.argv[1]).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=0).save(sys.argv[2], optimize=True)' \
        "$work/$name/$program.png" "$top/docs/$name.png"
}

[ $# -gt 0 ] || set -- train_classifier train_language_model train_segmentation unet3d_grains unet3d_brain unet3d_macaque sync_batch_norm modes
for name; do
    echo "pictures: $name"
    case "$name" in
    train_classifier) picture train_classifier train_classifier ;;
    train_language_model)
        bible -f gen1:1-rev22:21 | cut -d ' ' -f 2- >"$work/bible.txt"
        picture train_language_model train_language_model --data "$work/bible.txt"
        ;;
    train_segmentation)
        (cd "$work" && "$build/examples/blue_marble" blue_marble)
        picture train_segmentation train_segmentation
        ;;
    unet3d_*) picture "$name" train_unet3d --data "${name#unet3d_}" ;;
    sync_batch_norm)
        (cd "$work" && tern run -n 2 "$build/examples/13_sync_batch_norm")
        cp "$work/sync_batch_norm.png" docs/
        ;;
    modes) bench/modes/run.sh --json docs/modes.json --chart docs/modes.png ;;
    *)
        echo "pictures.sh: there is no picture \"$name\"" >&2
        exit 2
        ;;
    esac
done
