"""Files in the safetensors format: one tensor at a time, inside the limit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ._array import Array
from ._errors import file_error
from ._native import View, read_tensors
from ._opening import _strides

if TYPE_CHECKING:
    from ._memory import Group, Memory

_EINVAL = 22
_NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}
# numpy has none of its own: the package `ml_dtypes` adds them.
_ML = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def _dtype(name: str, tensor: str) -> np.dtype[Any]:
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name in _ML:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                f"tensor {tensor!r} has dtype {name}, which numpy lacks: install the package ml_dtypes, or "
                "take the bytes with view()"
            ) from None
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML[name]))
        return dtype
    raise TypeError(f"tensor {tensor!r} has dtype {name}, which numpy lacks: take the bytes with view()")


class Tensors(Mapping[str, Array]):
    """The tensors of a file in the safetensors format, by name; made by `Memory.open_safetensors`.

    Opening reads the header. `tensors[name]` is an `Array`, which reads what is asked of it, by blocks.
    `get_tensor(name)` is the whole tensor as a read-only numpy array, without a copy: the cached bytes
    themselves, charged to the limit as long as the array lives. A tensor that does not fit in the
    memory is refused with LimitError. `safe_open`'s names (`keys`, `get_tensor`, `get_slice`, `metadata`)
    work as they do there.
    """

    def __init__(self, memory: Memory, path: Any, group: Group | None = None, block: int | str | None = None):
        self._raw, _ = memory._open_raw(path, "r", group, block)
        self._memory = memory
        self._path = os.path.abspath(os.fsdecode(path))
        try:
            tensors, metadata = read_tensors(self._raw)
        except ValueError as error:
            raise file_error(
                _EINVAL, f"not a file in the safetensors format: {error}", self._path, 0
            ) from error
        self._metadata = metadata
        self._tensors = {name: rest for name, *rest in tensors}

    def _find(self, name: str) -> Any:
        try:
            return self._tensors[name]
        except KeyError:
            raise KeyError(f"{self._path} has no tensor {name!r}") from None

    def __getitem__(self, name: str) -> Array:
        dtype_name, shape, offset, _ = self._find(name)
        dtype = _dtype(dtype_name, name)
        shape = tuple(shape)
        strides = _strides(shape, dtype.itemsize, "C")
        return Array(self._raw, self._memory, self._path, "r", dtype, shape, strides, offset, offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def view(self, name: str) -> View:
        """Returns the bytes of a tensor, without a copy."""
        _, _, offset, length = self._find(name)
        return self._raw.view(offset, length)

    def get_tensor(self, name: str) -> np.ndarray[Any, Any]:
        """Returns a tensor as a read-only numpy array, without a copy, inside the limit."""
        dtype_name, shape, _, length = self._find(name)
        dtype = _dtype(dtype_name, name)
        if not length:
            return np.empty(shape, dtype)
        tensor: np.ndarray[Any, Any] = np.frombuffer(memoryview(self.view(name)), dtype).reshape(shape)
        return tensor

    def get_slice(self, name: str) -> Array:
        """Returns a tensor as an `Array`, which reads what it is asked for."""
        return self[name]

    def dtype_name(self, name: str) -> str:
        """Returns the format's own name of a tensor's dtype: 'F32', 'BF16'."""
        found: str = self._find(name)[0]
        return found

    def metadata(self) -> dict[str, str] | None:
        """Returns the texts of the header; None if it has none."""
        return dict(self._metadata) or None

    def offset_keys(self) -> list[str]:
        """Returns the names in the order of the file."""
        return list(self._tensors)

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __repr__(self) -> str:
        return f"<innerspace.Tensors: {len(self)} in {self._path!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "tensors of an innerspace.Memory cannot be pickled: their cache is in this process. Open "
            f"{self._path} in a Memory of the other process"
        )
