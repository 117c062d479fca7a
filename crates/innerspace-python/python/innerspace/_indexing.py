"""The rules of indexing, worked out by numpy on an array that has a shape and strides but no memory."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

_Shape = tuple[int, ...]
_Numpy = np.ndarray[Any, Any]
# The kind of a part of an index, its value, and the axes that it takes.
_Entry = tuple[str, Any, int]

# The address of the shadows. Nothing is ever read there: only differences of addresses count.
_BASE = 1 << 44


class _Interface:
    __slots__ = ("__array_interface__",)

    def __init__(self, shape: _Shape, itemsize: int, strides: _Shape) -> None:
        self.__array_interface__ = {
            "shape": shape,
            "typestr": f"|V{itemsize}",
            "strides": strides,
            "data": (_BASE, False),
            "version": 3,
        }


def shadow(shape: _Shape, itemsize: int, strides: _Shape) -> _Numpy:
    """Returns an array of this shape without memory. It may be indexed by basic indices, and its
    parts may be asked for their place, but no element may be read."""
    return np.asarray(_Interface(shape, itemsize, strides))


def place(part: _Numpy) -> int:
    """Returns how many bytes after the beginning of its shadow a part begins."""
    address: int = part.__array_interface__["data"][0]
    return address - _BASE


def is_basic(index: Any) -> bool:
    """Whether an index consists of integers, slices, `...` and `None` only."""
    return all(map(_is_basic, index)) if type(index) is tuple else _is_basic(index)


def _is_basic(index: Any) -> bool:
    if index is None or index is Ellipsis or type(index) is int or isinstance(index, slice):
        return True
    if isinstance(index, (bool, np.bool_)) or (isinstance(index, np.ndarray) and index.ndim):
        return False
    if isinstance(index, np.ndarray) and index.dtype == bool:
        return False
    try:
        operator.index(index)
    except TypeError:
        return False
    return True


class Advanced:
    """An index with arrays: where its elements lie, and the shape that they make.

    `starts` has the offset of each part; each part has `inner_shape` and `inner_strides`. In memory
    the parts come first; `axes` moves their dimensions to where numpy has them.
    """

    def __init__(self, index: Any, shape: _Shape, strides: _Shape) -> None:
        entries = _entries(index, shape)
        offset, fancy, inner_shape, inner_strides = 0, [], [], []
        positions = []
        axis: Any = 0
        for at, (kind, value, width) in enumerate(entries):
            if kind == "slice":
                start, stop, step = value.indices(shape[axis])
                length = len(range(start, stop, step))
                offset += start * strides[axis] if length else 0
                inner_shape.append(length)
                inner_strides.append(step * strides[axis])
            elif kind == "new":
                inner_shape.append(1)
                inner_strides.append(0)
            else:
                before = len(inner_shape)
                positions.append((at, before))
                fancy.append((value, axis if width else None))
            axis += width
        try:
            together = np.broadcast(*(value for value, _ in fancy))
        except ValueError:
            shapes = " ".join(str(value.shape) for value, _ in fancy)
            raise IndexError(
                "shape mismatch: indexing arrays could not be broadcast together with shapes " + shapes
            ) from None
        starts = np.full(together.shape, offset, dtype=np.int64)
        for value, axis in fancy:
            if axis is not None:
                starts += _checked(value, axis, shape[axis]) * np.int64(strides[axis])
        first, last = positions[0][0], positions[-1][0]
        in_place = positions[0][1] if last - first + 1 == len(positions) else 0
        outer = len(together.shape)
        self.starts = starts
        self.inner_shape = tuple(inner_shape)
        self.inner_strides = tuple(inner_strides)
        # The dimensions of the result, as positions among (parts, inner).
        inner = [outer + at for at in range(len(inner_shape))]
        self.axes = inner[:in_place] + list(range(outer)) + inner[in_place:]
        stored = together.shape + self.inner_shape
        self.stored_shape = stored
        self.shape = tuple(stored[axis] for axis in self.axes)


def _entries(index: Any, shape: _Shape) -> list[_Entry]:
    """Returns (kind, value, axes that it takes), with `...` written out."""
    index = index if type(index) is tuple else (index,)
    entries: list[_Entry] = []
    for one in index:
        if one is None:
            entries.append(("new", None, 0))
        elif one is Ellipsis:
            entries.append(("...", None, 0))
        elif isinstance(one, slice):
            entries.append(("slice", one, 1))
        else:
            value = np.asarray(one)
            if value.size == 0 and not isinstance(one, np.ndarray):
                value = value.astype(np.intp)
            if value.dtype == bool:
                taken = sum(entry[2] for entry in entries if entry[0] != "...")
                entries.extend(_of_mask(value, entries, taken, shape))
            elif value.dtype.kind in "iu":
                entries.append(("fancy", value.astype(np.int64), 1))
            elif not isinstance(one, np.ndarray):
                raise IndexError(
                    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer "
                    "or boolean arrays are valid indices"
                )
            else:
                raise IndexError("arrays used as indices must be of integer (or boolean) type")
    taken = sum(width for _, _, width in entries)
    if taken > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {taken} were indexed"
        )
    dots = [at for at, entry in enumerate(entries) if entry[0] == "..."]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(entries)
    rest: list[_Entry] = [("slice", slice(None), 1)] * (len(shape) - taken)
    entries = entries[:at] + rest + entries[at + 1 :]
    _check_masks(entries, shape)
    return [entry[:3] for entry in entries]


class _MaskPart(np.ndarray):
    """The indices of one axis of a mask, which remembers the length that the axis has to have."""

    wanted = None


def _of_mask(mask: _Numpy, entries: list[_Entry], taken: int, shape: _Shape) -> list[_Entry]:
    if mask.ndim == 0:
        return [("fancy", np.zeros(int(mask), dtype=np.int64), 0)]
    parts = []
    for length, indices in zip(mask.shape, mask.nonzero()):
        part = indices.astype(np.int64).view(_MaskPart)
        part.wanted = length
        parts.append(("fancy", part, 1))
    return parts


def _check_masks(entries: list[_Entry], shape: _Shape) -> None:
    axis = 0
    for kind, value, width in entries:
        wanted = getattr(value, "wanted", None) if kind == "fancy" else None
        if wanted is not None and wanted != shape[axis]:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is "
                f"{shape[axis]} but size of corresponding boolean axis is {wanted}"
            )
        axis += width


def _checked(value: Any, axis: int, length: int) -> _Numpy:
    value = np.asarray(value)
    wrong = (value < -length) | (value >= length)
    if wrong.any():
        first = int(value[wrong].flat[0])
        raise IndexError(f"index {first} is out of bounds for axis {axis} with size {length}")
    checked: _Numpy = np.where(value < 0, value + length, value)
    return checked
