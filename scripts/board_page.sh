#!/bin/sh
# What a person sees of a run in TensorBoard: writes one with build/libtern.so, opens its page in headless Chromium, checks that
# curves, images, histograms and text are drawn, and leaves a screenshot of each in build/board_page. Needs Debian's chromium and
# chromium-driver, and TensorBoard and selenium in the environment that scripts/peers.sh makes ($TERN_PEERS).
set -eu
cd "$(dirname "$0")/.."
peers=${TERN_PEERS:-$HOME/.cache/tern-peers}
out=build/board_page

if ! command -v chromedriver >/dev/null; then
    echo "board_page.sh: no chromedriver: apt install chromium chromium-driver" >&2
    exit 1
fi
if ! "$peers/bin/python" -c "import tensorboard" 2>/dev/null; then
    echo "board_page.sh: no TensorBoard in $peers: run scripts/peers.sh" >&2
    exit 1
fi
"$peers/bin/python" -c "import selenium" 2>/dev/null || "$peers/bin/pip" install -q selenium

rm -rf "$out"
mkdir -p "$out"
TERN_BUILD=build PYTHONPATH=tests:tests/torch /usr/bin/python3 tests/torch/board_page.py write "$out/run"
exec "$peers/bin/python" tests/torch/board_page.py show "$out/run" "$out"
