"""The file object: what `io`, `zipfile`, `h5py`, `pyarrow` and the like read and write."""

from __future__ import annotations

import io
import operator
import os
from typing import TYPE_CHECKING, Any, NoReturn

from . import _aio
from ._native import Background, RawFile, View

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._memory import Memory


class File(io.RawIOBase):
    """A file of a memory, opened by `Memory.open`: an unbuffered binary file of Python's `io`.

    Reads are served from the memory's cache, so no buffer is needed around it. Writes are in the
    cache until `flush`, `close` or the library's own writeback writes them to the file; `sync`
    makes them durable. The interpreter's lock is released while a call waits.

    Two threads may use a file at the same time by `read_at`, `write_at` and `view`, which have no
    position.
    """

    def __init__(self, raw: RawFile, memory: Memory, mode: str, name: Any = None) -> None:
        self._raw: RawFile | None = raw
        self._memory = memory
        self._position = 0
        self._name = raw.name if name is None else name
        self._mode = mode

    # What the file is.

    @property
    def name(self) -> Any:
        """The path that the file was opened by."""
        return self._name

    @property
    def mode(self) -> str:
        """The mode as Python's binary files have it: 'rb' or 'rb+'."""
        return "rb" if self._mode == "r" else "rb+"

    @property
    def memory(self) -> Memory:
        """The memory that the file was opened in."""
        return self._memory

    @property
    def size(self) -> int:
        """The length in bytes, what is unwritten included."""
        return self._open().size()

    @property
    def block_size(self) -> int:
        """The unit of caching in bytes."""
        return self._open().block_size

    def __len__(self) -> int:
        return self._open().size()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<innerspace.File {os.fspath(self._name)!r} mode={self._mode!r}{state}>"

    def _open(self) -> RawFile:
        raw = self._raw
        if raw is None:
            raise ValueError(f"I/O operation on closed file {os.fspath(self._name)!r}")
        return raw

    # Reading.

    def readable(self) -> bool:
        """Returns True."""
        self._open()
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fills a buffer from the position on, and returns the number of bytes; 0 at the end."""
        count = self._open().readinto(buffer, self._position)
        self._position += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        """Returns up to `size` bytes from the position on; all that are left by default."""
        raw = self._open()
        if size is None or size < 0:
            size = max(raw.size() - self._position, 0)
        data = raw.read(size, self._position)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        """Returns all bytes from the position to the end."""
        return self.read()

    def read1(self, size: int | None = -1) -> bytes:
        """The same as `read`: there is no buffer to be emptied first."""
        return self.read(size)

    def peek(self, size: int = 0) -> bytes:
        """Returns bytes from the position on, without moving it."""
        return self._open().read(size if size > 0 else 4096, self._position)

    def readline(self, size: int | None = -1) -> bytes:
        """Returns the bytes to the next line feed, or to the end."""
        raw, at, parts = self._open(), self._position, []
        left = size if size is not None and size >= 0 else None
        step = 256
        while left is None or left > 0:
            piece = raw.read(step if left is None else min(step, left), at)
            end = piece.find(b"\n") + 1
            piece = piece[:end] if end else piece
            parts.append(piece)
            at += len(piece)
            if end or not piece:
                break
            if left is not None:
                left -= len(piece)
            step = min(step * 4, 1 << 16)
        self._position = at
        return b"".join(parts)

    def read_at(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes at `offset`: fewer at the end of the file, none past it."""
        if size < 0 or offset < 0:
            raise ValueError(f"size {size} or offset {offset} is negative")
        return self._open().read(size, offset)

    def view(self, offset: int = 0, length: int | None = None) -> View:
        """Returns an immutable `View` of a range: the cached bytes themselves, without a copy.

        Raises FileError for a range beyond the end of the file, and LimitError for one that does
        not fit in the memory.
        """
        raw = self._open()
        if length is None:
            length = max(raw.size() - offset, 0)
        if offset < 0 or length < 0:
            raise ValueError(f"offset {offset} or length {length} is negative")
        return raw.view(offset, length)

    # In the background, for asyncio.

    async def aread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes at `offset`, as `read_at`, without blocking the event loop.

        Any number may be under way in one thread: none has a thread of its own. A call that is cancelled
        ends, and drops its requests.
        """
        if size < 0 or offset < 0:
            raise ValueError(f"size {size} or offset {offset} is negative")
        raw = self._open()
        data: bytes = await _aio.read(lambda: Background.read(raw, size, offset))
        return data

    async def async_view(self, offset: int = 0, length: int | None = None) -> View:
        """Returns a view of a range, as `view`, without blocking the event loop."""
        raw = self._open()
        if length is None:
            length = max(raw.size() - offset, 0)
        if offset < 0 or length < 0:
            raise ValueError(f"offset {offset} or length {length} is negative")
        view: View = await _aio.read(lambda: Background.view(raw, offset, length))
        return view

    async def awrite(self, data: Buffer, offset: int) -> None:
        """Writes a copy of all of a buffer at `offset`, without blocking the event loop.

        Writes and syncs of a file are made in the order in which they were begun. One that is cancelled
        before its turn is not made.
        """
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        await _aio.write(Background.write(self._writing(), data, offset))

    async def async_sync(self) -> None:
        """Makes durable what is unwritten, as `sync`, without blocking the event loop."""
        raw = self._open()
        if raw.writable:
            await _aio.write(Background.sync(raw))

    # Writing.

    def writable(self) -> bool:
        """Returns whether the file was opened for writing."""
        # A file that is open for writing elsewhere in the memory is the same one there.
        return self._open().writable and self._mode != "r"

    def _writing(self) -> RawFile:
        raw = self._open()
        if not self.writable():
            raise io.UnsupportedOperation(f"{os.fspath(self._name)!r} is open for reading only")
        return raw

    def write(self, data: Buffer) -> int:
        """Writes all of a buffer at the position, and returns its length in bytes."""
        count = self._writing().write(data, self._position)
        self._position += count
        return count

    def write_at(self, data: Buffer, offset: int) -> int:
        """Writes all of a buffer at `offset`, and returns its length in bytes."""
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        return self._writing().write(data, offset)

    def append(self, data: Buffer) -> None:
        """Writes all of a buffer at the end of the file; no other `append` comes between."""
        self._position = self._writing().append(data)

    def truncate(self, size: int | None = None) -> int:
        """Cuts the file, or lengthens it with zeros; by default at the position."""
        raw = self._writing()
        size = self._position if size is None else size
        if size < 0:
            raise ValueError(f"size {size} is negative")
        raw.set_len(size)
        return size

    def flush(self) -> None:
        """Writes what is unwritten to the file, so that other programs see it."""
        raw = self._open()
        if raw.writable:
            raw.write_back()

    def sync(self) -> None:
        """Writes what is unwritten, and makes it durable, as `os.fsync` does."""
        raw = self._open()
        if raw.writable:
            raw.sync()

    # The position.

    def seekable(self) -> bool:
        """Returns True."""
        self._open()
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position, and returns it."""
        raw = self._open()
        offset = operator.index(offset)
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += raw.size()
        elif whence != io.SEEK_SET:
            raise ValueError(f"whence {whence!r} is not 0, 1 or 2")
        if not 0 <= offset < 1 << 63:
            raise ValueError(f"the position {offset} is negative, or past the largest file")
        self._position = offset
        return offset

    def tell(self) -> int:
        """Returns the position."""
        self._open()
        return self._position

    # The cache.

    def prefetch(self, offset: int, length: int) -> None:
        """Reads a range into the cache ahead of use; blocks that do not fit are skipped."""
        self._open().prefetch(offset, length)

    def set_reading(self, order: str) -> None:
        """Says in which order the file will be read: 'normal', 'random' or 'sequential'."""
        self._open().set_reading(order)

    def invalidate(self) -> int:
        """Forgets what is cached, to read the file anew after another program has changed it."""
        return self._open().invalidate()

    def evict(self) -> int:
        """Evicts the cached blocks that can go, and returns their bytes."""
        return self._open().evict()

    # The end.

    def close(self) -> None:
        """Writes what is unwritten and closes the file. Views of it stay as they are.

        If a write fails, the exception says so, and the file stays open.
        """
        raw = getattr(self, "_raw", None)
        if raw is not None:
            if raw.writable:
                raw.write_back()
            self._raw = None

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return getattr(self, "_raw", None) is None

    def fileno(self) -> NoReturn:
        """Refused: the file has no descriptor that the system's calls could read it by."""
        raise io.UnsupportedOperation(
            f"{os.fspath(self._name)!r} is read through an innerspace.Memory, which has no file "
            "descriptor; read it by its methods, or open the path with open()"
        )

    def isatty(self) -> bool:
        """Returns False."""
        return False

    def __del__(self) -> None:
        # Without the method of `io`, which prints what `close` raises. The library writes the file
        # back by itself; `Memory.take_errors` has what fails.
        self._raw = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a file of an innerspace.Memory cannot be pickled: its cache is in this process. Open "
            f"{os.fspath(self._name)!r} in a Memory of the other process"
        )


def missing_mode(mode: object) -> ValueError:
    """The exception for an unknown mode."""
    return ValueError(f"mode {mode!r} is not one of 'r', 'r+', 'w+' and 'x+', with or without 'b'")

