"""The file object, its views, and every exception that a call may end with."""

import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import innerspace


def run(program, *args, status=0):
    """Runs a program in a process of its own, and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def test_reads_as_files_do(memory, path, data):
    with memory.open(path) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.read(10) == data[:10] and file.tell() == 10
        assert file.seek(-5, io.SEEK_END) == len(data) - 5
        assert file.read() == data[-5:] and file.read() == b"" and file.read(3) == b""
        file.seek(100)
        assert file.seek(-1, io.SEEK_CUR) == 99
        assert file.peek(7) == data[99:106] and file.tell() == 99
        buffer = bytearray(5000)
        assert file.readinto(buffer) == 5000 and buffer == data[99:5099]
        words = np.zeros((10, 10), "<i8")
        assert file.readinto(words) == 800 and words.tobytes() == data[5099:5899]
        assert file.read_at(9, 4090) == data[4090:4099]
        assert file.read_at(9, len(data) - 2) == data[-2:] and file.read_at(9, 1 << 40) == b""
        assert file.size == len(file) == len(data) and bool(file)
        assert file.readable() and file.seekable() and not file.writable() and not file.isatty()
        assert file.mode == "rb" and file.name == str(path) and "mode='r'" in repr(file)
    assert file.closed and "closed" in repr(file)
    file.close()


def test_a_file_open_for_reading_is_not_written_though_another_handle_writes(memory, path, data):
    writer, reader = memory.open(path, "r+"), memory.open(path)
    array = memory.array(path)
    assert writer.writable() and not reader.writable() and not array.writeable
    with pytest.raises(io.UnsupportedOperation):
        reader.write(b"x")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert reader.read() == data


def test_buffered_reader_and_lines(memory, tmp_path):
    path = tmp_path / "lines.txt"
    lines = [b"x" * (n * 37 % 2000) + b"\n" for n in range(300)] + [b"last"]
    path.write_bytes(b"".join(lines))
    assert list(memory.open(path)) == lines
    assert list(io.BufferedReader(memory.open(path))) == lines
    assert io.TextIOWrapper(memory.open(path)).read() == b"".join(lines).decode()
    file = memory.open(path)
    assert file.readline() == lines[0] and file.readline(5) == lines[1][:5]
    assert file.readlines() == [lines[1][5:], *lines[2:]]


def test_writes_as_files_do(memory, tmp_path):
    path = tmp_path / "new.bin"
    with memory.open(path, "w+") as file:
        assert file.mode == "rb+" and file.writable()
        assert file.write(b"hello") == 5 and file.write(memoryview(b", world")) == 7
        file.flush()
        assert path.read_bytes() == b"hello, world"
        file.seek(7)
        file.write(np.frombuffer(b"WORLD", "u1"))
        assert file.write_at(b"!", 12) == 1
        assert file.truncate(20) == 20 and file.tell() == 12
        file.append(b"end")
        file.sync()
        assert path.read_bytes() == b"hello, WORLD!\0\0\0\0\0\0\0end"
        file.seek(5)
        assert file.truncate() == 5
        assert file.seek(0) == 0 and file.read() == b"hello"
    assert path.read_bytes() == b"hello"
    with memory.open(path, "r+b") as file, io.BufferedRandom(file) as buffered:
        buffered.seek(2)
        buffered.write(b"LL")
    assert path.read_bytes() == b"heLLo"
    with pytest.raises(FileExistsError) as raised:
        memory.open(path, "x+")
    assert isinstance(raised.value, innerspace.FileError)
    memory.open(tmp_path / "other.bin", "x+").close()


def test_bytes_are_written_when_the_file_is_dropped_and_at_exit(memory, tmp_path):
    path = tmp_path / "dropped.bin"
    memory.open(path, "w+").write(b"kept")
    assert path.read_bytes() == b"kept"
    run(
        """
        import sys, innerspace
        file = innerspace.Memory("1MiB").open(sys.argv[1], "w+")
        file.write(b"at exit")
        """,
        path,
    )
    assert path.read_bytes() == b"at exit"


def test_views_are_the_bytes_and_stay(memory, path, data):
    with memory.open(path, "r+") as file:
        view = file.view(100, 10_000)
        assert len(view) == view.nbytes == 10_000 and view.offset == 100
        assert bytes(view) == view.tobytes() == data[100:10_100]
        assert view[0] == data[100] and view[-1] == data[10_099]
        part = view[50:60]
        assert bytes(part) == data[150:160] and part.offset == 150
        shown = memoryview(view)
        assert shown.readonly and shown.c_contiguous and shown[::7].tobytes() == data[100:10_100:7]
        array = np.frombuffer(view, "u1")
        assert not array.flags.writeable and not array.flags.owndata
        file.write_at(b"\0" * 20_000, 0)
        assert file.view(0, 8).tobytes() == bytes(8)
        assert file.view(0, 0).tobytes() == b"" and len(file.view(len(data) - 1)) == 1
    del view, part, shown, file
    assert array.tobytes() == data[100:10_100], "the array keeps the view, which keeps the bytes"
    with pytest.raises(ValueError):
        array[0] = 1


def test_a_view_inside_a_block_is_no_copy(memory, path):
    file = memory.open(path)
    first, second = np.frombuffer(file.view(0, 4096), "u1"), np.frombuffer(file.view(8, 100), "u1")
    assert second.ctypes.data == first.ctypes.data + 8


def test_bad_indices_of_views(memory, path):
    view = memory.open(path).view(0, 10)
    for index, error in [(10, IndexError), (-11, IndexError), ("x", TypeError)]:
        with pytest.raises(error):
            view[index]
    with pytest.raises(ValueError, match="step of 1"):
        view[::2]
    with pytest.raises(BufferError):
        memory.open(path).readinto(view)


def test_errors_say_what_and_where(memory, path, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file") as raised:
        memory.open(tmp_path / "missing")
    error = raised.value
    assert isinstance(error, innerspace.FileError)
    assert error.errno == 2 and error.filename == str(tmp_path / "missing") and error.offset is None
    with pytest.raises(IsADirectoryError):
        memory.open(tmp_path, "r+")
    with pytest.raises(innerspace.FileError) as raised:
        memory.open(path).view(1 << 20, 1)
    assert raised.value.offset == 1 << 20 and raised.value.filename == str(path)
    for call in [lambda: memory.open(path, "a"), lambda: memory.open(path, block="5KiB")]:
        with pytest.raises(ValueError):
            call()
    file = memory.open(path)
    for call in [
        lambda: file.seek(-1),
        lambda: file.seek(0, 9),
        lambda: file.read_at(-1, 0),
        lambda: file.read_at(1, -1),
        lambda: file.view(-1, 1),
        lambda: file.view(0, -1),
    ]:
        with pytest.raises(ValueError):
            call()
    for call in [lambda: file.write(b"x"), lambda: file.truncate(0), file.fileno]:
        with pytest.raises(io.UnsupportedOperation):
            call()
    with pytest.raises(innerspace.FileError, match="read-only"):
        memory.open(path, "r+")


def test_wrong_types_are_type_errors(memory, path):
    file, array, space = memory.open(path), memory.array(path), memory.space()
    for call in [
        lambda: innerspace.Memory(None),
        lambda: memory.open(None),
        lambda: memory.array(path, shape=(2.5,)),
        lambda: memory.space(group=5),
        lambda: space.fork(group="tenant"),
        lambda: space.restore(5),
        lambda: space.changed_since(space),
        lambda: space.freeze().diff(None),
        lambda: file.seek("1"),
        lambda: file.view("0", 1),
        lambda: file.readinto(5),
        lambda: array.sum(axis="x"),
        lambda: array.mean(axis=1.5),
    ]:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="beyond its end"):
        memory.array(path, "f4", offset=1 << 30)


def test_limits(tmp_path, path):
    for limit, error in [("1KiB", ValueError), ("x", ValueError), (-1, ValueError), (2.5, TypeError)]:
        with pytest.raises(error):
            innerspace.Memory(limit)
    for limit in ["x%", "0%", "101%"]:
        with pytest.raises(ValueError):
            innerspace.Memory(limit)
    with pytest.raises(MemoryError):
        innerspace.Memory("1024TiB")
    assert innerspace.Memory("0.5 MiB").limit == 1 << 19 and innerspace.Memory("1MB").limit == 10**6
    assert innerspace.Memory("1%").limit > 1 << 20
    memory = innerspace.Memory("512KiB")
    file = memory.open(path)
    with pytest.raises(innerspace.LimitError, match="raise the limit") as raised:
        file.view(0, 1 << 20)
    assert isinstance(raised.value, MemoryError)
    with pytest.raises(innerspace.LimitError) as raised:
        kept = [file.view(at, 4096) for at in range(0, 1 << 20, 4096)]
    assert raised.value.group == "root" and raised.value.usage <= raised.value.limit <= 512 * 1024
    assert len(file.read()) == 1 << 20, "what is held is free again"
    assert "views" in str(raised.value)


def test_groups(memory, path):
    group = memory.group("tenant", "1MiB")
    file = memory.open(path, group=group)
    file.read()
    assert 0 < group.usage <= 1 << 20 and group.name == "tenant" and group.path.endswith("/tenant")
    assert group.take_peak() > 0 and "tenant" in repr(group)
    child = group.group("child", "512KiB")
    child.set_limit("256KiB")
    child.set_high("128KiB")
    child.set_low("64KiB")
    child.set_min("32KiB")
    child.set_limit(None)
    with pytest.raises(ValueError, match="already"):
        memory.group("tenant", "1MiB")
    with pytest.raises(ValueError):
        memory.group("small", 5)
    with pytest.raises(TypeError):
        memory.open(path, group="tenant")
    with pytest.raises(ValueError):
        innerspace.Memory("1MiB").open(path, group=group)


def test_stats(memory, path):
    file = memory.open(path)
    file.read()
    stats = memory.stats()
    assert isinstance(stats, dict) and stats["limit"] == 16 << 20
    assert sum(stats["parts"].values()) <= stats["limit"] and stats["usage"] <= stats["limit"]
    assert repr(stats).startswith("memory: ") and str(stats) == repr(stats)
    shown = stats._repr_html_()
    assert "width:" in shown and "free" in shown and memory._repr_html_() == memory.stats()._repr_html_()
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert "of 16.0 MiB" in repr(memory) and memory.usage >= 1 << 20
    memory.reclaim("16MiB")
    assert memory.usage < stats["usage"] and not file.closed and memory.take_errors() == []


def test_closed_files_and_memories(memory, path):
    file = memory.open(path, "r+")
    view = file.view(0, 10)
    memory.close()
    assert memory.closed and file.closed and len(bytes(view)) == 10
    calls = [
        file.read,
        lambda: file.readinto(bytearray(1)),
        lambda: file.write(b""),
        file.tell,
        lambda: file.seek(0),
        lambda: file.view(0, 1),
        lambda: file.truncate(0),
        file.flush,
        file.sync,
        lambda: file.size,
        lambda: memory.open(path),
        memory.stats,
        lambda: memory.limit,
        lambda: memory.group("x", "1MiB"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    assert repr(memory) == "<innerspace.Memory, closed>" and "closed" in memory._repr_html_()
    with innerspace.Memory("1MiB") as inner:
        other = inner.open(path)
    assert inner.closed and other.closed


def test_files_outlive_a_memory_that_is_gone(path, data):
    file = innerspace.Memory("1MiB").open(path)
    assert file.read() == data
    view = innerspace.Memory("1MiB").open(path).view(5, 10)
    assert bytes(view) == data[5:15]


def test_pickling_is_refused(memory, path):
    file = memory.open(path)
    for thing in [memory, memory.group("g", "1MiB"), file, file.view(0, 1), memory.array(path)]:
        with pytest.raises(TypeError, match="process|open the file again"):
            pickle.dumps(thing)


def test_a_file_that_is_cut_short_is_an_error(tmp_path):
    path = tmp_path / "cut.bin"
    path.write_bytes(b"x" * (8 << 20))
    memory = innerspace.Memory("1MiB")
    file, array = memory.open(path), memory.array(path, "f8")
    file.read(10)
    os.truncate(path, 4096)
    for call in [
        lambda: file.read_at(10, 4 << 20),
        lambda: file.view(4 << 20, 10),
        lambda: array[1 << 19],
        lambda: array[[5, 1 << 19]],
        lambda: array.sum(),
    ]:
        with pytest.raises(innerspace.FileError) as raised:
            call()
        assert raised.value.errno and raised.value.filename == str(path)
    assert raised.value.offset is not None and "now ends at 4,096" in str(raised.value)
    file.invalidate()
    assert file.size == 4096


def test_numpy_memmap_gets_a_signal_there(tmp_path):
    path = tmp_path / "cut.bin"
    path.write_bytes(b"x" * (8 << 20))
    program = """
        import os, sys, numpy
        array = numpy.memmap(sys.argv[1], "f8", "r")
        os.truncate(sys.argv[1], 4096)
        array[1 << 19]
    """
    run(program, path, status=-signal.SIGBUS)


def test_changes_by_others_are_noticed(memory, path):
    file = memory.open(path)
    file.read(10)
    path.write_bytes(b"y" * (1 << 20))
    deadline = time.monotonic() + 10
    with pytest.raises(innerspace.FileError, match="another program has changed"):
        while time.monotonic() < deadline:
            file.evict()
            file.read_at(4096, 512 << 10)
            time.sleep(0.1)
    file.invalidate()
    assert file.read_at(3, 0) == b"yyy"


def test_a_child_of_fork_gets_exceptions(memory, path):
    file, array = memory.open(path, "r+"), memory.array(memory.open(path, "r+"), "u1")
    view = file.view(0, 4096)
    file.write_at(b"parent", 0)
    child = os.fork()
    if child == 0:
        status = 0
        calls = [lambda: file.read_at(8, 0), lambda: file.write_at(b"child!", 0), lambda: array[5]]
        calls += [lambda: memory.open(path), lambda: file.view(0, 1), file.flush, array.sum]
        for number, call in enumerate(calls, 1):
            try:
                call()
                status = number
            except innerspace.FileError as error:
                if "process" not in str(error):
                    status = 100 + number
        len(bytes(view))
        del file, array, view
        own = innerspace.Memory("1MiB")
        own.open(path).read(1)
        del memory, own
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    file.flush()
    assert path.read_bytes()[:6] == b"parent"


def test_shutdown_with_everything_alive(path):
    program = """
        import sys, threading, numpy, innerspace
        memory = innerspace.Memory("4MiB")
        file = memory.open(sys.argv[1], "r+")
        view, array = file.view(0, 5000), memory.array(file, "u1")
        shown, numbers = memoryview(view), numpy.frombuffer(view, "u1")
        sys.keep = [view, file, memory, array]
        def read():
            while True:
                file.read_at(100_000, 50_000)
        for _ in range(3):
            threading.Thread(target=read, daemon=True).start()
        class Late:
            def __del__(self):
                bytes(view), len(file.read_at(10, 0))
        late = Late()
        file.write_at(b"end", 0)
        print("end")
    """
    for _ in range(3):
        assert run(program, path) == "end\n"
        assert path.read_bytes()[:3] == b"end"


def test_an_interrupt_ends_a_long_read(tmp_path):
    path = tmp_path / "sparse.bin"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    program = """
        import os, signal, sys, threading, innerspace
        memory = innerspace.Memory("4MiB")
        array = memory.array(sys.argv[1], "u1")
        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
        calls = [array.sum, lambda: array[:: 1 << 12].sum(), lambda: 5 in array]
        buffer = bytearray(1 << 20)
        def read():
            file = memory.open(sys.argv[1])
            while file.readinto(buffer):
                pass
        for call in calls + [read]:
            threading.Timer(0.2, interrupt).start()
            try:
                call()
                print("ended")
            except KeyboardInterrupt:
                print("interrupted")
        assert memory.open(sys.argv[1]).read(1) == b"\\0"
    """
    assert run(program, path).split() == ["interrupted"] * 4


def test_threads_read_while_one_waits(memory, path, data):
    file, failures = memory.open(path), []

    def read(seed):
        for at in np.random.default_rng(seed).integers(0, len(data) - 5000, 500):
            if file.read_at(5000, int(at)) != data[at : at + 5000]:
                failures.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_everything_public_has_documentation():
    for name in innerspace.__all__:
        thing = getattr(innerspace, name)
        assert thing.__doc__, name
        for method, value in vars(thing).items():
            if not method.startswith("_"):
                assert value is None or value.__doc__, f"{name}.{method}"


def test_help_and_completion_find_everything_public():
    assert set(innerspace.__all__) <= set(dir(innerspace))
    shown = run("import innerspace; help(innerspace)")
    for name in innerspace.__all__:
        assert f"class {name}(" in shown or f"class {name}\n" in shown, name
