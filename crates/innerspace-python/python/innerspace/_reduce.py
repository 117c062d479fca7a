"""Reductions by blocks: no more than a block is in memory at a time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._array import Array

_MISSING: Any = np._NoValue


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes to reduce, as a sorted tuple of non-negative integers."""
    if axis is None:
        return tuple(range(ndim))
    axis = axis if isinstance(axis, tuple) else (axis,)
    axes = []
    for one in axis:
        one = operator.index(one)
        if not -ndim <= one < ndim:
            raise getattr(np, "exceptions", np).AxisError(one, ndim)
        axes.append(one % ndim)
    if len(set(axes)) != len(axes):
        raise ValueError("duplicate value in 'axis'")
    return tuple(sorted(axes))


class Reductions:
    """The reductions of an array that is read by blocks."""

    if TYPE_CHECKING:
        # What the array has.
        dtype: property
        ndim: property
        shape: property
        size: property

        def _block_indices(self, size: int | None = None) -> Iterator[tuple[slice, ...]]: ...
        def _limit_of(self, size: int, what: str) -> None: ...
        def _part(self, index: tuple[Any, ...]) -> Array: ...
        def _read(self, out: Any = None) -> Any: ...

    def _reduced(
        self,
        function: Callable[..., Any],
        combine: Callable[..., Any],
        start: Any,
        axis: Any,
        dtype: Any,
        out: Any,
        keepdims: bool,
        options: dict[str, Any],
    ) -> Any:
        """Combines what `function` makes of each block. `start` is None where the first counts."""
        for name, value in options.items():
            if value is not _MISSING:
                raise TypeError(f"{name} is not supported by arrays in files; use it on a slice")
        axes = _axes(axis, self.ndim)
        if not self.size or not self.ndim:
            return self._small(function, axis, dtype, out, keepdims)
        shape = tuple(1 if axis in axes else length for axis, length in enumerate(self.shape))
        self._limit_of(int(np.prod(shape, dtype=object)) * 8, "the result")
        whole = None
        for index in self._block_indices():
            block = self._part(index)._read()
            part = function(block, axis=axes, keepdims=True, dtype=dtype)
            if whole is None:
                whole = np.empty(shape, dtype=part.dtype)
                if start is not None:
                    whole[...] = start
            target = tuple(slice(None) if at in axes else one for at, one in enumerate(index))
            is_first = start is None and all(index[axis].start == 0 for axis in axes)
            whole[target] = part if is_first else combine(whole[target], part)
        return self._result(whole, axes, axis, out, keepdims)

    def _small(
        self,
        function: Callable[..., Any],
        axis: Any,
        dtype: Any,
        out: Any,
        keepdims: bool,
    ) -> Any:
        options = {} if out is None else {"out": out}
        return function(self._read(), axis=axis, keepdims=keepdims, dtype=dtype, **options)

    def _result(self, whole: Any, axes: tuple[int, ...], axis: Any, out: Any, keepdims: bool) -> Any:
        if not keepdims:
            whole = whole.reshape([length for at, length in enumerate(whole.shape) if at not in axes])
        if out is not None:
            out[...] = whole
            return out
        return whole if whole.ndim else whole[()]

    def sum(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = _MISSING,
        where: Any = _MISSING,
    ) -> Any:
        """Returns the sum over an axis, or over all."""
        wide, narrow = _wide(self.dtype, dtype, np.add)
        result = self._reduced(
            _with(np.sum), np.add, 0, axis, wide, None, keepdims, {"initial": initial, "where": where}
        )
        return _narrowed(result, narrow, out)

    def prod(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = _MISSING,
        where: Any = _MISSING,
    ) -> Any:
        """Returns the product over an axis, or over all."""
        wide, narrow = _wide(self.dtype, dtype, np.multiply)
        result = self._reduced(
            _with(np.prod), np.multiply, 1, axis, wide, None, keepdims, {"initial": initial, "where": where}
        )
        return _narrowed(result, narrow, out)

    def mean(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        where: Any = _MISSING,
    ) -> Any:
        """Returns the mean over an axis, or over all."""
        if not self.size:
            return np.mean(self._read(), axis=axis, dtype=dtype, out=out, keepdims=keepdims)
        if dtype is None:
            dtype = np.mean(np.zeros(1, self.dtype)).dtype
        else:
            dtype = np.dtype(dtype)
        wide, _ = _wide(dtype, dtype, np.add)
        total = self._reduced(_with(np.sum), np.add, 0, axis, wide, None, keepdims, {"where": where})
        count = 1
        for one in _axes(axis, self.ndim):
            count *= self.shape[one]
        return _narrowed(np.true_divide(total, count), dtype, out)

    def min(
        self,
        axis: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = _MISSING,
        where: Any = _MISSING,
    ) -> Any:
        """Returns the least element along an axis, or of all."""
        options = {"initial": initial, "where": where}
        return self._reduced(_plain(np.min), np.minimum, None, axis, None, out, keepdims, options)

    def max(
        self,
        axis: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = _MISSING,
        where: Any = _MISSING,
    ) -> Any:
        """Returns the greatest element along an axis, or of all."""
        options = {"initial": initial, "where": where}
        return self._reduced(_plain(np.max), np.maximum, None, axis, None, out, keepdims, options)

    def any(
        self,
        axis: Any = None,
        out: Any = None,
        keepdims: bool = False,
        where: Any = _MISSING,
    ) -> Any:
        """Returns whether any element along an axis, or of all, is true."""
        return self._reduced(_plain(np.any), np.logical_or, False, axis, None, out, keepdims, {"where": where})

    def all(
        self,
        axis: Any = None,
        out: Any = None,
        keepdims: bool = False,
        where: Any = _MISSING,
    ) -> Any:
        """Returns whether all elements along an axis, or of all, are true."""
        return self._reduced(_plain(np.all), np.logical_and, True, axis, None, out, keepdims, {"where": where})


def _with(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(block: Any, axis: Any, keepdims: bool, dtype: Any, **options: Any) -> Any:
        return function(block, axis=axis, keepdims=keepdims, dtype=dtype, **options)

    return call


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(block: Any, axis: Any, keepdims: bool, dtype: Any, **options: Any) -> Any:
        return function(block, axis=axis, keepdims=keepdims, **options)

    return call


def _wide(of: np.dtype[Any], dtype: Any, ufunc: np.ufunc) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype to add blocks up in, and the dtype of the result.

    Short floats are added up as doubles: the sum of many blocks would lose what numpy's pairwise sum
    keeps.
    """
    if dtype is None:
        dtype = ufunc.reduce(np.zeros(1, of)).dtype
    dtype = np.dtype(dtype)
    if dtype.kind == "f" and dtype.itemsize < 8:
        return np.dtype("float64"), dtype
    if dtype.kind == "c" and dtype.itemsize < 16:
        return np.dtype("complex128"), dtype
    return dtype, dtype


def _narrowed(result: Any, dtype: np.dtype[Any], out: Any) -> Any:
    if out is not None:
        out[...] = result
        return out
    return result.astype(dtype, copy=False) if isinstance(result, np.ndarray) else dtype.type(result)
