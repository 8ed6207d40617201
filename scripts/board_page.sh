#!/bin/sh
# Tests what TensorBoard shows of a run: writes a run with build/libtern.so, opens TensorBoard in headless Chromium, checks that
# curves, images, histograms and text are drawn, and saves a screenshot of each in build/board_page. Needs Debian's chromium and
# chromium-driver, and the packages that scripts/peers.sh installs.
set -eu
cd "$(dirname "$0")/.."
peers=${TERN_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/tern-peers}
out=build/board_page

if ! command -v chromedriver >/dev/null; then
    echo "board_page.sh: no chromedriver: apt install chromium chromium-driver" >&2
    exit 1
fi
if ! "$peers/bin/python" -c "import tensorboard, selenium" 2>/dev/null; then
    echo "board_page.sh: no TensorBoard or selenium in $peers: run scripts/peers.sh" >&2
    exit 1
fi

rm -rf "$out"
mkdir -p "$out"
TERN_BUILD=build PYTHONPATH=tests:tests/torch /usr/bin/python3 tests/torch/board_page.py write "$out/run"
exec "$peers/bin/python" tests/torch/board_page.py show "$out/run" "$out"
