"""Arrays in files: `numpy.memmap` whose memory has a limit."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import _opening
from ._errors import limit_error
from ._indexing import Advanced, is_basic, place, shadow
from ._reduce import Reductions
from ._size import show_size

if TYPE_CHECKING:
    from ._memory import Group, Memory
    from ._native import RawFile

_Shape = tuple[int, ...]
_Numpy = np.ndarray[Any, Any]

_ZERO = np.zeros(1, dtype=np.int64)


def _bytes(array: _Numpy) -> _Numpy:
    """The memory of a contiguous array, whatever its dtype."""
    return array.reshape(-1).view(np.uint8)


class Array(Reductions, np.lib.mixins.NDArrayOperatorsMixin):
    """An array in a file of a memory: made by `Memory.array` and `Memory.open_npy`.

    Basic indexing (integers, slices, `...`, `None`, names of fields) gives another `Array` of the
    same file, or a scalar, and reads nothing else. Boolean and fancy indexing give a numpy array.
    Assignment writes to the file's cache; `flush` makes it durable. Reductions (`sum`, `mean`,
    `min`, `max`, `prod`, `any`, `all`) and iteration read the array by blocks.

    Wherever numpy needs all elements (`numpy.asarray`, ufuncs, fancy indexing) they are copied to a
    numpy array outside the memory's limit. A copy larger than the limit is refused with LimitError.
    """

    # numpy asks for `__array_ufunc__` first.
    __array_priority__ = 100.0

    def __init__(
        self,
        raw: RawFile,
        memory: Memory,
        path: str | Path | None,
        mode: str,
        dtype: np.dtype[Any],
        shape: _Shape,
        strides: _Shape,
        start: int,
        offset: int,
    ) -> None:
        self._raw = raw
        self._memory = memory
        self._path = path
        self._mode = mode
        self._dtype = dtype
        self._shape = shape
        self._strides = strides
        self._start = start
        self._offset = offset
        self._lazy_shadow: _Numpy | None = None

    @classmethod
    def _of_file(
        cls,
        memory: Memory,
        path: Any,
        dtype: Any,
        shape: Any,
        mode: str,
        offset: int,
        order: str,
        group: Group | None = None,
        block: int | str | None = None,
    ) -> Array:
        opened = _opening.open_array(memory, path, dtype, shape, mode, offset, order, group, block)
        return cls(*opened)

    @classmethod
    def _of_npy(
        cls,
        memory: Memory,
        path: Any,
        mode: str = "r",
        group: Group | None = None,
        block: int | str | None = None,
    ) -> Array:
        return cls(*_opening.open_npy(memory, path, mode, group, block))

    # What the array is.

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._dtype

    @property
    def shape(self) -> _Shape:
        """The length of each dimension."""
        return self._shape

    @property
    def strides(self) -> _Shape:
        """The bytes between neighbours in each dimension."""
        return self._strides

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for length in self._shape:
            size *= length
        return size

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self._dtype.itemsize

    @property
    def filename(self) -> str | Path | None:
        """The absolute path of the file, as `numpy.memmap.filename`.

        A `pathlib.Path` if the file was opened by one; None for a file object without a name.
        """
        return self._path

    @property
    def mode(self) -> str:
        """The mode that the file was opened with."""
        return self._mode

    @property
    def offset(self) -> int:
        """The offset of the array in the file, in bytes, as it was opened."""
        return self._offset

    @property
    def memory(self) -> Memory:
        """The memory that the file was opened in."""
        return self._memory

    @property
    def writeable(self) -> bool:
        """Whether elements may be assigned."""
        return self._raw.writable and self._mode != "r"

    @property
    def flags(self) -> Flags:
        """How the elements lie in the file, as `numpy.memmap.flags`."""
        return Flags(self)

    @property
    def T(self) -> Array:
        """The array with its dimensions reversed."""
        return self.transpose()

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of unsized object")
        return self._shape[0]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._shape)) or "scalar"
        name = _opening.shown(self._path)
        return f"<innerspace.Array {shape} {self._dtype} in {name!r}, {show_size(self.nbytes)}>"

    def _like(
        self, shape: _Shape, strides: _Shape, start: int, dtype: np.dtype[Any] | None = None
    ) -> Array:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._shape, made._strides, made._start = shape, strides, start
        made._lazy_shadow = None
        if dtype is not None:
            made._dtype = dtype
        return made

    def _shadow(self) -> _Numpy:
        if self._lazy_shadow is None:
            self._lazy_shadow = shadow(self._shape, self._dtype.itemsize, self._strides)
        return self._lazy_shadow

    # Moving bytes.

    def _limit_of(self, size: int, what: str) -> None:
        limit = self._raw.limit()
        if size > limit:
            name = _opening.shown(self._path)
            raise limit_error(
                f"{what} of {name} would be {show_size(size)} in memory outside the limit of "
                f"{show_size(limit)}; take a slice, iterate over blocks(), reduce it with an axis, or "
                "raise the limit of the memory"
            )

    def _read(self, out: _Numpy | None = None) -> _Numpy:
        """Copies all elements to a new array in C order, or to `out`, which is one."""
        if out is None:
            out = np.empty(self._shape, dtype=self._dtype)
        if out.nbytes:
            self._raw.gather(
                _bytes(out), _ZERO + self._start, self._shape, self._strides, self._dtype.itemsize
            )
        return out

    def _write(self, values: _Numpy) -> None:
        """Copies an array of the same shape and dtype, in C order, to the file."""
        if values.nbytes:
            self._raw.scatter(
                _bytes(values), _ZERO + self._start, self._shape, self._strides, self._dtype.itemsize
            )

    def blocks(self, size: int | None = None) -> Iterator[tuple[tuple[slice, ...], _Numpy]]:
        """Iterates over the array by blocks of at most `size` bytes, in the order of the file.

        Yields (index, block): `block` is a numpy array, with `array[index]` equal to it. The default
        size is an eighth of the memory's limit, at most 4 MiB.
        """
        for index in self._block_indices(size):
            yield index, self._part(index)._read()

    def _block_indices(self, size: int | None = None) -> Iterator[tuple[slice, ...]]:
        if size is None:
            size = min(4 << 20, self._raw.limit() // 8)
        if not self.size:
            return
        order = sorted(range(self.ndim), key=lambda axis: (abs(self._strides[axis]), -axis))
        left = max(size // max(self._dtype.itemsize, 1), 1)
        steps = [1] * self.ndim
        for axis in order:
            steps[axis] = min(self._shape[axis], max(left, 1))
            left //= max(self._shape[axis], 1)
        counts = [-(-length // step) for length, step in zip(self._shape, steps)]
        order.reverse()
        for at in np.ndindex(*(counts[axis] for axis in order)):
            index = [slice(None)] * self.ndim
            for axis, number in zip(order, at):
                start = number * steps[axis]
                index[axis] = slice(start, min(start + steps[axis], self._shape[axis]))
            yield tuple(index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Numpy:
        if copy is False:
            raise ValueError(f"{self!r} has no memory that numpy could use without a copy")
        self._limit_of(self.nbytes, "an array")
        array = self._read()
        return array if dtype is None else array.astype(dtype, copy=False)

    # Indexing.

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (str, list)) and self._dtype.names:
            field = self._field(index)
            if field is not None:
                return field
        if not is_basic(index):
            return self._take(Advanced(index, self._shape, self._strides))
        index = index if type(index) is tuple else (index,)
        part = self._part(index)
        if part._shape or any(one is Ellipsis for one in index):
            return part
        return part._read()[()]

    def _part(self, index: tuple[Any, ...]) -> Array:
        """The part at a basic index; of one element, too."""
        if not any(one is Ellipsis for one in index):
            # With an ellipsis numpy makes an array of one element, and reads nothing.
            index += (Ellipsis,)
        part = self._shadow()[index]
        return self._like(part.shape, part.strides, self._start + place(part))

    def _field(self, name: Any) -> Array | None:
        if isinstance(name, list):
            if not name or not all(isinstance(one, str) for one in name):
                return None
            dtype = np.empty(0, self._dtype)[name].dtype
            return self._like(self._shape, self._strides, self._start, dtype)
        fields: Any = self._dtype.fields or {}
        if name not in fields:
            raise ValueError(f"no field of name {name}")
        dtype, offset = fields[name][:2]
        shape, strides = self._shape, self._strides
        if dtype.subdtype is not None:
            base, inner = dtype.subdtype
            sample = np.empty(inner, base)
            shape, strides, dtype = shape + inner, strides + sample.strides, base
        return self._like(shape, strides, self._start + offset, dtype)

    def _take(self, where: Advanced) -> _Numpy:
        size = self._dtype.itemsize
        for length in where.stored_shape:
            size *= length
        self._limit_of(size, "the elements")
        out = np.empty(where.stored_shape, dtype=self._dtype)
        if out.nbytes:
            starts = (where.starts + self._start).reshape(-1)
            self._raw.gather(
                _bytes(out), starts, where.inner_shape, where.inner_strides, self._dtype.itemsize
            )
        return out.transpose(where.axes)

    def _check_writable(self) -> None:
        if not self.writeable:
            name = _opening.shown(self._path)
            raise ValueError(f"assignment destination is read-only: {name} is open with 'r'")

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check_writable()
        if isinstance(index, (str, list)) and self._dtype.names:
            field = self._field(index)
            if field is not None:
                field[...] = value
                return
        if not is_basic(index):
            self._put(Advanced(index, self._shape, self._strides), value)
            return
        self._part(index if type(index) is tuple else (index,))._assign(value)

    def _assign(self, value: Any) -> None:
        if isinstance(value, Array):
            if value._raw is self._raw:
                # Ranges of the same file may overlap.
                value = np.asarray(value)
        elif not isinstance(value, np.ndarray):
            value = np.asarray(value) if self._dtype.names is None else np.asarray(value, self._dtype)
        shape = value.shape
        while len(shape) > self.ndim and shape[0] == 1:
            value, shape = value[0, ...], shape[1:]
        try:
            fits = np.broadcast_shapes(shape, self._shape) == self._shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"could not broadcast input array from shape {shape} into shape {self._shape}"
            )
        for index in self._block_indices():
            piece = np.asarray(value[_broadcast_index(index, shape)])
            target = self._part(index)
            block = np.empty(target._shape, dtype=self._dtype)
            block[...] = piece
            target._write(block)

    def _put(self, where: Advanced, value: Any) -> None:
        value = np.asarray(value)
        out = np.empty(where.shape, dtype=self._dtype)
        out[...] = value
        back = np.argsort(where.axes)
        out = np.ascontiguousarray(out.transpose(back))
        if out.nbytes:
            starts = (where.starts + self._start).reshape(-1)
            self._raw.scatter(
                _bytes(out), starts, where.inner_shape, where.inner_strides, self._dtype.itemsize
            )

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            raise TypeError("iteration over a 0-d array")
        row = max(self.nbytes // max(len(self), 1), 1)
        step = max(min(4 << 20, self._raw.limit() // 8) // row, 1)
        for start in range(0, len(self), step):
            rows = self[start : start + step]
            if row * step <= self._raw.limit():
                yield from rows._read()
            else:
                yield rows[0, ...]

    def __contains__(self, value: Any) -> bool:
        return any((block == value).any() for _, block in self.blocks())

    # Other shapes of the same elements.

    def transpose(self, *axes: Any) -> Array:
        """Returns the array with its dimensions in another order."""
        if len(axes) == 1 and not hasattr(axes[0], "__index__"):
            axes = axes[0]
        part = self._shadow().transpose(*([axes] if axes else []))
        return self._like(part.shape, part.strides, self._start)

    def reshape(self, *shape: Any) -> Array:
        """Returns the elements in another shape. The array has to be contiguous in C order."""
        if len(shape) == 1 and not hasattr(shape[0], "__index__"):
            shape = tuple(shape[0])
        if self._strides != _contiguous(self._shape, self._dtype.itemsize):
            raise ValueError(f"{self!r} is not contiguous in the file; reshape a copy of it")
        lengths = list(map(operator.index, shape))
        if lengths.count(-1) == 1:
            others = -int(np.prod(lengths, dtype=object))
            lengths[lengths.index(-1)] = self.size // others if others else 0
        shape = tuple(lengths)
        if min(shape, default=0) < 0 or int(np.prod(shape, dtype=object)) != self.size:
            raise ValueError(f"cannot reshape array of size {self.size} into shape {shape}")
        return self._like(shape, _contiguous(shape, self._dtype.itemsize), self._start)

    def view(self, dtype: Any = None) -> Array:
        """Returns the same array, or its bytes as elements of another dtype of the same size."""
        if dtype is None:
            return self._like(self._shape, self._strides, self._start)
        dtype = _opening.checked_dtype(dtype)
        if dtype.itemsize != self._dtype.itemsize:
            raise ValueError(
                f"elements of {self._dtype.itemsize} bytes cannot be viewed as {dtype}; open the file "
                "with that dtype"
            )
        return self._like(self._shape, self._strides, self._start, dtype)

    def astype(self, dtype: Any, **options: Any) -> _Numpy:
        """Returns a numpy array of another dtype."""
        return np.asarray(self).astype(dtype, **options)

    def ravel(self, order: Any = "C") -> _Numpy:
        """Returns a one-dimensional numpy array with the same elements."""
        return np.asarray(self).ravel(order)

    def tolist(self) -> Any:
        """Returns the elements as nested lists."""
        return np.asarray(self).tolist()

    def item(self, *args: Any) -> Any:
        """Returns one element as a Python scalar."""
        if not args and self.size == 1:
            return self._read().item()
        if len(args) == 1 and isinstance(args[0], tuple):
            args = args[0]
        if len(args) == 1 and self.ndim != 1:
            args = np.unravel_index(args[0], self._shape)
        if len(args) != self.ndim:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self[tuple(args)].item()

    def read_into(self, out: _Numpy) -> _Numpy:
        """Copies all elements to a numpy array of the program's own, of the same shape."""
        for index, block in self.blocks():
            out[index] = block
        return out

    # Scalars.

    def _scalar(self) -> Any:
        if self.size != 1:
            raise TypeError("only arrays of size 1 can be converted to Python scalars")
        return self._read().reshape(())[()]

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                "the truth value of an array with more than one element is ambiguous; use any() or all()"
            )
        return bool(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __index__(self) -> int:
        return operator.index(self._scalar())

    # Ufuncs.

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if out is not None and any(isinstance(one, Array) for one in out):
            return self._ufunc_in_place(ufunc, method, inputs, out, options)
        plain = [np.asarray(one) if isinstance(one, Array) else one for one in inputs]
        if out is not None:
            options["out"] = out
        return getattr(ufunc, method)(*plain, **options)

    @staticmethod
    def _ufunc_in_place(
        ufunc: np.ufunc, method: str, inputs: Any, out: Any, options: dict[str, Any]
    ) -> Any:
        if method != "__call__" or len(out) != 1 or options.get("where", True) is not True:
            raise TypeError(f"{ufunc.__name__}.{method} cannot write to an array in a file; assign its result")
        (target,) = out
        target._check_writable()
        if np.broadcast_shapes(*map(np.shape, inputs), target.shape) != target.shape:
            raise ValueError(f"the result of {ufunc.__name__} does not have the shape {target.shape}")
        inputs = [one if isinstance(one, Array) or np.isscalar(one) else np.asarray(one) for one in inputs]
        # An input that is another part of the same file might be overwritten before it is read.
        inputs = [
            np.asarray(one)
            if isinstance(one, Array) and one._raw is target._raw and not target._is_same(one)
            else one
            for one in inputs
        ]
        for index in target._block_indices():
            pieces = [_piece(one, index) for one in inputs]
            part = target._part(index)
            block = np.empty(part.shape, dtype=target.dtype)
            ufunc(*pieces, out=block, **options)
            part._write(block)
        return target

    def _is_same(self, other: Array) -> bool:
        mine = (self._start, self._shape, self._strides, self._dtype)
        return mine == (other._start, other._shape, other._strides, other._dtype)

    # The file.

    def flush(self) -> None:
        """Writes what is unwritten, and makes it durable, as `numpy.memmap.flush`."""
        if self._raw.writable:
            self._raw.sync()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an array of an innerspace.Memory cannot be pickled: its cache is in this process. Open "
            f"{_opening.shown(self._path)} in a Memory of the other process, or pickle numpy.asarray(array)"
        )


