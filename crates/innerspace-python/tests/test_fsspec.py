"""The cache type and the file system of fsspec, over memory, local files and a server on loopback."""

import gc
import http.server
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref

import fsspec
import numpy as np
import pytest

import innerspace
import innerspace.fsspec

DATA = np.random.default_rng(7).bytes(3_000_000)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves bytes by ranges."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET(with_body=False)

    def do_GET(self, with_body=True):
        server = self.server
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        start, end = (int(wanted[1]), min(int(wanted[2]) + 1, len(content))) if wanted else (0, len(content))
        if with_body:
            with server.lock:
                server.requests.append((self.path, start, end))
            if server.failing.is_set():
                self.send_error(500)
                return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"%d"' % hash(content))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.end_headers()
        if with_body:
            self.wfile.write(content[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.requests, server.lock = {"/data": DATA}, [], threading.Lock()
    server.failing = threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def http_fs():
    pytest.importorskip("aiohttp")
    return fsspec.filesystem("http", skip_instance_cache=True)


def test_cache_type(server, http_fs, memory):
    options = {"memory": memory, "block": "16KiB"}
    with http_fs.open(server.url + "/data", cache_type="innerspace", cache_options=options) as file:
        assert isinstance(file.cache, innerspace.fsspec.InnerspaceCache)
        file.seek(1_000_000)
        assert file.read(100) == DATA[1_000_000:1_000_100]
        requests = len(server.requests)
        file.seek(1_000_010)
        assert file.read(100) == DATA[1_000_010:1_000_110]
        assert len(server.requests) == requests and file.cache.hit_count == 1
        file.seek(0)
        assert file.read() == DATA
        assert file.cache.total_requested_bytes >= len(DATA) and "innerspace" in file.cache._log_stats()
        file.seek(-5, 2)
        assert file.read(10) == DATA[-5:] and file.read(1) == b""
    assert memory.stats()["peak"] > 1 << 20


def test_the_cache_type_by_url(server, http_fs):
    del http_fs
    url = server.url + "/data"
    with fsspec.open(url, cache_type="innerspace", skip_instance_cache=True) as file:
        assert file.read(1000) == DATA[:1000]
    assert innerspace.fsspec.memory().stats()["peak"] > 0


def test_a_file_that_is_not_closed_is_collected(server, http_fs, memory):
    file = http_fs.open(server.url + "/data", cache_type="innerspace", cache_options={"memory": memory})
    file.read(1_000_000)
    used, gone = memory.usage, weakref.ref(file.cache)
    del file
    gc.collect()
    assert gone() is None and memory.usage < used


def test_the_limit_is_one_for_all_files(server, http_fs):
    memory = innerspace.Memory("2MiB")
    files = [
        http_fs.open(server.url + "/data", cache_type="innerspace", cache_options={"memory": memory})
        for _ in range(3)
    ]
    for start in range(0, len(DATA), 500_000):
        for file in files:
            file.seek(start)
            assert file.read(500_000) == DATA[start : start + 500_000]
    assert memory.stats()["peak"] <= 2 << 20


@pytest.fixture
def wrapped(memory):
    target = fsspec.filesystem("memory")
    target.store.clear()
    target.pipe_file("/folder/data", DATA)
    yield innerspace.fsspec.InnerspaceFileSystem(fs=target, memory=memory, skip_instance_cache=True)
    target.store.clear()


def test_file_system_over_memory(wrapped, memory):
    with wrapped.open("/folder/data") as file:
        assert isinstance(file, innerspace.File) and file.size == len(DATA)
        assert file.read() == DATA
        assert bytes(file.view(100, 50)) == DATA[100:150]
        assert file.read_at(5, 70_000) == DATA[70_000:70_005]
    assert wrapped.cat_file("/folder/data", 5, 10) == DATA[5:10]
    assert wrapped.cat_file("/folder/data", -5) == DATA[-5:]
    assert wrapped.cat_file("/folder/data", 0, -len(DATA) + 3) == DATA[:3]
    assert wrapped.cat("/folder/data") == DATA
    assert wrapped.exists("/folder/data") and not wrapped.exists("/folder/other")
    assert wrapped.isdir("/folder") and wrapped.ls("/folder", detail=False) == ["/folder/data"]
    assert wrapped.find("/folder") == ["/folder/data"] and wrapped.size("/folder/data") == len(DATA)
    with pytest.raises(FileNotFoundError):
        wrapped.open("/folder/other")
    with pytest.raises(IsADirectoryError):
        wrapped.open("/folder")
    with wrapped.open("/folder/data", "r", encoding="latin-1") as text:
        assert text.read(10) == DATA[:40].decode("latin-1").replace("\r\n", "\n")[:10]
    assert memory.stats()["peak"] > 1 << 20


def test_writes_go_to_the_other_file_system(wrapped):
    with wrapped.open("/folder/new", "wb") as file:
        file.write(b"first version")
    assert wrapped.cat("/folder/new") == b"first version"
    wrapped.pipe_file("/folder/new", b"second")
    assert wrapped.cat("/folder/new") == b"second"
    wrapped.cp_file("/folder/new", "/folder/copy")
    wrapped.rm_file("/folder/new")
    assert not wrapped.exists("/folder/new") and wrapped.cat("/folder/copy") == b"second"
    wrapped.makedirs("/made/deep", exist_ok=True)
    assert wrapped.isdir("/made/deep")
    wrapped.rmdir("/made/deep")


def test_chained_url_over_a_server(server):
    pytest.importorskip("aiohttp")
    url = "innerspace::" + server.url + "/data"
    with fsspec.open(url) as file:
        assert isinstance(file, innerspace.File)
        assert file.read() == DATA
    requests = len(server.requests)
    # As long as there is room, the next open finds what this one has read.
    with fsspec.open(url) as file:
        assert file.read() == DATA
    assert len(server.requests) == requests
    # A new version is another file.
    server.files["/data"] = DATA[::-1]
    with fsspec.open(url) as file:
        assert file.read() == DATA[::-1]
    with pytest.raises(FileNotFoundError):
        fsspec.open("innerspace::" + server.url + "/missing").open()


def test_chained_url_over_local_files(tmp_path):
    path = tmp_path / "local.bin"
    path.write_bytes(DATA)
    with fsspec.open(f"innerspace::file://{path}") as file:
        assert isinstance(file, innerspace.File) and file.read() == DATA


def test_fsspec_finds_the_file_system_without_an_import(tmp_path):
    path = tmp_path / "local.bin"
    path.write_bytes(b"by entry point")
    program = """
        import fsspec, sys
        with fsspec.open("innerspace::file://" + sys.argv[1]) as file:
            assert type(file).__module__ == "innerspace._file" and file.read() == b"by entry point"
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_libraries_read_through_it(wrapped):
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame({"x": np.arange(100_000), "y": np.random.default_rng(8).random(100_000)})
    with wrapped.open("/folder/frame.parquet", "wb") as file:
        frame.to_parquet(file, row_group_size=10_000)
    with wrapped.open("/folder/frame.parquet") as file:
        pandas.testing.assert_frame_equal(pandas.read_parquet(file), frame)
    table = parquet.read_table("/folder/frame.parquet", filesystem=wrapped, columns=["y"])
    np.testing.assert_array_equal(table["y"].to_numpy(), frame["y"].to_numpy())


def test_failures_of_the_fetcher_are_causes(server, http_fs, memory):
    wrapped = innerspace.fsspec.InnerspaceFileSystem(fs=http_fs, memory=memory, skip_instance_cache=True)
    with wrapped.open(server.url + "/data") as file:
        assert file.read(10) == DATA[:10]
        server.failing.set()
        with pytest.raises(innerspace.FileError) as caught:
            file.read_at(10, 2_000_000)
        assert "500" in str(caught.value.__cause__) and caught.value.offset is not None
        server.failing.clear()
        assert file.read_at(10, 2_000_000) == DATA[2_000_000:2_000_010]


def opened(memory, fetch, size=1 << 20):
    from innerspace._file import File
    from innerspace._native import open_fetched

    return File(open_fetched(memory._open(), fetch, size, "made", 4096, 65536, 4), memory, "r")


def test_a_fetcher_may_raise_or_return_anything(memory):
    answers = {}

    def fetch(start, end):
        answer = answers["next"]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    file = opened(memory, fetch)
    for answer, cause in [
        (OSError(5, "broken"), OSError),
        (InterruptedError(4, "interrupted"), InterruptedError),
        (TimeoutError("slow"), TimeoutError),
        (KeyError("x"), KeyError),
        (None, TypeError),
        ("text", TypeError),
        (bytes(1 << 20), ValueError),
    ]:
        answers["next"] = answer
        with pytest.raises(innerspace.FileError) as caught:
            file.read_at(10, 0)
        assert isinstance(caught.value.__cause__, cause), answer
    answers["next"] = b""
    with pytest.raises(innerspace.FileError):
        file.read_at(10, 0)
    answers["next"] = FileNotFoundError(2, "gone")
    with pytest.raises(FileNotFoundError):
        file.read_at(10, 0)


def test_short_answers_are_completed(memory):
    file = opened(memory, lambda start, end: DATA[start : min(end, start + 1000)])
    assert file.read_at(50_000, 1234) == DATA[1234:51_234]


def test_a_fetcher_may_use_the_memory(memory, path, data):
    inner = memory.open(path)
    file = opened(memory, lambda start, end: inner.read_at(end - start, start), len(data))
    assert file.read() == data


def test_interrupt_of_a_slow_fetch():
    program = """
        import innerspace, os, signal, threading, time
        from innerspace._file import File
        from innerspace._native import open_fetched
        memory = innerspace.Memory("4MiB")
        begun = threading.Event()
        def fetch(start, end):
            begun.set()
            time.sleep(3600)
        file = File(open_fetched(memory._open(), fetch, 1 << 20, "slow", 4096, 65536, 4), memory, "r")
        def interrupt():
            begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            file.read()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout == "interrupted\n", done.stderr


def test_the_process_wide_limit():
    program = """
        import innerspace.fsspec
        innerspace.fsspec.set_limit("8MiB")
        assert innerspace.fsspec.memory().limit == 8 << 20
        try:
            innerspace.fsspec.set_limit("9MiB")
        except ValueError as error:
            assert "already" in str(error)
        else:
            raise AssertionError
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    program = 'import innerspace.fsspec; assert innerspace.fsspec.memory().limit == 5 << 20'
    environment = {**os.environ, "INNERSPACE_FSSPEC_LIMIT": "5MiB"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
