"""Files, arrays and address spaces with a hard limit on memory.

>>> import innerspace
>>> memory = innerspace.Memory("64MiB")
>>> table = memory.array("table.bin", "float32", (1_000_000, 1024))   # doctest: +SKIP
>>> table[:, 3].mean()                                                # doctest: +SKIP

Everything that a `Memory` reads is cached inside its limit, and nothing is left in the kernel's
page cache. A file that is cut short while it is read is an exception, not a SIGBUS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import AccessError, FileError, LimitError
from ._file import File
from ._memory import Group, Memory, Stats
from ._native import View
from ._space import Mapping, Range, Snapshot, Space

if TYPE_CHECKING:
    from ._array import Array
    from ._tensors import Tensors

__all__ = [
    "AccessError",
    "Array",
    "File",
    "FileError",
    "Group",
    "LimitError",
    "Mapping",
    "Memory",
    "Range",
    "Snapshot",
    "Space",
    "Stats",
    "Tensors",
    "View",
]


def __dir__() -> list[str]:
    # `help` and completion find the names that are imported late.
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # numpy is imported by the first program that asks for arrays.
    if name == "Array":
        from ._array import Array

        return Array
    if name == "Tensors":
        from ._tensors import Tensors

        return Tensors
    raise AttributeError(f"module 'innerspace' has no attribute {name!r}")
