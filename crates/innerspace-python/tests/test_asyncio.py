"""Calls in the background of an event loop."""

import asyncio
import gc
import os
import threading
import weakref

import numpy as np
import pytest

import innerspace


def test_reads_and_views(memory, path, data):
    async def main():
        with memory.open(path) as file:
            assert await file.aread(10, 5) == data[5:15]
            assert await file.aread(1 << 30, 0) == data
            assert await file.aread(10, len(data) - 3) == data[-3:]
            assert await file.aread(10, 1 << 40) == b""
            view = await file.async_view(4000, 200)
            assert bytes(view) == data[4000:4200] and view.offset == 4000
            assert bytes(await file.async_view(len(data) - 9)) == data[-9:]
            np.testing.assert_array_equal(
                np.frombuffer(await file.async_view(0, 64), "u1"), np.frombuffer(data[:64], "u1")
            )

    asyncio.run(main())


def test_thousands_in_flight_without_a_thread_each(tmp_path):
    data = np.random.default_rng(3).bytes(32 << 20)
    path = tmp_path / "large.bin"
    path.write_bytes(data)
    memory = innerspace.Memory("8MiB")
    file = memory.open(path)
    offsets = np.random.default_rng(4).permutation(8192)[:5000] * 4096

    before = threading.active_count()

    async def one(offset):
        assert await file.aread(4096, offset) == data[offset : offset + 4096]

    async def main():
        tasks = [asyncio.ensure_future(one(int(offset))) for offset in offsets]
        await asyncio.sleep(0)
        mine, system = threading.active_count(), len(os.listdir("/proc/self/task"))
        under_way = sum(not task.done() for task in tasks)
        await asyncio.gather(*tasks)
        return under_way, mine, system

    under_way, mine, system = asyncio.run(main())
    assert under_way > 1000
    # The system's threads are those of the memories that are alive: a few each, whatever is under way.
    assert mine <= before and system < under_way / 5
    assert memory.stats()["peak"] <= 8 << 20


def test_failures_are_exceptions(memory, path, data):
    async def main():
        file = memory.open(path)
        with pytest.raises(innerspace.FileError):
            await file.async_view(0, len(data) + 1)
        with pytest.raises(ValueError):
            await file.aread(-1, 0)
        with pytest.raises(OSError, match="only"):
            await file.awrite(b"x", 0)
        os.truncate(path, 100)
        with pytest.raises(innerspace.FileError, match="now ends"):
            await file.aread(10, 500_000)
        # The others go on.
        results = await asyncio.gather(
            *(file.aread(8, offset) for offset in (300_000, 600_000, 900_000)), return_exceptions=True
        )
        assert all(isinstance(one, innerspace.FileError) for one in results)
        file.close()
        with pytest.raises(ValueError, match="closed"):
            await file.aread(1, 0)

    asyncio.run(main())


def test_a_view_that_does_not_fit_is_a_limit_error(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(4 << 20))
    memory = innerspace.Memory("1MiB")
    with pytest.raises(innerspace.LimitError):
        asyncio.run(memory.open(path).async_view())


def test_writes(memory, path, data):
    async def main():
        with memory.open(path, "r+") as file:
            await asyncio.gather(*(file.awrite(b"%08d" % n, n * 8) for n in range(1000)))
            assert await file.aread(24, 0) == b"000000000000000100000002"
            buffer = bytearray(b"old")
            write = asyncio.ensure_future(file.awrite(buffer, 9000))
            await asyncio.sleep(0)
            buffer[:] = b"new"
            await write
            await file.async_sync()
        assert path.read_bytes() == b"".join(b"%08d" % n for n in range(1000)) + data[8000:9000] + b"old" + data[9003:]

    asyncio.run(main())


