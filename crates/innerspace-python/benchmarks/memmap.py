"""Innerspace beside `numpy.memmap` and `numpy.fromfile`, over a file larger than the memory.

    python crates/innerspace-python/benchmarks/memmap.py [--size 4GiB] [--limit 256MiB] [--folder .]

Makes a file of rows of 1,024 float32 in the folder, and removes it at the end. Every measurement is a
process of its own, which begins with no page of the file in memory. `memmap` and `fromfile` run in a
memory cgroup (version 1) of the limit where one can be made; the table says so where not. The
contenders take turns; each figure is the median.
"""

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 1024
ROW = 4 * COLUMNS
COLUMN = 5
ELEMENTS = 20_000
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
CGROUPS = Path("/sys/fs/cgroup/memory")


def parse_size(text):
    return int(text[:-3]) * UNITS[text[-3:]]


def make(path, rows):
    """Writes element [row, column] = row % 1,000 + column."""
    columns = np.arange(COLUMNS, dtype=np.float32)
    with open(path, "wb") as file:
        for start in range(0, rows, 4096):
            numbers = np.arange(start, min(start + 4096, rows)) % 1000
            (numbers[:, None].astype(np.float32) + columns).tofile(file)
        file.flush()
        os.fsync(file.fileno())


# The tasks. Each gets something that indexes as an array does, and returns a number to compare.


def random_rows(array):
    """2,000 random rows, 100 at a time."""
    picks = np.random.default_rng(1).integers(0, len(array), (20, 100))
    return sum(float(np.asarray(array[pick])[:, COLUMN].sum()) for pick in picks)


def column_mean(array):
    """The mean of one column, which is in every page of the file."""
    return float(array[:, COLUMN].mean(dtype=np.float64))


def strided(array):
    """Every 64th row, every 8th column of it."""
    return float(array[::64, ::8].sum(dtype=np.float64))


def elements(array):
    """20,000 single elements of one row after another."""
    return sum(float(array[row, COLUMN]) for row in range(ELEMENTS))


class Windows:
    """`numpy.fromfile` by windows, with the few kinds of indices that the tasks use."""

    def __init__(self, path):
        self._file = open(path, "rb", buffering=0)
        self._rows = os.fstat(self._file.fileno()).st_size // ROW

    def __len__(self):
        return self._rows

    def _read(self, row, rows=1):
        self._file.seek(row * ROW)
        return np.fromfile(self._file, np.float32, rows * COLUMNS).reshape(-1, COLUMNS)

    def __getitem__(self, index):
        if isinstance(index, np.ndarray):
            return np.concatenate([self._read(row) for row in index])
        rows, columns = index
        if isinstance(rows, int):
            return self._read(rows)[0, columns]
        if rows.step is None:
            windows = range(0, self._rows, 4096)
            return np.concatenate([self._read(row, 4096)[:, columns].copy() for row in windows])
        picked = range(0, self._rows, rows.step)
        return np.concatenate([self._read(row)[:, columns].copy() for row in picked])


TASKS = [random_rows, column_mean, strided, elements]


def open_innerspace(path, limit):
    import innerspace

    return innerspace.Memory(limit).array(path, "float32").reshape(-1, COLUMNS)


def open_memmap_random(path, limit):
    array = np.memmap(path, "float32", "r")
    array._mmap.madvise(mmap.MADV_RANDOM)
    return array.reshape(-1, COLUMNS)


CONTENDERS = {
    "innerspace": open_innerspace,
    "memmap": lambda path, limit: np.memmap(path, "float32", "r").reshape(-1, COLUMNS),
    "memmap, MADV_RANDOM": open_memmap_random,
    "fromfile": lambda path, limit: Windows(path),
}


def resident():
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["VmRSS"].split()[0]) << 10, int(lines["VmHWM"].split()[0]) << 10


def measure(name, task, path, limit, cgroup):
    """Runs in a process of its own, and prints its figures."""
    if name == "innerspace":
        import innerspace  # noqa: F401 - its code is not part of the peak
    elif cgroup:
        # What is in memory so far, the interpreter and numpy, stays charged elsewhere.
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    before, _ = resident()
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the peak begins here
    begin = time.perf_counter()
    value = task(CONTENDERS[name](path, limit))
    seconds = time.perf_counter() - begin
    peak = max(resident()[1] - before, 0)
    print(json.dumps({"seconds": seconds, "peak": peak, "value": value}))


def cached(path):
    """The bytes of the file in the kernel's page cache."""
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as pages:
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), flags):
            raise OSError(ctypes.get_errno(), "mincore")
        return int(np.count_nonzero(np.frombuffer(flags, np.uint8) & 1)) * mmap.PAGESIZE


def drop(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Cgroup:
    """A memory cgroup of the limit; none if the machine does not allow it."""

    def __init__(self, limit):
        self.path = None
        path = CGROUPS / f"innerspace-{os.getpid()}"
        try:
            path.mkdir()
            self.path = path
            (path / "memory.limit_in_bytes").write_text(str(limit))
        except OSError as error:
            self.why = error.strerror
            self.end()

    def end(self):
        if self.path is not None:
            self.path.rmdir()
            self.path = None


def show(size):
    return f"{size / (1 << 20):,.0f} MiB"


def run(arguments):
    limit = parse_size(arguments.limit)
    folder = tempfile.mkdtemp(dir=arguments.folder)
    path = os.path.join(folder, "rows")
    cgroup = Cgroup(limit)
    try:
        make(path, parse_size(arguments.size) // ROW)
        where = "in a memory cgroup of that size"
        if cgroup.path is None:
            where = f"without a limit, since no memory cgroup could be made ({cgroup.why})"
        print(f"A file of {arguments.size}; limit {arguments.limit}; memmap and fromfile {where}.\n")
        print("| task | contender | time | peak memory | kernel cache left |\n|---|---|---|---|---|")
        for task in TASKS:
            figures = {name: [] for name in CONTENDERS}
            if task is not random_rows:
                del figures["memmap, MADV_RANDOM"]
            for _ in range(arguments.repeats):
                for name in figures:
                    drop(path)
                    command = [sys.executable, __file__, "--measure", name, task.__name__, path]
                    command += ["--limit", arguments.limit, "--cgroup", str(cgroup.path or "")]
                    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                    figures[name].append({**json.loads(output), "cache": cached(path)})
            values = {figure["value"] for each in figures.values() for figure in each}
            if len(values) != 1:
                raise SystemExit(f"{task.__name__}: the contenders do not agree: {figures}")
            for name, each in figures.items():
                seconds, peak, cache = (
                    statistics.median(figure[key] for figure in each)
                    for key in ("seconds", "peak", "cache")
                )
                what = task.__doc__.strip().rstrip(".")
                print(f"| {what} | {name} | {seconds:.2f} s | {show(peak)} | {show(cache)} |", flush=True)
    finally:
        Path(path).unlink(missing_ok=True)
        os.rmdir(folder)
        cgroup.end()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="4GiB")
    parser.add_argument("--limit", default="256MiB")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "TASK", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, task, path = arguments.measure
        measure(name, globals()[task], path, parse_size(arguments.limit), arguments.cgroup)
    elif parse_size(arguments.size) < ELEMENTS * ROW:
        parser.error(f"--size must be at least {show(ELEMENTS * ROW)}: a row for each single element")
    else:
        run(arguments)


if __name__ == "__main__":
    main()