class Flags:
    """The flags of an `Array`, by the names that numpy's have, as attributes and as keys."""

    def __init__(self, array: Array) -> None:
        flags = array._shadow().flags
        self.c_contiguous: bool = flags.c_contiguous
        self.f_contiguous: bool = flags.f_contiguous
        self.writeable = array.writeable
        self.owndata = False

    def __getitem__(self, name: str) -> bool:
        flag: bool = getattr(self, name.lower())
        return flag

    def __repr__(self) -> str:
        return "\n".join(f"  {name.upper()} : {flag}" for name, flag in vars(self).items())


def _contiguous(shape: _Shape, itemsize: int) -> _Shape:
    strides: list[int] = []
    for length in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= max(length, 1)
    return tuple(strides)


def _piece(value: Any, index: tuple[Any, ...]) -> Any:
    """The part of a ufunc's input that belongs to a part of its output."""
    if isinstance(value, (int, float, complex)):
        # A number of Python's takes the dtype of the other inputs.
        return value
    return np.asarray(value[_broadcast_index(index, value.shape)] if np.shape(value) else value)


def _broadcast_index(index: tuple[Any, ...], shape: _Shape) -> tuple[Any, ...]:
    """The part of an index of the whole that applies to an array that is broadcast to it."""
    index = index[len(index) - len(shape) :]
    return tuple(one if length != 1 else slice(None) for one, length in zip(index, shape))
