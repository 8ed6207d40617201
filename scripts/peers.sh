#!/bin/sh
# Installs the newest PyTorch, safetensors and TensorBoard, with which some tests compare tern and which Debian lacks or has in older
# versions, into a virtual environment at $TERN_PEERS (default ~/.cache/tern-peers). Needs some GB and Debian's python3-venv. Tests that
# need it are skipped without it, and say so.
set -eu
peers=${TERN_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/tern-peers}
[ -x "$peers/bin/python" ] || python3 -m venv "$peers"
"$peers/bin/python" -m pip install --quiet --upgrade torch numpy safetensors tensorboard selenium
"$peers/bin/python" - <<'END'
from importlib.metadata import version

print("peers:", ", ".join(f"{name} {version(name)}" for name in ("torch", "safetensors", "tensorboard")))
END
