#!/bin/sh
# Checks what a compiler does not: include layers, names of types, sizes of files and functions, the code without OpenMP, the format. Prints
# a line per finding; exit status 1 if there is any.
set -eu
cd "$(dirname "$0")/.."
status=0
complain() {
    echo "check: $*" >&2
    status=1
}

# The layers, from the lowest. A folder may include from its own layer and from those below.
layers='base:1 device:2 tensor:3 kernels:4 cuda:4 autograd:5 comm:5 image:5 ops:6 nn:7 optim:7 data:7 checkpoint:7 report:7 amp:7 parallel:8
    models:9 text:9 gguf:10 cli:11'
find src cli -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' | grep -v '^src/plugins/' | xargs awk -v layers="$layers" '
    BEGIN {
        for (i = split(layers, rows); i > 0; i--) { split(rows[i], row, ":"); layer[row[1]] = row[2] }
    }
    function complain(text) { print "check: " FILENAME text; bad = 1 }
    FNR == 1 {
        split(FILENAME, path, "/")
        from = path[1] == "cli" ? "cli" : path[2]
        if (!(from in layer)) complain(": folder " from " has no layer in this script")
    }
    /^#include "[a-z0-9_]*\// {
        split($0, path, /["\/]/)
        to = path[2]
        if (to in layer && layer[to] > layer[from] + 0 && !seen[FILENAME, to]++) complain(" includes from " to "/, a layer above " from "/")
    }
    END { exit bad }' >&2 || status=1

# Inside comm/ a file may include from its own floor and from those below. docs/communication.md says what they are.
floor() {
    case "$1" in
    sys.*) echo 1 ;;
    store/* | bootstrap/*) echo 2 ;;
    meet/* | group.h | launch/*) echo 3 ;;
    move/*) echo 4 ;;
    call/*) echo 5 ;;
    *) echo 0 ;;
    esac
}
for file in $(find src/comm -name '*.[ch]'); do
    own=$(floor "${file#src/comm/}")
    [ "$own" != 0 ] || complain "$file: it has no floor in this script"
    for include in $(sed -n 's/^#include "comm\/\(.*\)"/\1/p' "$file"); do
        [ "$(floor "$include")" -le "$own" ] || complain "$file includes comm/$include, a floor above it"
    done
done

# No more than three files of comm/ refer to each other in a circle.
./scripts/circles.py src/comm >&2 || complain "src/comm: files in a circle"

# A type's name must be unique, whichever way it is defined. sed prints the file (F) and the name, one after the other.
for name in $(find src cli -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' | xargs sed -s -n '
    s/^} \(tern__[a-z0-9_]*\);.*/\1/; t found
    s/^\(typedef \)\{0,1\}\(struct\|union\|enum\) \(tern__[a-z0-9_]*\) {.*/\3/; t found
    d
    :found
    F
    p' | paste - - | sort -u | cut -f 2 | sort | uniq -d); do
    complain "$name is defined in $(grep -rlE "^} $name;|^(typedef )?(struct|union|enum) $name \\{" src cli | paste -sd' ')"
done

# A file has at most 800 lines, a public header 300, a function 100.
find src cli examples tests bench include -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' | xargs awk '
    function end_file(limit) {
        limit = file ~ /^include\// ? 300 : 800
        if (lines > limit) { print "check: " file ": " lines " lines, at most " limit; bad = 1 }
    }
    FNR == 1 { end_file(); file = FILENAME; start = 0 }
    { lines = FNR }
    /^\{/ { start = FNR }
    /^\}/ && start {
        if (FNR - start > 100) { print "check: " file ":" start ": a function of " FNR - start " lines, at most 100"; bad = 1 }
        start = 0
    }
    END { end_file(); exit bad }' >&2 || status=1

# Files with OpenMP loops must also compile without OpenMP, since ThreadSanitizer cannot see into it.
for file in $(grep -rl '#pragma omp' src tests --include='*.c'); do
    cc -fsyntax-only -std=gnu11 -D_GNU_SOURCE -Iinclude -Isrc -Itests -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-variable \
        -Wno-psabi "$file" || complain "$file: does not compile without OpenMP"
done

# Every skip is recorded, and shown by ctest with its reason (tests/skips.py).
for place in $(grep -rnE '(unittest\.main|[^_]skip)\(\)|"skipped: ' tests --include='*.[ch]' --include='*.cc' --include='*.py' --include='*.sh' |
    grep -vE '^tests/(skips\.|skip\.sh|bench/test_gpu\.py)' | cut -d: -f1,2); do
    complain "$place: a skip that ctest does not show: use tests/check.h, skips.py or skip.sh"
done

# clang-format leaves comments alone, since it would join the lines of tables.
for place in $(find src cli examples tests bench include fuzz '(' -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' ')' -print0 |
    xargs -0 awk 'length($0) > 110 && /^ *[\/ ]\*/ { print FILENAME ":" FNR }'); do
    complain "$place: a comment of more than 110 columns"
done

# Prose in pages has lines of at most 120 columns; tables, code and pictures have theirs.
for place in $(awk 'FNR == 1 { fence = 0 } /^```/ { fence = !fence } !fence && !/^(\||    |!\[)/ && length($0) > 120 { print FILENAME ":" FNR }' \
    docs/*.md README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md); do
    complain "$place: a line of more than 120 columns"
done

# The format must be that of .clang-format. Only version 14 of the tool is used, since other versions format differently.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    unformatted=$(find src cli examples tests bench include '(' -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' ')' -print0 |
        xargs -0 clang-format --dry-run 2>&1 | sed -n 's/^\([^:]*\):\([0-9]*\):.*code should be.*/\1:\2/p' | sort -u -t: -k1,1)
    for place in $unformatted; do complain "$place: not formatted"; done
else
    echo "check: clang-format 14 is missing: the format is not checked"
fi
exit $status
