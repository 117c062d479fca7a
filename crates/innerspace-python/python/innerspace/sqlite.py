"""SQLite databases in one memory: `innerspace.sqlite.connect(path, limit="64MiB")`.

>>> import innerspace.sqlite
>>> database = innerspace.sqlite.connect("my.db", limit="64MiB")      # doctest: +SKIP

The extension of SQLite is in the package's own shared object, so that nothing else is installed. All
databases of the process that are opened by it share one memory, which is not one of `innerspace.Memory`:
the first `connect` sets its limit.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import urllib.parse
from typing import Any

from . import _native
from ._size import parse_size

__all__ = ["connect", "stats"]

_ENTRY = "sqlite3_innerspacesqlite_init"
_OLDEST = (3, 37, 0)

_lock = threading.Lock()
_loader: sqlite3.Connection | None = None


def _load(connection: sqlite3.Connection) -> None:
    """Loads the extension into a connection: for the process, and for good."""
    if not hasattr(connection, "enable_load_extension"):
        raise sqlite3.NotSupportedError(
            "this Python's sqlite3 was built without loadable extensions (--enable-loadable-sqlite-extensions), "
            "which innerspace.sqlite needs; use another build of Python, or the sqlite3 shell with the "
            "extension of innerspace-sqlite"
        )
    connection.enable_load_extension(True)
    try:
        # As SQL: the method of Python has no argument for the entry point before 3.12.
        connection.execute("SELECT load_extension(?, ?)", (_native.__file__, _ENTRY)).fetchone()
    finally:
        connection.enable_load_extension(False)


def _loaded() -> sqlite3.Connection:
    """Returns a connection to nothing that has the extension; it registers the VFS, once."""
    global _loader
    with _lock:
        if _loader is None:
            if sqlite3.sqlite_version_info < _OLDEST:
                oldest = ".".join(map(str, _OLDEST))
                raise sqlite3.NotSupportedError(
                    f"innerspace.sqlite needs SQLite {oldest} or newer, and this Python has {sqlite3.sqlite_version}"
                )
            loader = sqlite3.connect(":memory:", check_same_thread=False)
            try:
                _load(loader)
            except BaseException:
                loader.close()
                raise
            _loader = loader
        return _loader


def connect(
    path: str | os.PathLike[str],
    limit: int | str | None = None,
    *,
    block: int | str | None = None,
    group: str | None = None,
    group_limit: int | str | None = None,
    branch: str | None = None,
    mode: str | None = None,
    **options: Any,
) -> sqlite3.Connection:
    """Opens a database whose pages are in the memory that all databases of the process share.

    `limit` is the limit of that memory; the first `connect` of the process sets it, 64 MiB by default.
    `block` is the unit of caching of this database; `group` names the tenant that pays for it, with
    `group_limit` at its first mention; `branch` opens a branch of it (`SELECT innerspace_branch('a')`);
    `mode` is SQLite's: 'ro', 'rw' or 'rwc', the default. `options` are those of `sqlite3.connect`.

    Returns a connection of `sqlite3`. It also has SQLite's own page cache, 2 MiB by default and outside
    the limit, which `PRAGMA cache_size = 10` makes small.

    Raises sqlite3.NotSupportedError if this Python's sqlite3 cannot load extensions, and
    sqlite3.OperationalError for a database that cannot be opened.
    """
    sizes = {"limit": limit, "block": block, "group_limit": group_limit}
    uri: dict[str, object] = {"vfs": "innerspace"}
    uri.update({name: parse_size(size) for name, size in sizes.items() if size is not None})
    texts = {"group": group, "branch": branch, "mode": mode}
    uri.update({name: text for name, text in texts.items() if text is not None})
    if "uri" in options:
        raise TypeError("connect() takes a path, and makes the URI itself")
    _loaded()
    quoted = urllib.parse.quote(os.path.abspath(os.fspath(path)))
    query = urllib.parse.urlencode(uri, quote_via=urllib.parse.quote)
    # The extension gives its functions to each connection that is made from now on.
    connection: sqlite3.Connection = sqlite3.connect(f"file:{quoted}?{query}", uri=True, **options)
    return connection


def stats() -> str:
    """Returns the figures of the memory that the databases share, as text."""
    connection = _loaded()
    with _lock:
        text: str = connection.execute("SELECT innerspace_stats()").fetchone()[0]
    return text
