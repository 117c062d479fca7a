#!/usr/bin/env bash
# Runs the tests of all that could crash an interpreter under valgrind: files cut short, fork, views that outlive their
# memory or the interpreter, interrupts, buffers, pickling. Any access to memory that is not there fails a test.
# Needs `apt-get install valgrind`. The first argument is the Python of an environment with the package and pytest, by
# default that of ci.sh; others go to pytest, in place of the tests chosen here.
set -euo pipefail
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-../../target}
python=${1:-$target/python-environment/bin/python}
shift || true
if [ $# -eq 0 ]; then
    set -- tests/test_file.py tests/test_space.py tests/test_safetensors.py
fi
reports=$(mktemp -d)
# Without Python's own allocator, whose pools would hide what is used after it was freed. The tests of whole programs run
# them under valgrind too; a program with an error exits with 99.
export PYTHONMALLOC=malloc
status=0
valgrind --trace-children=yes --error-exitcode=99 --num-callers=30 --log-file="$reports/%p" \
    --suppressions=/usr/lib/valgrind/python3.supp --suppressions="$PWD/valgrind.supp" \
    "$python" -m pytest -q -p no:cacheprovider "$@" || status=$?
failed=$(grep -l "ERROR SUMMARY: [1-9]" "$reports"/* || true)
[ -z "$failed" ] || cat $failed
echo "valgrind: $(ls "$reports" | wc -l) processes, $(echo "$failed" | grep -c . || true) with errors"
rm -rf "$reports"
exit $status