def slow_file(memory, started, go_on):
    """A file whose store waits for the test."""
    from innerspace._file import File
    from innerspace._native import open_fetched

    def fetch(start, end):
        started.set()
        go_on.wait(30)
        return bytes([start // 4096 & 255]) * (end - start)

    raw = open_fetched(memory._open(), fetch, 1 << 20, "slow", 4096, 4096, 16)
    return File(raw, memory, "r")


def test_the_loop_runs_while_a_store_waits(memory):
    started, go_on = threading.Event(), threading.Event()
    file = slow_file(memory, started, go_on)

    async def main():
        reads = [asyncio.ensure_future(file.aread(2, n * 4096)) for n in range(100)]
        turns = 0
        while not started.is_set() or turns < 100:
            await asyncio.sleep(0)
            turns += 1
        assert not any(read.done() for read in reads)
        go_on.set()
        assert await asyncio.gather(*reads) == [bytes([n, n]) for n in range(100)]

    asyncio.run(main())


def test_cancelled_calls_end(memory):
    started, go_on = threading.Event(), threading.Event()
    file = slow_file(memory, started, go_on)

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(file.aread(2, 0), 0.05)
        reads = [asyncio.ensure_future(file.aread(2, n * 4096)) for n in range(200)]
        await asyncio.sleep(0)
        for read in reads:
            read.cancel()
        results = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in results)
        go_on.set()
        assert await file.aread(2, 7 * 4096) == b"\7\7"

    asyncio.run(main())
    # The next loop has nothing to do with the first one.
    assert asyncio.run(file.aread(2, 8 * 4096)) == b"\10\10"


def test_a_loop_takes_its_reactor_along(memory, path):
    from innerspace import _aio

    file = memory.open(path)
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(file.aread(1, 0))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(file.aread(1, 0))
    gone = weakref.ref(_aio._reactors[loop])
    loop.close()
    del loop
    gc.collect()
    assert gone() is None and len(os.listdir("/proc/self/fd")) <= open_files + 1


def test_loops_of_several_threads(memory, path, data):
    file = memory.open(path)
    wrong = []

    def run(number):
        async def main():
            starts = [(number * 7919 + n * 10_007) % (len(data) - 5000) for n in range(200)]
            found = await asyncio.gather(*(file.aread(5000, start) for start in starts))
            return [start for start, one in zip(starts, found) if one != data[start : start + 5000]]

        wrong.extend(asyncio.run(main()))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_more_calls_than_the_memory_has_room_for(tmp_path):
    data = np.random.default_rng(5).bytes(4 << 20)
    path = tmp_path / "file.bin"
    path.write_bytes(data)
    memory = innerspace.Memory("512KiB")
    file = memory.open(path)

    async def main():
        starts = range(0, len(data), 4096)
        found = await asyncio.gather(*(file.aread(4096, start) for start in starts))
        assert b"".join(found) == data
        reads = [asyncio.ensure_future(file.aread(4096, start)) for start in starts]
        await asyncio.sleep(0)
        for read in reads[::2]:
            read.cancel()
        rest = await asyncio.gather(*reads, return_exceptions=True)
        assert rest[1] == data[4096:8192] and rest[-1] == data[-4096:]

    asyncio.run(asyncio.wait_for(main(), 60))


class FullMemory:
    """A memory with room for a few calls, in which calls end all at once: none if they are too many."""

    def __init__(self, room):
        self.room, self.calls, self.failures, self.most = room, {}, 0, 0

    def take(self):
        """Ends the calls under way, and returns their numbers, as `Wakeups.take` does."""
        ended = list(self.calls)
        self.most = max(self.most, len(ended) if len(ended) <= self.room else 0)
        for call in self.calls.values():
            call.fits = len(ended) <= self.room
        self.calls.clear()
        return ended


class FakeCall:
    def __init__(self, memory, value):
        self.memory, self.value, self.fits = memory, value, None

    def poll(self, _, number):
        if self.fits is None:
            self.memory.calls[number] = self
            return None
        if not self.fits:
            self.memory.failures += 1
            raise innerspace.LimitError("full")
        return (self.value,)

    def cancel(self):
        pass


@pytest.mark.parametrize("room", [0, 1, 5])
def test_calls_that_fill_the_memory_together_are_made_one_by_one_at_last(room):
    from innerspace import _aio

    async def main():
        loop = asyncio.get_running_loop()
        reactor, memory = _aio._Reactor(loop), FullMemory(room)
        loop.remove_reader(reactor._wakeups.fileno())
        reactor._wakeups = memory

        def read(value):
            return asyncio.ensure_future(reactor.wait(lambda: FakeCall(memory, value), loop))

        reads = [read(value) for value in range(40)]
        for turn in range(1000):
            await asyncio.sleep(0)
            reactor._run()
            if turn == 3:
                for one in reads[::4]:
                    one.cancel()
            if all(one.done() for one in reads):
                break
        ended = await asyncio.gather(*reads, return_exceptions=True)
        kept = [(value, end) for value, end in enumerate(ended) if value % 4]
        if room == 0:
            assert all(isinstance(end, innerspace.LimitError) for _, end in kept)
        else:
            assert all(value == end for value, end in kept), ended
            # There are several at a time again where there is room.
            assert memory.most >= min(room, 3)
        assert not reactor._waiting and not reactor._postponed and not reactor._given

    asyncio.run(main())
