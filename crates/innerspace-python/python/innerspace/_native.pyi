"""The native half of the package. Programs use the classes of `innerspace`, which are built on it;
only `View` is public."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, final, overload

from typing_extensions import Buffer

__all__ = [
    "Background",
    "RawFile",
    "RawGroup",
    "RawMemory",
    "RawSnapshot",
    "RawSpace",
    "View",
    "Wakeups",
    "open_fetched",
    "read_tensors",
]

@final
class RawMemory:
    """A memory manager with a hard limit."""

    def __new__(cls, limit: int) -> RawMemory: ...
    @staticmethod
    def of_machine(share: float) -> RawMemory:
        """A memory limited to a share of the machine or container."""

    @property
    def limit(self) -> int: ...
    def usage(self) -> int: ...
    def group(self, name: str, max: int) -> RawGroup: ...
    def open(
        self, path: str, mode: str, group: RawGroup | None = None, block: int | None = None
    ) -> RawFile: ...
    def stats(self) -> tuple[str, str]:
        """Returns the counters as JSON, and as text for people."""

    def reclaim(self, bytes: int) -> int:
        """Evicts up to this many bytes, and returns how many were freed."""

    def take_errors(self) -> list[str]:
        """Returns the failures that no file was left to report."""

@final
class RawGroup:
    """A group of a memory."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    def usage(self) -> int: ...
    def take_peak(self) -> int: ...
    def child(self, name: str, max: int) -> RawGroup: ...
    def set(self, which: str, bytes: int | None) -> None:
        """Sets one of the group's four limits: 'max', 'high', 'low', 'min'."""

@final
class RawFile:
    """An open file."""

    @property
    def name(self) -> str: ...
    def limit(self) -> int:
        """Returns the limit of the group that pays for the file, in bytes."""

    def size(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    def read(self, len: int, offset: int) -> bytes:
        """Returns up to `len` bytes at `offset`."""

    def readinto(self, buffer: Buffer, offset: int) -> int:
        """Fills a buffer with the bytes at `offset`, and returns how many there were."""

    def write(self, buffer: Buffer, offset: int) -> int:
        """Writes all of a buffer at `offset`, and returns its length."""

    def append(self, buffer: Buffer) -> int:
        """Writes all of a buffer at the end of the file, and returns the offset of its end."""

    def set_len(self, len: int) -> None: ...
    def write_back(self) -> None:
        """Writes what is unwritten, so that other programs see it."""

    def sync(self) -> None:
        """Writes what is unwritten, and makes it durable."""

    def view(self, offset: int, len: int) -> View: ...
    def prefetch(self, offset: int, len: int) -> None: ...
    def invalidate(self) -> int:
        """Forgets cached blocks, and takes over the length that the store has now."""

    def evict(self) -> int: ...
    def set_reading(self, order: str) -> None:
        """Says in which order the file will be read."""

    def gather(
        self,
        into: Buffer,
        starts: Buffer,
        shape: Sequence[int],
        strides: Sequence[int],
        item: int,
    ) -> None:
        """Copies the elements of a strided array out of the file into a contiguous buffer."""

    def scatter(
        self,
        bytes: Buffer,
        starts: Buffer,
        shape: Sequence[int],
        strides: Sequence[int],
        item: int,
    ) -> None:
        """Copies a contiguous buffer to the elements of a strided array in the file."""

@final
class View:
    """Bytes of a file that do not change while the view lives, even if the file is written, cut or
    closed. It has the buffer protocol, read-only: pass it to `memoryview`, `bytes`,
    `numpy.frombuffer`, or to anything else that takes bytes. What is made of it keeps it alive.

    A view keeps its blocks in the memory, and charged, as long as it lives.
    """

    @property
    def offset(self) -> int:
        """The offset of the first byte in the file."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    def tobytes(self) -> bytes:
        """Returns a copy of the bytes."""

    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int, /) -> int: ...
    @overload
    def __getitem__(self, key: slice, /) -> View: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __reduce__(self) -> NoReturn: ...

@final
class RawSpace:
    """An address space."""

    def __new__(cls, memory: RawMemory, group: RawGroup | None = None) -> RawSpace: ...
    def limit(self) -> int: ...
    def map_anonymous(self, len: int, at: int | None = None) -> int:
        """Maps zeros, and returns the address."""

    def map_file(
        self,
        file: RawFile,
        offset: int,
        len: int | None,
        shared: bool,
        writable: bool,
        at: int | None = None,
    ) -> int:
        """Maps a range of a file, and returns the address."""

    def unmap(self, at: int, len: int) -> None: ...
    def protect(self, at: int, len: int, rights: str) -> None: ...
    def sync(self, at: int, len: int) -> None:
        """Writes what is unwritten of shared mappings, and makes it durable."""

    def read(self, at: int, len: int) -> bytes: ...
    def readinto(self, at: int, buffer: Buffer) -> int: ...
    def write(self, at: int, buffer: Buffer) -> int: ...
    def fill(self, at: int, len: int, byte: int) -> None: ...
    def fork(self, group: RawGroup | None = None) -> RawSpace: ...
    def freeze(self) -> RawSnapshot: ...
    def restore(self, snapshot: RawSnapshot) -> None: ...
    def changed_since(self, snapshot: RawSnapshot) -> list[tuple[int, int]]: ...
    def mappings(self) -> list[tuple[int, int, str, str | None]]:
        """Returns address, length, protection and file of each mapping, by address."""

    def __reduce__(self) -> NoReturn: ...

@final
class RawSnapshot:
    """A snapshot of a space."""

    def read(self, at: int, len: int) -> bytes: ...
    def readinto(self, at: int, buffer: Buffer) -> int: ...
    def fork(self, group: RawGroup | None = None) -> RawSpace: ...
    def diff(self, other: RawSnapshot) -> list[tuple[int, int]]: ...

@final
class Wakeups:
    """What the futures of an event loop wake."""

    def __new__(cls) -> Wakeups: ...
    def fileno(self) -> int:
        """Returns the descriptor that is readable when futures are to be polled."""

    def take(self) -> list[int]:
        """Returns the numbers of the futures that are to be polled."""

@final
class Background:
    """A call in the background. It begins with the first poll."""

    @staticmethod
    def read(file: RawFile, len: int, offset: int) -> Background:
        """A read of up to `len` bytes."""

    @staticmethod
    def view(file: RawFile, offset: int, len: int) -> Background:
        """A view of a range."""

    @staticmethod
    def write(file: RawFile, buffer: Buffer, offset: int) -> Background:
        """A write of a copy of the buffer."""

    @staticmethod
    def sync(file: RawFile) -> Background:
        """A sync."""

    def poll(self, wakeups: Wakeups, number: int) -> tuple[Any] | None:
        """Returns the result in a tuple, or None if it is not there yet: then `number` is woken later."""

    def cancel(self) -> None:
        """Ends the call as far as it has not been made."""

def open_fetched(
    memory: RawMemory,
    fetch: Callable[[int, int], Buffer],
    len: int,
    name: str,
    block: int,
    request_size: int,
    requests: int,
    group: RawGroup | None = None,
) -> RawFile:
    """Opens a file that is read by a function: `fetch(start, end)` returns the bytes. It is called by up
    to `requests` threads at a time, for up to `request_size` bytes."""

def read_tensors(raw: RawFile) -> tuple[list[tuple[str, str, list[int], int, int]], dict[str, str]]:
    """Returns the tensors by offset (name, dtype, shape, offset, length), and the metadata of a file in the
    safetensors format. A header that is wrong is a ValueError."""
