#!/bin/sh
# Compares tern with Hugging Face's `tokenizers` at encoding texts, on some threads, in turn for some rounds: documentation and programs of
# this tree and random Unicode, with vocabularies of 32000 tokens that are trained first; as many texts, and as one where it has words. Checks
# that the ids are the same. Prints MB per second, the lowest and the highest, and the ratio of the medians as Markdown. 3 rounds take about
# two minutes.
#
#     bench/tokenize/run.sh [rounds [threads [kind..]]]
#
# TERN_BUILD is the build folder (default: build). Needs the packages of scripts/peers.sh. Run it on an idle machine: otherwise the ratios
# mean little.
set -eu
cd "$(dirname "$0")/../.."
peers=${TERN_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/tern-peers}
TERN_BUILD=${TERN_BUILD:-build} PYTHONPATH=tests:tests/torch exec "$peers/bin/python" bench/tokenize/measure.py "$@"
