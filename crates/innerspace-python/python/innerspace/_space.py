"""Address spaces: memory at addresses of its own, which forks and goes back in microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ._file import File
from ._native import RawGroup, RawSnapshot, RawSpace
from ._size import parse_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._memory import Group


class Range(NamedTuple):
    """Some bytes of a space: where they begin, and how many they are."""

    start: int
    length: int


class Mapping(NamedTuple):
    """A mapping of a space. `rights` has 'r' and 'w' or '-'; `file` is None for anonymous memory."""

    start: int
    length: int
    rights: str
    file: str | None


def _raw_group(group: Group | None) -> RawGroup | None:
    raw: RawGroup | None = None if group is None else getattr(group, "_raw", None)
    if group is not None and not isinstance(raw, RawGroup):
        raise TypeError(f"group is an innerspace.Group, not {type(group).__name__}")
    return raw


def _raw_snapshot(snapshot: Snapshot) -> RawSnapshot:
    if not isinstance(snapshot, Snapshot):
        raise TypeError(f"a snapshot is what Space.freeze returns, not {type(snapshot).__name__}")
    return snapshot._raw


def _ranges(pages: list[tuple[int, int]]) -> list[Range]:
    return [Range(start, length) for start, length in pages]


class Space:
    """An address space of a memory, made by `Memory.space`: mappings, and their bytes.

    An address is a number, at which `read` and `write` find the bytes; no pointer leads there. Pages
    are 4096 bytes; mappings begin at multiples of that. A page of anonymous memory is zeros, and
    costs nothing, until it is written. What is written to a private mapping stays in the space.

    `fork` makes a copy in microseconds, whatever is mapped. `freeze` keeps the space as it is now,
    and `restore` goes back there.

    >>> import innerspace
    >>> memory = innerspace.Memory("4MiB")
    >>> space = memory.space()
    >>> at = space.map(1 << 20)
    >>> space.write(at, b"before")
    6
    >>> snapshot = space.freeze()
    >>> child = space.fork()
    >>> child.write(at, b"child ")
    6
    >>> space.write(at, b"after ")
    6
    >>> space.read(at, 6), child.read(at, 6)
    (b'after ', b'child ')
    >>> space.restore(snapshot)
    >>> space.read(at, 6)
    b'before'

    Any thread may use it, and the interpreter's lock is released meanwhile. Raises LimitError when
    the memory is full; AccessError for an access to what is not mapped, or may not be written, or
    whose file fails; FileError for other failures of a file; ValueError for ranges that make no
    sense.
    """

    def __init__(self, raw: RawSpace) -> None:
        self._raw: RawSpace | None = raw

    def _open(self) -> RawSpace:
        if self._raw is None:
            raise ValueError("the space is closed")
        return self._raw

    # Mappings.

    def map(
        self,
        what: File | int | str,
        length: int | str | None = None,
        *,
        offset: int = 0,
        shared: bool = False,
        writable: bool | None = None,
        at: int | None = None,
    ) -> int:
        """Maps anonymous memory or a file, and returns its address.

        `what` is the length of anonymous memory ("1MiB"), or a `File`, of which `length` bytes from
        `offset` on are mapped; by default, all that follow. A file's mapping is private and may be
        written: the file keeps its bytes. A `shared` one changes the file, and may be written if the
        file may. `at` chooses the address.
        """
        raw = self._open()
        if not isinstance(what, File):
            if length is not None or offset or shared:
                raise TypeError("length, offset and shared belong to the mapping of a File")
            at = raw.map_anonymous(parse_size(what), at)
            if writable is False:
                raw.protect(at, parse_size(what), "r")
            return at
        file = what._open()
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        length = None if length is None else parse_size(length)
        if writable is None:
            writable = what.writable() if shared else True
        elif shared and writable:
            what._writing()
        return raw.map_file(file, offset, length, shared, writable, at)

    def unmap(self, at: int, length: int | str) -> None:
        """Unmaps a range, rounded up to whole pages."""
        self._open().unmap(at, parse_size(length))

    def protect(self, at: int, length: int | str, rights: str) -> None:
        """Sets what accesses may do with a range: '' nothing, 'r' read, 'rw' read and write."""
        self._open().protect(at, parse_size(length), rights)

    def mappings(self) -> list[Mapping]:
        """Returns the mappings, by address."""
        return [Mapping(*one) for one in self._open().mappings()]

    # Bytes.

    def read(self, at: int, size: int) -> bytes:
        """Returns a copy of `size` bytes. Refused with LimitError if that is more than the limit."""
        return self._open().read(at, size)

    def readinto(self, at: int, buffer: Buffer) -> int:
        """Fills a buffer, such as a `bytearray` or an array of numpy, and returns its length."""
        return self._open().readinto(at, buffer)

    def write(self, at: int, data: Buffer) -> int:
        """Writes all of a buffer, and returns its length in bytes."""
        return self._open().write(at, data)

    def fill(self, at: int, size: int | str, byte: int = 0) -> None:
        """Sets `size` bytes to the same value."""
        self._open().fill(at, parse_size(size), byte)

    def sync(self, at: int, length: int | str) -> None:
        """Makes durable what was written to the shared mappings of a range."""
        self._open().sync(at, parse_size(length))

    # Copies.

    def fork(self, group: Group | None = None) -> Space:
        """Returns a copy, in microseconds. Neither side sees what the other writes to private memory.

        `group` pays for what the copy changes; the space's own group by default.
        """
        return Space(self._open().fork(_raw_group(group)))

    def freeze(self) -> Snapshot:
        """Returns the space as it is now, in microseconds."""
        return Snapshot(self._open().freeze())

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot of this space, or to the one that it was forked from. The time is in
        proportion to what has changed since. Shared mappings keep what was written to the file."""
        self._open().restore(_raw_snapshot(snapshot))

    def changed_since(self, snapshot: Snapshot) -> list[Range]:
        """Returns the pages that may differ from a snapshot; those that do are always among them."""
        return _ranges(self._open().changed_since(_raw_snapshot(snapshot)))

    # The end.

    def close(self) -> None:
        """Unmaps all, unless a call is still using it. Forks and snapshots stay."""
        self._raw = None

    @property
    def closed(self) -> bool:
        """Whether the space is closed."""
        return self._raw is None

    def __enter__(self) -> Space:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a space is not iterable; use mappings() and read()")

    def __repr__(self) -> str:
        if self._raw is None:
            return "<innerspace.Space, closed>"
        return f"<innerspace.Space with {len(self.mappings())} mappings>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a space cannot be pickled: its memory belongs to this process; pickle its bytes")


class Snapshot:
    """A space as it was when it was frozen. Nothing changes it."""

    def __init__(self, raw: RawSnapshot) -> None:
        self._raw = raw

    def read(self, at: int, size: int) -> bytes:
        """Returns a copy of `size` bytes as they were."""
        return self._raw.read(at, size)

    def readinto(self, at: int, buffer: Buffer) -> int:
        """Fills a buffer with the bytes as they were, and returns its length."""
        return self._raw.readinto(at, buffer)

    def fork(self, group: Group | None = None) -> Space:
        """Returns a space that begins as the snapshot is, in microseconds."""
        return Space(self._raw.fork(_raw_group(group)))

    def diff(self, other: Snapshot) -> list[Range]:
        """Returns the pages that may differ between two snapshots."""
        return _ranges(self._raw.diff(_raw_snapshot(other)))

    def __repr__(self) -> str:
        return "<innerspace.Snapshot>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a snapshot cannot be pickled: its memory belongs to this process")
