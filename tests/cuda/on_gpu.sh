#!/bin/sh
# Runs a test where there is a GPU: a program, or a Python script, by $TORCH_PYTHON (default: Debian's).
TERN_TEST_GPUS=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
if [ "$TERN_TEST_GPUS" -eq 0 ]; then
    echo "skipped: nvidia-smi lists no GPU"
    exit 0
fi
export TERN_TEST_GPUS
case $1 in
*.py) exec "${TORCH_PYTHON:-/usr/bin/python3}" "$@" ;;
compute-sanitizer)
    if ! command -v compute-sanitizer >/dev/null; then
        echo "skipped: no compute-sanitizer on the PATH"
        exit 0
    fi
    exec "$@" ;;
*) exec "$@" ;;
esac
