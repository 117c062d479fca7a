"""Files, arrays and address spaces with a hard limit on memory.

>>> import innerspace
>>> memory = innerspace.Memory("64MiB")
>>> table = memory.array("table.bin", "float32", (1_000_000, 1024))   # doctest: +SKIP
>>> table[:, 3].mean()                                                # doctest: +SKIP

Everything that a `Memory` reads is cached inside its limit, and nothing is left in the kernel's
page cache. A file that is cut short while it is read is an exception, not a SIGBUS.
"""

from ._errors import FileError, LimitError
from ._file import File
from ._memory import Group, Memory, Stats
from ._native import View

__all__ = [
    "Array",
    "File",
    "FileError",
    "Group",
    "LimitError",
    "Memory",
    "Stats",
    "View",
]


def __getattr__(name):
    # numpy is imported by the first program that asks for arrays.
    if name == "Array":
        from ._array import Array

        return Array
    raise AttributeError(f"module 'innerspace' has no attribute {name!r}")
