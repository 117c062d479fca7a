"""The memory, its groups, and its figures."""

from __future__ import annotations

import atexit
import html
import json
import os
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from ._file import File, missing_mode
from ._native import RawFile, RawGroup, RawMemory, RawSpace
from ._size import parse_size, show_size
from ._space import Space, _raw_group

if TYPE_CHECKING:
    from ._array import Array
    from ._tensors import Tensors

_MODES: dict[str, str] = {}
for _mode, _names in {
    "r": ("r", "rb"),
    "r+": ("r+", "rb+", "r+b"),
    "w+": ("w+", "wb+", "w+b"),
    "x+": ("x+", "xb+", "x+b"),
}.items():
    _MODES.update(dict.fromkeys(_names, _mode))

# Files that may have something unwritten when the interpreter ends.
_written: weakref.WeakSet[RawFile] = weakref.WeakSet()
_process = os.getpid()


@atexit.register
def _close_files() -> None:
    # A child of fork() has the parent's files, and must not write them.
    if os.getpid() == _process:
        for file in list(_written):
            try:
                file.write_back()
            except Exception as error:
                import sys

                print(f"innerspace: at exit: {error}", file=sys.stderr)


class Memory:
    """A memory manager with a hard limit on everything it uses.

    `limit` is a number of bytes or text: "64MiB", "2GB", or "25%" of the machine's or container's
    memory. The least is 256 KiB.

    A memory is a context manager: its end closes it. It belongs to the process that made it. In a
    child of `os.fork` its files raise FileError; make a memory of its own there.
    """

    def __init__(self, limit: int | str = "64MiB") -> None:
        if isinstance(limit, str) and limit.rstrip().endswith("%"):
            try:
                share = float(limit.rstrip()[:-1]) / 100
            except ValueError:
                raise ValueError(f"limit {limit!r} is not a share such as '25%'") from None
            raw = RawMemory.of_machine(share)
        else:
            raw = RawMemory(parse_size(limit))
        self._raw: RawMemory | None = raw
        self._files: weakref.WeakSet[File] = weakref.WeakSet()

    @property
    def limit(self) -> int:
        """The limit in bytes."""
        return self._open().limit

    @property
    def usage(self) -> int:
        """The bytes in use now."""
        return self._open().usage()

    @property
    def closed(self) -> bool:
        """Whether the memory is closed."""
        return self._raw is None

    def _open(self) -> RawMemory:
        if self._raw is None:
            raise ValueError("the memory is closed")
        return self._raw

    def open(
        self,
        path: Any,
        mode: str = "r",
        *,
        group: Group | None = None,
        block: int | str | None = None,
    ) -> File:
        """Opens a file by path: 'r' to read, 'r+' to write too, 'w+' to create or empty it,
        'x+' to create a new one. Returns a `File`.

        `group` pays for it; the whole memory by default. `block` is the unit of caching, "4KiB" (the
        default) to "2MiB", a power of two. A file that is written is locked against other programs
        that use such locks.

        Raises FileError (a missing file is a FileNotFoundError too) or LimitError.
        """
        raw, mode = self._open_raw(path, mode, group, block)
        file = File(raw, self, mode, name=os.fspath(path))
        self._files.add(file)
        return file

    def _open_raw(
        self, path: Any, mode: str, group: Group | None, block: int | str | None
    ) -> tuple[RawFile, str]:
        if mode not in _MODES:
            raise missing_mode(mode)
        mode = _MODES[mode]
        memory = self._open()
        block = None if block is None else parse_size(block)
        raw = memory.open(os.fsdecode(path), mode, _raw_group(group), block)
        if raw.writable:
            _written.add(raw)
        return raw, mode

    def array(
        self,
        path: Any,
        dtype: Any = "uint8",
        shape: Any = None,
        mode: str = "r",
        offset: int = 0,
        order: str = "C",
        *,
        group: Group | None = None,
        block: int | str | None = None,
    ) -> Array:
        """Opens a file as an `Array`, with the arguments of `numpy.memmap`.

        `path` may be a `File` of this memory, or a file object of Python's. Without a `shape` the array is
        as long as the file. 'r+' lengthens a file that is too short, and 'w+' creates it, or empties it if
        it is given by its path. 'c' is refused: a private mapping of a `Space` keeps changes from the file.
        """
        from ._array import Array

        return Array._of_file(self, path, dtype, shape, mode, offset, order, group, block)

    def open_npy(
        self,
        path: Any,
        mode: str = "r",
        *,
        group: Group | None = None,
        block: int | str | None = None,
    ) -> Array:
        """Opens a file in numpy's .npy format as an `Array`; dtype, shape and order are the file's."""
        from ._array import Array

        return Array._of_npy(self, path, mode, group, block)

    def open_safetensors(
        self, path: Any, *, group: Group | None = None, block: int | str | None = None
    ) -> Tensors:
        """Opens a file in the safetensors format: `Tensors`, which reads one tensor at a time.

        A bad header is a FileError.
        """
        from ._tensors import Tensors

        return Tensors(self, path, group, block)

    def space(self, group: Group | None = None) -> Space:
        """Creates a `Space`, an address space of its own, empty at first. `group` pays for it."""
        return Space(RawSpace(self._open(), _raw_group(group)))

    def group(self, name: str, limit: int | str) -> Group:
        """Creates a `Group` with a limit of its own: a tenant, whose scans evict nothing of others."""
        return Group(self._open().group(name, parse_size(limit)))

    def stats(self) -> Stats:
        """Returns the figures of the memory as a `Stats`: a dict that prints itself."""
        data, text = self._open().stats()
        return Stats(json.loads(data), text)

    def reclaim(self, size: int | str) -> int:
        """Evicts up to `size` bytes, and returns how many were freed."""
        return self._open().reclaim(parse_size(size))

    def take_errors(self) -> list[str]:
        """Returns, once, the failures that no open file was left to report, as text."""
        return self._open().take_errors()

    def close(self) -> None:
        """Closes the memory and the files opened by it, which are written back first.

        Views and arrays keep what they need of it until they are gone.
        """
        for file in list(self._files):
            file.close()
        self._raw = None

    def __enter__(self) -> Memory:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._raw is None:
            return "<innerspace.Memory, closed>"
        return f"<innerspace.Memory: {show_size(self.usage)} of {show_size(self.limit)}>"

    def _repr_html_(self) -> str:
        return html.escape(repr(self)) if self._raw is None else self.stats()._repr_html_()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a memory cannot be pickled: it belongs to this process; make one in the other")


