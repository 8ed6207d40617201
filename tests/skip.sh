#!/bin/sh
# Ends a test that is a script as skipped: `exec skip.sh REASON` (skips.py).
echo "skipped: all: $1"
if [ -n "${TERN_TEST_SKIPS-}" ] && [ -n "${TERN_TEST_NAME-}" ]; then
    echo "$TERN_TEST_NAME: all: $1" >>"$TERN_TEST_SKIPS" || exit 1
fi
exit 77
