#!/bin/sh
# Pictures decoded, cut and augmented, by tern and by torchvision with Pillow, on one core and in turn, round after round: 500 x 375
# JPEGs to 224 x 224. Prints Markdown: pictures a second of each way, and the ratio. About a minute at 3 rounds.
#
#     bench/images/run.sh [rounds]
#
# TERN_BUILD is the build (default: build). Ratios mean something on a machine that does nothing else.
set -eu
cd "$(dirname "$0")/../.."
TERN_BUILD=${TERN_BUILD:-build} PYTHONPATH=tests:tests/torch exec /usr/bin/python3 bench/images/measure.py "$@"
