#!/bin/bash
# SQLite's own programs with this VFS as their default, beside the same programs with SQLite's own.
#
#   crates/innerspace-sqlite/sqlite-suite/run.sh            everything
#   crates/innerspace-sqlite/sqlite-suite/run.sh speed      speedtest1 alone
#   crates/innerspace-sqlite/sqlite-suite/run.sh reads      random reads of a large database alone
#   crates/innerspace-sqlite/sqlite-suite/run.sh tests      the test files alone
#   crates/innerspace-sqlite/sqlite-suite/run.sh FILE ...   test files by name, without `.test`
#
# Needs Debian or a relative of it, with: apt-get install build-essential dpkg-dev tcl tcl-dev
# `reads` needs root and a cgroup for memory, too: it holds all three ways to the same memory.
# The source is Debian's package sqlite3, fetched by apt into target/sqlite-suite; nothing of the
# system is changed, and nothing that was fetched belongs to the repository.
#
# Exit code 0: each test file gave the same errors by both, except those of explained.txt. 1: there
# are others, or a build failed. The lists are in target/sqlite-suite/results.
set -eu

files="io lock journal1 wal wal2 walvfs mmap1 mmap2 pager1 pragma corrupt"

root=$(cd "$(dirname "$0")/../../.." && pwd)
own="$root/crates/innerspace-sqlite/sqlite-suite"
target=${CARGO_TARGET_DIR:-$root/target}
work="$target/sqlite-suite"
results="$work/results"
mkdir -p "$work/lists/partial" "$work/archives/partial" "$results"

# The sources of Debian's own mirrors, as this system has them, for source packages.
fetch() {
    ls -d "$work"/sqlite3-*/ >/dev/null 2>&1 && return
    cat /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2>/dev/null |
        sed -n 's/^deb \(.*debian.*\)$/deb-src \1/p' >"$work/one.list"
    sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources \
        >"$work/own.sources" 2>/dev/null || rm -f "$work/own.sources"
    list="$work/one.list"
    test -s "$work/own.sources" && list="$work/own.sources"
    set -- -q -o "Dir::Etc::SourceList=$list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache::Archives=$work/archives"
    (cd "$work" && apt-get "$@" update && apt-get "$@" source sqlite3)
}

build() {
    (cd "$root" && cargo build --release -p innerspace-sqlite)
    source=$(ls -d "$work"/sqlite3-*/ | head -1)
    cd "$source"
    cp "$own/default_vfs.c" .
    cp "$target/release/libinnerspace_sqlite.so" .
    test -e Makefile || ./configure >"$work/configure.log" 2>&1
    gcc -O2 -c default_vfs.c -I. -o default_vfs.o 2>"$work/shim.log" ||
        { make sqlite3.h >"$work/make.log" 2>&1 && gcc -O2 -c default_vfs.c -I. -o default_vfs.o; }
    # Both VFSs are in the same program, so the compiler and its options are the same for both.
    link="$source/default_vfs.o -L$source -linnerspace_sqlite -Wl,-rpath,$source"
    make OPTS="-DSQLITE_EXTRA_INIT=innerspace_default" LIBS="$link -lpthread -ldl -lm -lz" \
        TLIBS="$link -lpthread -ldl -lm -lz" \
        speedtest1 testfixture >"$work/make.log" 2>&1 || { tail -20 "$work/make.log"; exit 1; }
    cd "$root"
}

# speedtest1 by both VFSs in turn. The best of three rounds: elapsed time as speedtest1 tells it, and
# the processor's time, which other programs disturb less.
speed() {
    cd "$work"
    TIMEFORMAT='%U %S'
    for mode in "--journal delete" "--journal wal" "--journal wal --mmap 1000000000"; do
        name=$(echo "$mode" | tr -d ' -')
        rm -f "$results/speed.$name".*
        for round in 1 2 3; do
            for vfs in unix innerspace; do
                rm -f speed.db*
                { time INNERSPACE_VFS=$vfs "$source/speedtest1" --size 100 --verify $mode speed.db \
                    >"$results/speed.$name.$vfs.$round" 2>&1; } 2>>"$results/speed.$name.$vfs.cpu"
                sed -n 's/.*TOTAL[. ]* \([0-9.]*\)s.*/\1/p' "$results/speed.$name.$vfs.$round" \
                    >>"$results/speed.$name.$vfs.total"
            done
        done
        for vfs in unix innerspace; do
            total=$(sort -n "$results/speed.$name.$vfs.total" | head -1)
            cpu=$(awk '{ print $1 + $2 }' "$results/speed.$name.$vfs.cpu" | sort -n | head -1)
            echo "speedtest1 --size 100 --verify $mode, $vfs: $total s, processor $cpu s"
        done
    done
    rm -f speed.db*
    cd "$root"
}

