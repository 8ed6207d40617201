#!/bin/sh
# Runs a test if there is a GPU: a program, or a Python script with $TORCH_PYTHON (default: Debian's).
skip() {
    exec "$(dirname "$0")/../skip.sh" "$@"
}
TERN_TEST_GPUS=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ "$TERN_TEST_GPUS" -ne 0 ] || skip "nvidia-smi lists no GPU"
export TERN_TEST_GPUS
python=${TORCH_PYTHON:-/usr/bin/python3}
case $1 in
*/torch/*.py)
    why=$("$python" -c 'import numpy, torch' 2>&1) || skip "$python cannot import PyTorch (TORCH_PYTHON is one that can): $(echo "$why" | tail -n 1)"
    exec "$python" "$@" ;;
*.py) exec "$python" "$@" ;;
compute-sanitizer)
    command -v compute-sanitizer >/dev/null || skip "no compute-sanitizer on the PATH"
    exec "$@" ;;
*) exec "$@" ;;
esac
