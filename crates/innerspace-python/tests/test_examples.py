"""The notebook-style example: every cell runs, and prints what its text says."""

import contextlib
import io
from pathlib import Path

import innerspace

TOUR = Path(__file__).parents[1] / "examples" / "tour.py"


def cells():
    """The code of each cell."""
    for cell in TOUR.read_text().split("# %%")[1:]:
        kind, _, code = cell.partition("\n")
        if "markdown" not in kind:
            yield code


def test_the_tour(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    names = {"__name__": "__main__"}
    printed = []
    for code in cells():
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, TOUR, "exec"), names)
        printed.append(output.getvalue())
    text = "".join(printed)
    table, memory, stats = names["table"], names["memory"], names["stats"]
    assert "0 B of 8.0 MiB" in text
    assert repr(names["part"]) in text and "256x128" in repr(names["part"])
    assert "[12.0, 8.0, 16005.0]" in text
    assert f"{16_383 / 2 + 5} 17406.0" in text
    assert "LimitError: an array of" in text and "take a slice" in text
    assert "FileError: " in text and "table.bin" in text
    assert table.nbytes == 8 * memory.limit
    # What a notebook shows of the last cell.
    assert isinstance(stats, dict) and 0 < stats["peak"] <= stats["limit"] == 8 << 20
    html = stats._repr_html_()
    assert html.startswith("<") and "%" in html
    assert isinstance(stats, type(innerspace.Memory("1MiB").stats()))