# Runs a command in a cgroup with so many bytes of memory, which the kernel's cache is a part of.
held_to() {
    if test -d /sys/fs/cgroup/memory; then
        group=/sys/fs/cgroup/memory/innerspace-suite limit=memory.limit_in_bytes
    else
        group=/sys/fs/cgroup/innerspace-suite limit=memory.max
    fi
    mkdir -p "$group" && echo "$1" >"$group/$limit" || return 1
    shift
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}

# Random reads of a database of four times the memory: by this VFS with the memory as its limit, by
# SQLite's own with the memory as its page cache, and by its mmap. All have 8 MiB besides. The best of
# three rounds, in which they take turns. There are enough reads that filling the memory counts for
# little.
reads() {
    cd "$work"
    memory=$((64 << 20)) rows=65536
    gcc -O2 -DSQLITE_EXTRA_INIT=innerspace_default "$own/random_reads.c" "$source/sqlite3.c" \
        -I"$source" $link -lpthread -ldl -lm -o random_reads
    rm -f reads.db
    INNERSPACE_VFS=unix ./random_reads make reads.db $rows
    for hot in 0 80; do
        rm -f "$results/reads."*
        for round in 1 2 3; do
            for way in innerspace cache mmap; do
                dd of=reads.db oflag=nocache conv=notrunc,fdatasync count=0 status=none
                case $way in
                innerspace) how="vfs=innerspace&limit=$memory" cache=10 mmap=0 count=$((rows * 2)) ;;
                cache) how="vfs=unix" cache=-$((memory >> 10)) mmap=0 count=$((rows * 2)) ;;
                # Its memory is full sooner: the kernel reads 64 KiB for each fault.
                mmap) how="vfs=unix" cache=10 mmap=$((1 << 30)) count=$((rows / 16)) ;;
                esac
                held_to $((memory + (8 << 20))) ./random_reads read "file:reads.db?$how" $rows \
                    $count $cache $mmap $hot >>"$results/reads.$way" || return 1
            done
        done
        for way in innerspace cache mmap; do
            echo "random reads of 256 MiB in 64 MiB, $hot % of them of a fifth, $way:" \
                "$(sort -n "$results/reads.$way" | tail -1) reads/s"
        done
    done
    rm -f reads.db
    cd "$root"
}

# Runs a test file by a VFS. Prints the number of errors, and the tests that failed.
one() {
    folder="$work/run.$1"
    rm -rf "$folder"
    mkdir -p "$folder"
    (cd "$folder" && INNERSPACE_VFS=$1 timeout 900 "$source/testfixture" "$source/test/$2.test" \
        >"$results/$2.$1.log" 2>&1) || true
    sed -n 's/^!Failures on these tests: //p' "$results/$2.$1.log" | tr ' ' '\n' | sort \
        >"$results/$2.$1.failed"
    sed -n 's/^\([0-9]* errors out of [0-9]* tests\).*/\1/p' "$results/$2.$1.log" |
        grep . || echo "did not end: $(tail -1 "$results/$2.$1.log")"
}

tests() {
    differ=0
    for file in "$@"; do
        own_vfs=$(one unix "$file")
        ours=$(one innerspace "$file")
        found=$(diff "$results/$file.unix.failed" "$results/$file.innerspace.failed" |
            sed -n 's/^[<>] //p')
        left=
        for test in $found; do
            grep -q -x -e "$file $test" -e "$file \*" "$own/explained.txt" || left="$left $test"
        done
        if test "$own_vfs" = "$ours" && test -z "$found"; then
            echo "$file: $ours; the same"
        elif test -z "$left" && grep -q "^$file " "$own/explained.txt"; then
            echo "$file: unix $own_vfs; innerspace $ours; explained in explained.txt"
        else
            differ=1
            echo "$file: unix $own_vfs; innerspace $ours; DIFFERENT:$left"
        fi
    done
}

fetch
build
differ=0
echo "SQLite $(cat "$source/VERSION") of $(basename "$(ls "$work"/sqlite3_*.dsc)" .dsc)," \
    "$(gcc --version | head -1), $(rustc --version), Linux $(uname -r)," \
    "$(df --output=fstype "$work" | tail -1)"
case "${1:-all}" in
all) speed; reads; tests $files ;;
speed) speed ;;
reads) reads ;;
tests) tests $files ;;
*) tests "$@" ;;
esac
exit $differ
