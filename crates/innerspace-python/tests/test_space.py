"""Address spaces: mappings, copies, and the exceptions of accesses."""

import doctest
import os
import pickle
import threading

import numpy as np
import pytest

import innerspace

PAGE = 4096


@pytest.fixture
def space(memory):
    return memory.space()


def test_the_example_of_the_documentation():
    from innerspace import _space

    result = doctest.testmod(_space)
    assert result.attempted > 8 and result.failed == 0


def test_anonymous_memory_is_zeros_until_written(memory, space):
    at = space.map("1MiB")
    before = memory.usage
    assert space.read(at, 10) == bytes(10)
    assert space.write(at + PAGE - 3, b"across") == 6
    assert space.read(at + PAGE - 4, 8) == b"\0across\0"
    space.fill(at + 3 * PAGE, PAGE, 7)
    assert space.read(at + 3 * PAGE - 1, 3) == b"\0\7\7"
    assert memory.usage > before
    words = np.zeros(2 * PAGE, "u1")
    assert space.readinto(at + 2 * PAGE, words) == words.nbytes
    assert words[:PAGE].sum() == 0 and (words[PAGE:] == 7).all()
    assert space.mappings() == [(at, 1 << 20, "rw", None)]
    assert space.mappings()[0].rights == "rw"
    assert space.map(PAGE, at=0x10000) == 0x10000


def test_large_transfers_are_whole(memory, space):
    data = np.random.default_rng(2).bytes(9_000_001)
    at = space.map(len(data))
    assert space.write(at + 5, data[:-5]) == len(data) - 5
    assert space.read(at + 5, len(data) - 5) == data[:-5]


def test_private_mapping_keeps_the_file(memory, space, path, data):
    with memory.open(path) as file:
        at = space.map(file)
        assert space.read(at + 5000, 5000) == data[5000:10000]
        space.write(at + 5000, b"mine")
        assert space.read(at + 5000, 6) == b"mine" + data[5004:5006]
        assert file.read_at(6, 5000) == data[5000:5006] and path.read_bytes() == data
        part = space.map(file, 2 * PAGE, offset=PAGE, writable=False)
        assert space.read(part, 2 * PAGE) == data[PAGE : 3 * PAGE]
        with pytest.raises(innerspace.AccessError, match="protection"):
            space.write(part, b"x")
        assert space.mappings()[1].file == str(path) or space.mappings()[0].file == str(path)


def test_shared_mapping_changes_the_file(memory, space, path, data):
    with memory.open(path, "r+") as file:
        at = space.map(file, shared=True)
        space.write(at + 10, b"shared")
        assert file.read_at(8, 9) == data[9:10] + b"shared" + data[16:17]
        space.sync(at, PAGE)
        assert path.read_bytes()[10:16] == b"shared"
    with memory.open(path) as file:
        at = space.map(file, shared=True)
        with pytest.raises(innerspace.AccessError):
            space.write(at, b"x")
        with pytest.raises(OSError, match="reading only"):
            space.map(file, shared=True, writable=True)


def test_forks_do_not_see_each_other(memory, space):
    at = space.map("256KiB")
    space.write(at, b"parent")
    children = [space.fork() for _ in range(50)]
    for number, child in enumerate(children):
        assert child.read(at, 6) == b"parent"
        child.write(at, b"%06d" % number)
    space.write(at, b"after!")
    assert [child.read(at, 6) for child in children] == [b"%06d" % n for n in range(50)]
    assert space.read(at, 6) == b"after!"
    grandchild = children[7].fork()
    children[7].close()
    assert grandchild.read(at, 6) == b"000007"


def test_freeze_and_restore(memory, space):
    at = space.map("256KiB")
    space.write(at, b"one")
    first = space.freeze()
    space.write(at, b"two")
    space.write(at + 5 * PAGE, b"more")
    second = space.freeze()
    changed = space.changed_since(first)
    assert sum(length for _, length in changed) >= 2 * PAGE
    assert any(one.start <= at < one.start + one.length for one in changed)
    assert first.read(at, 3) == b"one" and second.read(at, 3) == b"two"
    assert first.diff(second) and not second.diff(second)
    buffer = bytearray(3)
    assert second.readinto(at, buffer) == 3 and buffer == b"two"
    for _ in range(3):
        space.restore(first)
        assert space.read(at, 3) == b"one" and space.read(at + 5 * PAGE, 4) == bytes(4)
        space.write(at, b"lost")
    assert second.fork().read(at + 5 * PAGE, 4) == b"more"
    other = memory.space()
    with pytest.raises(ValueError):
        other.restore(first)


def test_accesses_that_fail(memory, space, path):
    at = space.map(PAGE)
    with pytest.raises(innerspace.AccessError) as caught:
        space.read(at + PAGE - 2, 4)
    assert caught.value.address == at + PAGE and caught.value.errno == 14
    assert isinstance(caught.value, OSError) and "not mapped" in str(caught.value)
    space.protect(at, PAGE, "r")
    with pytest.raises(innerspace.AccessError):
        space.write(at, b"x")
    space.protect(at, PAGE, "")
    with pytest.raises(innerspace.AccessError):
        space.read(at, 1)
    space.unmap(at, PAGE)
    with pytest.raises(innerspace.AccessError):
        space.read(at, 1)
    with pytest.raises(ValueError):
        space.map(0)
    with pytest.raises(ValueError):
        space.unmap(at + 1, PAGE)
    with pytest.raises(ValueError, match="not one of"):
        space.protect(at, PAGE, "x")
    with pytest.raises(TypeError):
        space.map(PAGE, shared=True)
    with pytest.raises(BufferError):
        space.readinto(at, b"constant")


def test_a_truncated_file_is_an_exception(memory, space, path):
    file = memory.open(path)
    at = space.map(file)
    assert space.read(at, 1)
    os.truncate(path, 1000)
    with pytest.raises(innerspace.FileError, match="now ends at 1,?000"):
        space.read(at + 500_000, 10)


def test_full_memory_is_a_limit_error():
    memory = innerspace.Memory("1MiB")
    space = memory.space()
    at = space.map("64MiB")
    with pytest.raises(innerspace.LimitError):
        space.fill(at, "64MiB", 1)
    with pytest.raises(innerspace.LimitError, match="outside the limit"):
        space.read(at, 2 << 20)
    memory = innerspace.Memory("1MiB")
    group = memory.group("tenant", "256KiB")
    tenant = memory.space(group)
    mine = tenant.map("8MiB")
    with pytest.raises(innerspace.LimitError):
        tenant.fill(mine, "8MiB", 1)


def test_threads_share_a_space(space):
    at = space.map("4MiB")
    wrong = []

    def work(number):
        start = at + number * (256 << 10)
        for turn in range(20):
            data = bytes([number * 20 + turn & 255]) * 50_000
            space.write(start, data)
            if space.read(start, len(data)) != data:
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_end_of_a_space(memory):
    with memory.space() as space:
        at = space.map("1MiB")
        space.fill(at, "1MiB", 1)
        used = memory.usage
        snapshot = space.freeze()
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(space)
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(snapshot)
        assert "1 mapping" in repr(space)
    assert space.closed and "closed" in repr(space)
    with pytest.raises(ValueError, match="closed"):
        space.read(at, 1)
    assert snapshot.read(at, 2) == b"\1\1"
    del snapshot
    assert memory.usage < used - (1 << 19)


def test_a_child_of_fork_gets_exceptions(memory, space):
    at = space.map(PAGE)
    space.write(at, b"parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            space.read(at, 1)
        except innerspace.FileError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert space.read(at, 6) == b"parent"
