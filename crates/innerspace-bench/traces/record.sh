#!/bin/sh
# record.sh NAME COMMAND...
#
# Records the mappings and page faults of a command, and of what it starts, into NAME.gz here. Needs perf (Debian: linux-perf)
# and the right to use the kernel's tracepoints.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=$1
shift
calls=
for call in enter_munmap enter_brk exit_brk enter_mremap exit_mremap; do
    calls="$calls -e syscalls:sys_$call"
done
data=$(mktemp)
# The events of calls are a list of words.
# shellcheck disable=SC2086
perf record -q -d -m 4096 -o "$data" -e exceptions:page_fault_user $calls \
    -e sched:sched_process_fork -- "$@" > /dev/null
perf script -i "$data" --show-mmap-events --ns -F comm,pid,tid,time,event,trace |
    cargo run --quiet --release -p innerspace-bench -- reduce-trace |
    gzip -9n > "$here/$name.gz"
rm "$data"