class Group:
    """A part of a memory with a limit of its own, created by `Memory.group`."""

    def __init__(self, raw: RawGroup) -> None:
        self._raw = raw

    @property
    def name(self) -> str:
        """The name that it was created with."""
        return self._raw.name

    @property
    def path(self) -> str:
        """The names from the root to it, joined by '/'."""
        return self._raw.path

    @property
    def usage(self) -> int:
        """The bytes charged to it and to the groups below it."""
        return self._raw.usage()

    def take_peak(self) -> int:
        """Returns the highest usage since the previous call."""
        return self._raw.take_peak()

    def group(self, name: str, limit: int | str) -> Group:
        """Creates a group below this one."""
        return Group(self._raw.child(name, parse_size(limit)))

    def set_limit(self, size: int | str | None) -> None:
        """Changes the limit; None leaves only the limits of the groups above."""
        self._raw.set("max", None if size is None else parse_size(size))

    def set_high(self, size: int | str | None) -> None:
        """Sets a mark above which requests are slowed down; None removes it."""
        self._raw.set("high", None if size is None else parse_size(size))

    def set_low(self, size: int | str | None) -> None:
        """Protects this much from other groups, as long as others have anything unprotected."""
        self._raw.set("low", None if size is None else parse_size(size))

    def set_min(self, size: int | str | None) -> None:
        """Protects this much from other groups in any case."""
        self._raw.set("min", None if size is None else parse_size(size))

    def __repr__(self) -> str:
        return f"<innerspace.Group {self.path!r}: {show_size(self.usage)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a group cannot be pickled: its memory belongs to this process")


# Where the limit goes: the part, its colour in a notebook.
_PARTS = {
    "blocks": "#4c78a8",
    "tables": "#f58518",
    "anonymous": "#e45756",
    "heap": "#72b7b2",
    "stock": "#eeca3b",
    "reserve": "#b279a2",
    "metadata": "#9d755d",
    "fixed": "#bab0ac",
    "free": "#f0f0f0",
}


class Stats(dict[str, Any]):
    """The figures of a memory: a dict, with a text for people, and a small bar in a notebook."""

    def __init__(self, data: dict[str, Any], text: str = "") -> None:
        super().__init__(data)
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        whole = max(self["limit"], 1)
        cells, legend = [], []
        for part, colour in _PARTS.items():
            size = self["parts"][part]
            if size:
                style = f"background:{colour};width:{100 * size / whole:.2f}%"
                title = f"{part}: {show_size(size)}"
                cells.append(f'<div style="{style}" title="{title}"></div>')
                legend.append(f'<span style="color:{colour}">&#9632;</span> {title}')
        head = f"{show_size(self['usage'])} of {show_size(self['limit'])}, peak {show_size(self['peak'])}"
        bar = "display:flex;height:1em;width:32em;max-width:100%;border:1px solid #888"
        return (
            f'<div><div>innerspace.Memory: {head}</div><div style="{bar}">{"".join(cells)}</div>'
            f"<small>{' &nbsp; '.join(legend)}</small></div>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Stats, (dict(self), self._text)
