"""SQLite databases by the package's own extension. Each test has a process: the limit is the process's."""

import sqlite3
import subprocess
import sys
import textwrap

import pytest

extensions = pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "enable_load_extension") or sqlite3.sqlite_version_info < (3, 37),
    reason="this Python's sqlite3 loads no extensions",
)


def run(program, *args):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@extensions
def test_a_database_larger_than_the_limit(tmp_path):
    program = """
        import innerspace.sqlite, sqlite3, sys
        path = sys.argv[1]
        database = innerspace.sqlite.connect(path, limit="2MiB")
        database.execute("PRAGMA cache_size = 10")
        database.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, text BLOB)")
        with database:
            database.executemany("INSERT INTO t VALUES (?, ?)", ((n, b"%08d" % n * 100) for n in range(10_000)))
        for n in range(0, 10_000, 7):
            assert database.execute("SELECT text FROM t WHERE id = ?", (n,)).fetchone()[0] == b"%08d" % n * 100
        assert database.execute("SELECT count(*) FROM t").fetchone() == (10_000,)
        figures = innerspace.sqlite.stats()
        assert "2.0 MiB" in figures, figures
        database.close()
        plain = sqlite3.connect(path)
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert plain.execute("SELECT count(*) FROM t").fetchone() == (10_000,)
    """
    run(program, tmp_path / "strange name ?&#%.db")


@extensions
def test_databases_share_a_memory_and_have_branches(tmp_path):
    program = """
        import innerspace.sqlite, sqlite3, sys
        folder = sys.argv[1]
        a = innerspace.sqlite.connect(folder + "/a.db", limit="4MiB", group="a", group_limit="1MiB", block="8KiB")
        b = innerspace.sqlite.connect(folder + "/b.db", timeout=1, isolation_level=None)
        for database in (a, b):
            database.execute("CREATE TABLE t(x)")
            database.execute("INSERT INTO t VALUES (1)")
            database.commit()
        b.execute("SELECT innerspace_branch('what_if')").fetchone()
        branch = innerspace.sqlite.connect(folder + "/b.db", branch="what_if", isolation_level=None)
        branch.execute("INSERT INTO t VALUES (2)")
        assert branch.execute("SELECT count(*) FROM t").fetchone() == (2,)
        assert b.execute("SELECT count(*) FROM t").fetchone() == (1,)
        read_only = innerspace.sqlite.connect(folder + "/a.db", mode="ro")
        assert read_only.execute("SELECT x FROM t").fetchall() == [(1,)]
        try:
            read_only.execute("INSERT INTO t VALUES (2)")
        except sqlite3.OperationalError as error:
            assert "readonly" in str(error)
        else:
            raise AssertionError("written")
    """
    run(program, tmp_path)


@extensions
def test_what_is_wrong_is_an_exception(tmp_path):
    program = """
        import innerspace.sqlite, sqlite3, sys
        def fails(kind, text, *args, **options):
            try:
                innerspace.sqlite.connect(*args, **options).execute("SELECT * FROM sqlite_master")
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError((args, options))
        path = sys.argv[1]
        fails(sqlite3.OperationalError, "open", path + "/no/such/folder.db")
        fails(sqlite3.OperationalError, "open", path + "/missing.db", mode="rw")
        fails(ValueError, "size", path + "/a.db", limit="much")
        fails(TypeError, "URI", path + "/a.db", uri=True)
        with open(path + "/text.db", "w") as file:
            file.write("not a database " * 1000)
        fails(sqlite3.DatabaseError, "not a database", path + "/text.db")
    """
    run(program, tmp_path)


def test_a_python_without_extensions_says_so():
    program = """
        import innerspace.sqlite, sqlite3
        class Lacking:
            def execute(self, *_): raise AssertionError
            def close(self): pass
        sqlite3.sqlite_version_info = (3, 45, 0)
        sqlite3.connect = lambda *_, **__: Lacking()
        try:
            innerspace.sqlite.connect("any.db")
        except sqlite3.NotSupportedError as error:
            assert "built without loadable extensions" in str(error)
        else:
            raise AssertionError
    """
    run(program)
