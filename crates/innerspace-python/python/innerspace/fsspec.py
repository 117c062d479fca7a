"""fsspec: a cache and a file system, with one memory limit for all remote files of the process.

The cache, for any file system of fsspec that has block caches (`s3`, `gcs`, `abfs`, `http`, ...):

>>> import innerspace.fsspec                                              # registers it
>>> fsspec.open("s3://bucket/key", cache_type="innerspace")               # doctest: +SKIP

The file system, around any other; fsspec finds it by its name, without an import:

>>> fsspec.open("innerspace::s3://bucket/key")                            # doctest: +SKIP

The cache belongs to one open file, as all of fsspec's do. The file system caches by path and version:
what one open of a file has read, the next ones find, as long as there is room for it.

The limit is 256 MiB, or that of the environment variable INNERSPACE_FSSPEC_LIMIT ("1GiB"), or what
`set_limit` says before the first file is opened.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

from fsspec import filesystem
from fsspec.caching import BaseCache, register_cache
from fsspec.utils import tokenize

from ._file import File
from ._memory import Group, Memory
from ._native import RawFile, open_fetched
from ._size import parse_size
from ._space import _raw_group

try:
    from fsspec.implementations.chained import ChainedFileSystem
except ModuleNotFoundError as error:
    raise ImportError("innerspace.fsspec needs fsspec 2025.10 or newer: pip install -U fsspec") from error

__all__ = ["InnerspaceCache", "InnerspaceFileSystem", "memory", "set_limit"]

_BLOCK = "64KiB"
_REQUESTS = 16

_lock = threading.Lock()
_memory: Memory | None = None


def memory() -> Memory:
    """Returns the memory of all files that fsspec opens in this process."""
    global _memory
    with _lock:
        if _memory is None or _memory.closed:
            _memory = Memory(os.environ.get("INNERSPACE_FSSPEC_LIMIT", "256MiB"))
        return _memory


def set_limit(limit: int | str) -> None:
    """Sets the limit of that memory. Refused once a file has been opened in it."""
    global _memory
    with _lock:
        if _memory is not None and not _memory.closed:
            raise ValueError(
                f"the memory of fsspec's files has a limit already: {_memory!r}; set it before the first open"
            )
        _memory = Memory(limit)


def _open(
    fetch: Callable[[int, int], bytes],
    size: int,
    name: str,
    block: int | str,
    request_size: int,
    group: Group | None,
    of: Memory | None,
) -> tuple[RawFile, Memory]:
    of = memory() if of is None else of
    block = parse_size(block)
    # A small memory has room for only a few large blocks.
    while block > 4096 and block * 64 > of.limit:
        block //= 2
    request_size = max(block, min(request_size, of.limit // 8))
    raw = open_fetched(
        of._open(), fetch, size, name, block, request_size, _REQUESTS, _raw_group(group)
    )
    return raw, of


class InnerspaceCache(BaseCache):  # type: ignore[misc]
    """The cache type `innerspace`: blocks of the process's one memory.

    `cache_options` may have `block`, the unit of caching ("64KiB"; a power of two from 4 KiB to 2 MiB);
    `memory`, another memory than the process's; and `group`, a group of it that pays. fsspec's
    `block_size` is the largest request. Any thread may read, and several requests are made at a time.
    """

    name: ClassVar[str] = "innerspace"

    def __init__(
        self,
        blocksize: int,
        fetcher: Callable[[int, int], bytes],
        size: int,
        block: int | str = _BLOCK,
        memory: Memory | None = None,
        group: Group | None = None,
    ) -> None:
        super().__init__(blocksize, fetcher, size)
        # The fetcher is a method of the file that has this cache. A strong reference from the library
        # would close a circle that Python's collector cannot see.
        counted = weakref.WeakMethod(self._counted)

        def fetch(start: int, end: int) -> bytes:
            method = counted()
            if method is None:
                raise ValueError("the file is gone")
            return method(start, end)

        self._raw, self._memory = _open(fetch, size, "a file of fsspec", block, blocksize, group, memory)

    def _counted(self, start: int, end: int) -> bytes:
        self.miss_count += 1
        self.total_requested_bytes += end - start
        data: bytes = self.fetcher(start, end)
        return data

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start = 0 if start is None else start
        stop = self.size if stop is None else min(stop, self.size)
        if start >= stop:
            return b""
        misses = self.miss_count
        data = self._raw.read(stop - start, start)
        if misses == self.miss_count:
            self.hit_count += 1
        return data


register_cache(InnerspaceCache, clobber=True)


class _Files:
    """The files that were opened last, by file system, path and version; closed ones are kept a while."""

    KEPT = 64

    def __init__(self) -> None:
        self._all: weakref.WeakValueDictionary[str, RawFile] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[str, RawFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], RawFile]) -> RawFile:
        with self._lock:
            raw = self._all.get(key)
        if raw is None:
            raw = make()
        with self._lock:
            raw = self._all.setdefault(key, raw)
            self._kept[key] = raw
            self._kept.move_to_end(key)
            surplus = [self._kept.popitem(last=False) for _ in range(len(self._kept) - self.KEPT)]
        del surplus
        return raw


_files = _Files()


class InnerspaceFileSystem(ChainedFileSystem):  # type: ignore[misc]
    """The file system `innerspace`: another one, whose files are read through the process's memory.

    `innerspace::s3://bucket/key` in a URL, or `InnerspaceFileSystem(fs=...)`. Files are opened as
    `innerspace.File`s, which read at any offset from any thread, give views, and raise FileError. Writes
    go to the other file system. `block` is the unit of caching; `memory` and `group` choose who pays.

    The version of a file is what the other file system's `info` says of it when the file is opened (size,
    time, entity tag). An open file keeps reading the version that it was opened with.
    """

    protocol: ClassVar[str] = "innerspace"
    root_marker = ""

    def __init__(
        self,
        fs: Any = None,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        block: int | str = _BLOCK,
        memory: Memory | None = None,
        group: Group | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        if fs is None:
            if target_protocol is None:
                raise ValueError("innerspace:: goes in front of another URL, as in innerspace::s3://bucket/key")
            fs = filesystem(target_protocol, **(target_options or {}))
        self.fs = fs
        self._block, self._memory, self._group = block, memory, group

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        for prefix in ("innerspace::", "innerspace://"):
            if path.startswith(prefix):
                path = path[len(prefix) :]
        return path

    def _there(self, path: str) -> str:
        there: str = self.fs._strip_protocol(self._strip_protocol(path))
        return there

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        path = self._there(path)
        if mode != "rb":
            return self.fs.open(path, mode, **options)
        info = self.fs.info(path)
        size = info.get("size")
        if size is None:
            # Its length is unknown, so it can only be read from front to back.
            return self.fs.open(path, mode, **options)
        if info.get("type") == "directory":
            raise IsADirectoryError(path)
        fs = self.fs

        def fetch(start: int, end: int) -> bytes:
            data: bytes = fs.cat_file(path, start=start, end=end)
            return data

        of = memory() if self._memory is None else self._memory
        request_size = options.get("block_size") or 4 << 20

        def make() -> RawFile:
            return _open(fetch, size, path, self._block, request_size, self._group, of)[0]

        group = None if self._group is None else self._group.path
        key = tokenize(fs, path, str(info), id(of), str(self._block), group)
        return File(_files.get(key, make), of, "r", name=path)

    def info(self, path: str, **options: Any) -> Any:
        return self.fs.info(self._there(path), **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self.fs.ls(self._there(path), detail=detail, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with self._open(path) as file:
            if start is not None:
                file.seek(start, io.SEEK_SET if start >= 0 else io.SEEK_END)
            if end is not None and end < 0:
                end += file.size
            data: bytes = file.read(-1 if end is None else max(end - file.tell(), 0))
            return data

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> Any:
        return self.fs.mkdir(self._there(path), create_parents=create_parents, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> Any:
        return self.fs.makedirs(self._there(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> Any:
        return self.fs.rmdir(self._there(path))

    def rm_file(self, path: str) -> Any:
        return self.fs.rm_file(self._there(path))

    def cp_file(self, path1: str, path2: str, **options: Any) -> Any:
        return self.fs.cp_file(self._there(path1), self._there(path2), **options)

    def created(self, path: str) -> Any:
        return self.fs.created(self._there(path))

    def modified(self, path: str) -> Any:
        return self.fs.modified(self._there(path))

    def ukey(self, path: str) -> Any:
        return self.fs.ukey(self._there(path))
