"""Sizes as text: `64MiB`, `1.5 GB`, `25%`."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[_letter] = _UNITS[_letter + "IB"] = 1024**_power
    _UNITS[_letter + "B"] = 1000**_power

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_size(size: int | str) -> int:
    """Returns a number of bytes: of an integer, or of text such as "64MiB" or "1.5GB"."""
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = match and _UNITS.get(match[2].upper())
        if not match or not unit:
            raise ValueError(f"size {size!r} is not a number with a unit, such as '64MiB' or '1.5GB'")
        return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"a size is an integer or text such as '64MiB', not {type(size).__name__}")
    size = size.__index__()
    if not 0 <= size < 1 << 63:
        raise ValueError(f"size {size} is not between 0 and 2**63 - 1")
    return size


def show_size(size: float) -> str:
    """Returns a number of bytes as text: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.1f} {unit}" if unit != "B" else f"{size} B"
