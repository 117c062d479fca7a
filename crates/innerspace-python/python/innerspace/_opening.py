"""Opening a file as an array: dtype, shape, and what the file has to have."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ._errors import file_error
from ._file import File

if TYPE_CHECKING:
    from ._memory import Group, Memory
    from ._native import RawFile

_Shape = tuple[int, ...]
_Name = Union[str, Path, None]

_EINVAL = 22
_MODES = {
    "r": "r",
    "readonly": "r",
    "r+": "r+",
    "readwrite": "r+",
    "w+": "w+",
    "write": "w+",
}


def checked_dtype(of: Any) -> np.dtype[Any]:
    """Returns the dtype, if its elements are plain bytes."""
    dtype: np.dtype[Any] = np.dtype(of)
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} has Python objects in it, which a file cannot hold")
    if dtype.itemsize == 0:
        raise ValueError(f"elements of dtype {dtype} have no bytes")
    if dtype.subdtype is not None:
        raise ValueError(f"dtype {dtype} is an array itself; give its dimensions in the shape")
    return dtype


def checked_mode(mode: str) -> str:
    """Returns one of 'r', 'r+' and 'w+'."""
    if mode in ("c", "copyonwrite"):
        raise ValueError(
            "mode 'c' is not supported: open with 'r' and copy what is to be changed, or map the file "
            "privately in a Space"
        )
    if mode not in _MODES:
        raise ValueError(f"mode must be one of 'r', 'r+', 'w+' (got {mode!r})")
    return _MODES[mode]


def _name(path: Any) -> str | Path:
    """The absolute path, of the type that `numpy.memmap.filename` has for such an argument."""
    if isinstance(path, os.PathLike):
        return Path(os.fsdecode(path)).resolve()
    return os.path.abspath(os.fsdecode(path))


def shown(name: _Name) -> str:
    """The name of an array's file in messages."""
    return "a file without a name" if name is None else str(name)


def _checked_shape(shape: Any) -> _Shape:
    try:
        # An array of numpy's has `__index__` too, which may refuse.
        shape = (operator.index(shape),)
    except TypeError:
        pass
    checked = tuple(map(operator.index, shape))
    if any(length < 0 for length in checked):
        raise ValueError(f"shape {checked} has a negative length")
    return checked


def _strides(shape: _Shape, itemsize: int, order: str) -> _Shape:
    if order not in ("C", "F"):
        raise ValueError(f"order must be 'C' or 'F' (got {order!r})")
    strides = [0] * len(shape)
    axes = range(len(shape)) if order == "F" else reversed(range(len(shape)))
    for axis in axes:
        strides[axis] = itemsize
        itemsize *= max(shape[axis], 1)
    return tuple(strides)


def _size(shape: _Shape, itemsize: int) -> int:
    for length in shape:
        itemsize *= length
    return itemsize


def _open_object(
    memory: Memory, file: Any, mode: str, group: Group | None, block: int | str | None
) -> tuple[RawFile, str | None]:
    """Opens the file of a Python file object once more, for an array; its length is kept."""
    if mode != "r" and not file.writable():
        raise ValueError(f"{file!r} is open for reading only; open it with 'r+b'")
    if hasattr(file, "flush"):
        file.flush()
    # The file may have no name any more.
    again = f"/proc/self/fd/{file.fileno()}"
    raw, _ = memory._open_raw(again, "r" if mode == "r" else "r+", group, block)
    name = getattr(file, "name", None)
    return raw, os.path.abspath(name) if isinstance(name, str) else None


def open_array(
    memory: Memory,
    path: Any,
    dtype: Any,
    shape: Any,
    mode: str,
    offset: int,
    order: str,
    group: Group | None,
    block: int | str | None,
) -> tuple[RawFile, Memory, _Name, str, np.dtype[Any], _Shape, _Shape, int, int]:
    """Returns the parts of an `Array`, for the arguments of `numpy.memmap`."""
    dtype, mode = checked_dtype(dtype), checked_mode(mode)
    offset = operator.index(offset)
    if offset < 0:
        raise ValueError(f"offset {offset} is negative")
    if mode == "w+" and shape is None:
        raise ValueError("shape must be given if mode == 'w+'")
    shape = None if shape is None else _checked_shape(shape)
    _strides(shape or (), 1, order)
    if isinstance(path, File):
        raw, path, is_writable = path._open(), path.name, path.writable()
        if mode != "r" and not is_writable:
            raise ValueError(f"{path} is open for reading only; open it with 'r+'")
        path = os.path.abspath(os.fsdecode(path))
    elif hasattr(path, "fileno"):
        raw, path = _open_object(memory, path, mode, group, block)
    else:
        raw, _ = memory._open_raw(path, mode, group, block)
        path = _name(path)
    length = raw.size()
    if shape is None:
        if length < offset:
            raise ValueError(
                f"{shown(path)} has {length} bytes, and the offset {offset} is beyond its end"
            )
        if (length - offset) % dtype.itemsize:
            raise ValueError(
                f"{shown(path)}: {length} bytes, less an offset of {offset}, are not a whole number of "
                f"elements of {dtype.itemsize} bytes"
            )
        shape = ((length - offset) // dtype.itemsize,)
    wanted = offset + _size(shape, dtype.itemsize)
    if wanted > 1 << 62:
        raise ValueError(f"shape {shape} of {dtype} is larger than the largest file")
    if length < wanted:
        if mode == "r":
            raise ValueError(
                f"{shown(path)} has {length} bytes, and an array of shape {shape} and dtype {dtype} at offset "
                f"{offset} needs {wanted}"
            )
        raw.set_len(wanted)
    if mode == "w+" and not raw.size():
        raw.set_len(1)
    elif mode == "r" and not length:
        raise ValueError(f"cannot use an empty file: {shown(path)}")
    strides = _strides(shape, dtype.itemsize, order)
    return raw, memory, path, mode, dtype, shape, strides, offset, offset


def open_npy(
    memory: Memory, path: Any, mode: str, group: Group | None, block: int | str | None
) -> tuple[RawFile, Memory, _Name, str, np.dtype[Any], _Shape, _Shape, int, int]:
    """Returns the parts of an `Array`, for a file in the .npy format."""
    mode = checked_mode(mode)
    if mode == "w+":
        raise ValueError("an .npy file is opened with 'r' or 'r+'; numpy.save makes one")
    raw, _ = memory._open_raw(path, mode, group, block)
    path = _name(path)
    with File(raw, memory, mode, name=os.fspath(path)) as file:
        try:
            version = np.lib.format.read_magic(file)
            known: dict[tuple[int, int], Any] = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            shape, is_fortran, dtype = known.get(version, _read_later_header)(file)
        except ValueError as error:
            raise file_error(_EINVAL, f"not a file in the .npy format: {error}", path, 0) from error
        offset = file.tell()
    dtype = checked_dtype(dtype)
    wanted = offset + _size(shape, dtype.itemsize)
    if raw.size() < wanted:
        raise file_error(
            _EINVAL, f"its header promises {wanted} bytes, and it has {raw.size()}", path, raw.size()
        )
    strides = _strides(shape, dtype.itemsize, "F" if is_fortran else "C")
    return raw, memory, path, mode, dtype, tuple(shape), strides, offset, offset


def _read_later_header(file: File) -> tuple[_Shape, bool, np.dtype[Any]]:
    # Version 3.0 has the header of 2.0 in UTF-8; numpy has no public function for it.
    module = getattr(np.lib, "_format_impl", np.lib.format)
    header: tuple[_Shape, bool, np.dtype[Any]] = module._read_array_header(file, version=(3, 0))
    return header
