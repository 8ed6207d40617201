# Runs an example under valgrind, alone and on two ranks, and a test with the caller's own memory: no invalid access, no leak. Uses the
# reference kernels, since oneDNN's generated code reads past the end of its own buffers.
set -eu
if ! command -v valgrind >/dev/null 2>&1; then
    exec "$TERN_SOURCE/tests/skip.sh" "no valgrind"
fi
if ldd "$TERN_BUILD/libtern.so" | grep -q 'lib[at]san'; then
    exec "$TERN_SOURCE/tests/skip.sh" "a sanitizer and valgrind do not go together"
fi
export TERN_DEVICE=cpu:reference OMP_NUM_THREADS=1
checked="valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect,possible
         --errors-for-leak-kinds=definite,indirect,possible"
$checked "$TERN_BUILD/examples/03_own_module"
"$TERN_BUILD/tern" run -n 2 $checked "$TERN_BUILD/examples/03_own_module"
$checked "$TERN_BUILD/tests/test_tensor_wrap"
