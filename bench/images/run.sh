#!/bin/sh
# Compares tern with torchvision and Pillow at decoding, cropping and augmenting images, on one core, in turn for some rounds: 500 x 375
# JPEGs to 224 x 224. Prints images per second of each way and the ratio as Markdown. 3 rounds take about a minute.
#
#     bench/images/run.sh [rounds]
#
# TERN_BUILD is the build folder (default: build). Run it on an idle machine: otherwise the ratios mean little.
set -eu
cd "$(dirname "$0")/../.."
TERN_BUILD=${TERN_BUILD:-build} PYTHONPATH=tests:tests/torch exec /usr/bin/python3 bench/images/measure.py "$@"
