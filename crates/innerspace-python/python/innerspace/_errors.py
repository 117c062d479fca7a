"""The exceptions, and how the native half makes them."""

from __future__ import annotations

import errno as _errno
from typing import Any


class LimitError(MemoryError):
    """A memory or group is full, and nothing can be evicted; or a result would exceed the limit.

    `group`, `limit` and `usage` say which group refused, in bytes; they are None where no group did.
    """

    group: str | None = None
    limit: int | None = None
    usage: int | None = None


class FileError(OSError):
    """A call of a file failed: `errno`, `strerror`, `filename` and `offset` say how and where.

    `offset` is None where it has no meaning. A file that another program has cut short or changed
    is such an error too. Missing files and the like are subclasses that are Python's own classes as
    well: `except FileNotFoundError` catches them.
    """

    offset: int | None = None


class AccessError(FileError):
    """An access to a `Space` failed: nothing is mapped there, or it may not be written (errno EFAULT),
    or the mapped file failed. `address` is the first one that could not be accessed.
    """

    address: int | None = None


class _Missing(FileError, FileNotFoundError):
    pass


class _Exists(FileError, FileExistsError):
    pass


class _Forbidden(FileError, PermissionError):
    pass


class _Directory(FileError, IsADirectoryError):
    pass


_CLASSES: dict[int, type[FileError]] = {
    _errno.ENOENT: _Missing,
    _errno.EEXIST: _Exists,
    _errno.EACCES: _Forbidden,
    _errno.EPERM: _Forbidden,
    _errno.EISDIR: _Directory,
}
for _class in set(_CLASSES.values()):
    _class.__name__ = _class.__qualname__ = "FileError"
    _class.__doc__ = FileError.__doc__


def file_error(errno: int, message: str, filename: Any, offset: int | None) -> FileError:
    """Makes the exception of a failed call of a file."""
    if filename is None:
        error = _CLASSES.get(errno, FileError)(errno, message)
    else:
        error = _CLASSES.get(errno, FileError)(errno, message, filename)
    error.offset = offset
    return error


def limit_error(message: str, group: tuple[str, int, int] | None = None) -> LimitError:
    """Makes the exception of a full group: its path, limit and usage."""
    error = LimitError(message)
    if group is not None:
        error.group, error.limit, error.usage = group
    return error


def access_error(errno: int, message: str, address: int) -> AccessError:
    """Makes the exception of a failed access to a space."""
    error = AccessError(errno, message)
    error.address = address
    return error
